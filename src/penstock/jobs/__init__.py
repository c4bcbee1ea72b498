"""Tasks, jobs and queues: `queue.lua` is the specification, `queue.py`, `task.py` and `job.py` the public objects."""
