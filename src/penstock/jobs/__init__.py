"""Tasks, jobs and queues: `queue.lua` is the specification, `queue.py`, `task.py` and `job.py` the public objects.

In the server:

    queue.lua             the drawing of a job's states, the map of a queue's keys, and the scripts that change
                          them. Start here
    job.lua               the transitions of a job as functions, which those scripts call
    record.lua            a job's record, a header of fixed length before the payload
    row.lua               the numbers that nearly every script needs, in one packed value
    plain.lua             plain calls, which go straight into their lanes
    intake.lua            calls that were accepted one at a time and are not in a lane yet
    lane.lua              order and fairness, which job is next
    charging.lua          fairness by the time of workers
    limits.lua            limits, how many jobs with the same key run at a time, or start within an interval
    admitted.lua          the jobs that have a place in a limit and do not run yet
    limited_runs.lua      what the claim of a limited job takes, and what its end gives back
    linger.lua            batches, when a lane has enough jobs for one call
    releases.lua          the releases whose workers serve the queue, and the tasks that they know
    lease.lua             ownership, which worker holds a job and until when
    failures.lua, failures.py  the last failed attempts of a job
    recovery.lua          what happens to a job whose process died
    expiry.lua            the end of waiting jobs whose `expires` has passed
    results.lua           how jobs ended, kept for the time that each job asked for
    finished.lua          rows of jobs that have ended
    bounds.lua            how many unfinished jobs a queue has at most, and which calls it refuses
    retention.lua         how many results and dead letters are kept
    notes.lua             the progress and the log that a running job reports
    output.lua, output.py
                          what a running job emits, and those that read it
    settling.lua          how the run of a job ends
    durable.lua           durable steps, sleeping jobs, and signals
    children.lua          jobs that a durable job runs; it sleeps until they have ended
    effects.lua           what a job has staged, which the script that completes the job applies
    outbox.lua            entries of a queue for other queues, which a worker delivers
    editing.lua           changes one waiting job
    cancelling.lua        asks a worker to end a running job, to claim no more, or to stop
    wake.lua              idle workers, and which of them watch the clock
    listeners.lua         the processes that wait for the result of a job
    counters.lua          counts and ages, kept up to date as jobs move
    slice.lua, effort.py  a limit on the work of one script call, and what jobs cost a script
    admission.lua         parked jobs get the places that were freed
    pauses.lua            jobs of a paused task or tenant are parked
    limit_settings.lua    the limits as an operator sees and changes them
    holds.lua             keys of rates that are closed for a while
    bookings.lua          the units of a rate that a running job says it has used
    dead_letters.lua      listing, requeueing and removing dead letters
    dead_groups.lua       the failures of many dead letters
    listing.lua           pages of the jobs that match a filter
    unique.lua            unique jobs, and when they give up their keys
    receipts.lua          accepts a call from a program's own database once, however often it is sent
    schedule.lua          calls that are enqueued again and again
    flow.lua              jobs that wait until other jobs have ended
    flow_rows.lua         how such jobs enter a queue
    flow_tree.lua         which jobs a job waits for, and which wait for it
    inspect.lua           counts, tenants and workers, for an operator
    removal.lua           removes an empty queue
    why.lua               facts about a job that does not run
    shards.lua            the table of shards, and which shard accepts a tenant's jobs while some are added

In Python:

    history.lua, history.py
                          what the counts were every 10 s of the last hour, and every minute of the last day
    keys.py               the keys of a queue
    constants.py          constants that the Lua files define, written by `make constants`
    header.py             the numbers in the header and the tail of a record
    record.py             a record, as Python reads and writes it
    sealed.py             records whose payload is sealed
    row.py                the packed numbers of a queue, as an audit reads them
    claims.py             claims that a worker receives, and settlements that it returns
    bindings.py           the scripts of a queue as round trips
    unique.py, key_template.py
                          unique keys, and templates that make them from arguments
    timing.py             the ticks of a cron line or an interval, and those that were missed
    schedule.py, schedule_bindings.py
                          a schedule as code defines it and as the server stores it; its scripts
    schedules.py          `app.schedules`
    decorator.py          what `@app.task` returns, for type checkers
    signature.py          the parameters of a task: check, encode, decode
    retry.py              the retry policy, and the exceptions that a task raises
    dependencies.py       hooks of a worker process, and parameters that a worker fills
    definition.py         a task's function with its options
    registry.py           the tasks of an app, by name
    release.py            the release of an app, and when it was made
    limits.py             the limits of a task
    queue_limits.py       the limits of a queue, for an operator
    limit_bindings.py     the scripts about limits as round trips
    finished.py           rows of jobs that have ended
    finished_list.py      lists of them
    running_again.py      running a job that has ended again, as a new one
    tags.py               tags, by which people find jobs
    bounds.py             how many unfinished jobs a queue takes, and what a bulk was refused
    retention.py          how many dead letters and results a queue keeps
    batching.py           tasks that take many jobs in one call
    pauses.py             pauses of a task or tenant
    options.py            the options of one enqueue
    middleware.py         the application's code around enqueues and runs
    reporting.py          errors of jobs for a service, and the fields of the running job for logs
    task.py               tasks and calls, which users enqueue
    enqueue_reply.py      the reply to an enqueue: doubles, and refused jobs
    bulk.py               enqueueing many jobs
    shard_bindings.py     the scripts of shards as round trips
    shard_table.py        the table of shards, and the number of a tenant's shard
    shard.py              one shard: one slot, and the operations on it
    shards.py             all shards of a queue, and which of them has a tenant's jobs
    shard_changes.py      adding shards, and spreading a tenant
    sharded_enqueue.py    enqueueing in shards
    receipts.py           enqueueing from such a store
    claiming.py           claims in a program without a worker
    tenant.py             one tenant of a queue
    queue_settings.py     the settings of a queue
    queue.py              a queue, which works with or without tasks
    notes.py              progress and log lines, as bytes and as users read them
    following.py          following what a job reports while it runs: its output, and its log
    log_lines.py          the log of a job, read and followed
    durable.py            `step`, `sleep`, `wait_for` and `patched`
    children.py           `run`, and how a run ends whose job waits for its children
    steps.py              the durable steps of one run
    durable_bindings.py   the scripts of durable steps, and what they have recorded
    stage.py              the writes and calls that a running job stages
    current.py            the job that the calling code runs in
    stalls.py             the warning for a job that waits for another one where only one can run
    other_words.py        names from other libraries, which errors translate
    flow.py               `chain`, `group` and `after=`
    flow_plan.py          the plan of a flow, and the rows that bring it into its queues
    status.py, waits.py   the state of a job, and what it waits for
    awaited.py            results of other jobs as arguments
    flow_bindings.py      the scripts of flows, and what a job waits for
    flow_tree.py          the jobs that a job waits for and those that wait for it, to show and to cancel them
    removal.py            removing an empty queue
    why_bindings.py, why.py
                          why a job does not run
    editing.py            changing a waiting job
    job.py                a handle on one enqueued job
    item.py               a job that a program claimed without a worker
    dead_letters.py       the dead letters of a queue
    listing.py            pages of jobs and their changes as round trips
    moving.py             moving jobs to another queue
    job_list.py           jobs that match a filter
    dead_groups.py        dead letters grouped by task and error
    counts.py             counts of jobs and tenants, and the list of workers
    worker_requests.py    requests of an operator to workers
"""
