"""For operators: inspecting what a server holds, checking its health, and acting on queues and jobs.

The modules of this folder, in reading order:

    inspect.py            the only questions that the command line, the dashboard and tests ask, and the actions of
                          operators
    schedules.py          the questions about schedules
    history.py            the question about the past of a queue
    coordination.py       the questions about elections, latches, barriers, semaphores and read-write locks
    queues.py             queues as a whole, their workers, limits and dead letters
    waiting_jobs.py       changing jobs that wait
    job_search.py         finding jobs in one queue or in all
    answers.py            the answers to these questions
    probe.py              questions to the server itself, without a script
    raw_client.py         a client for commands that Penstock does not wrap
    wording.py            numbers and names, as people read them
    key_tables.py         the key tables of all nouns, and the row of a given key
    inventory.py          checks the keys of an app at work
    doctor.py             `penstock doctor`, which runs the checks
    health.py             `penstock worker --check`
    proof.py              proves that locks exclude, on a given server
"""
