"""Tasks, jobs and queues."""
