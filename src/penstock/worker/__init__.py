"""Workers: programs that claim jobs from queues, run them, and settle them.

The modules of this folder, in reading order:

    worker.py             the rounds of one worker process: claim, run, settle, sleep
    app.py                what a worker needs from an app, and which settings can work
    notes.py              keeps the reports of running jobs until a turn carries them
    emitted.py            the same for what they emit
    feed.py               one queue as the worker sees it: its incarnation, its turns, its claims
    turn_order.py         the queues of a worker, their shards, and the order of its turns in them
    open_feeds.py         the listener and the heartbeat of each queue that a worker serves
    delivery.py           delivers entries from one queue's outbox to another queue
    ticks.py              declares the schedules of the app, and enqueues the jobs of due ticks
    batches.py            one call for several claims
    runs.py               all claims and runs of the process: waiting, running, and how many more to claim
    run.py                one run of a job
    execution.py          one run, from the claimed record to the settlement
    error_text.py         errors of jobs as text
    places.py             runs each job where it belongs: on the loop, in a thread or in a process
    streak.py             which `async def` jobs share an asyncio task
    job_task.py           the asyncio tasks of jobs, which remember which job's code has cancelled them
    threads.py            the `def` jobs, with their timeouts and cancellations
    job_log.py            the worker's log lines about jobs, as middleware
    heartbeat.py          the thread that keeps leases, and a watchdog for a blocked loop
    thread_timeout.py     the timeout of a task in a thread
    isolation.py          runs in processes of their own, on the worker's side
    forkserver.py         the process that forks them
    event_loop.py         the event loop of a worker's processes
    job_channel.py        the socket between them
    spawned.py            a process that is started afresh for a run, where the fork server fails
    run_channel.py        the worker's end of that socket
    supervisor.py         one or several worker processes, replaced when they die
    cancelling.py         ends running jobs that were cancelled
    child.py              one worker process, as its supervisor sees it
    trials.py             trial processes: each runs jobs that may have killed a worker, one at a time
    trial_process.py      the program of a trial process, for a worker inside another program
    suspects.py           what a worker does about such jobs: report them, have them tried, or try one itself
    shared_status.py      the memory that shows the supervisor what a dead process was running
    parent_pipe.py        the pipe that shows a process the end of its parent
    processes.py          questions to the operating system about a process
    init_process.py       reaps orphans where the worker is the first process of a container
    standard_streams.py   /dev/null in place of closed streams
    logs.py               log lines as text or JSON
"""
