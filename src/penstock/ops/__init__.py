"""For operators: inspecting what a server holds, checking its health, and acting on queues and jobs.

The modules of this folder, in reading order:

    inspect.py            the inspector of the command line, the dashboard and tests; it has a questioner for each noun
    questioner.py         what each questioner has, and how it opens a queue as the server has it
    queues.py             queues as a whole, and their dead letters
    jobs.py               jobs by their ids or by a filter
    history.py            the past and the use of a queue
    tasks.py              what the tasks did lately
    health.py             what an operator should look at
    workers.py            workers, and `penstock worker --check`
    schedules.py          schedules
    coordination.py       locks, semaphores, elections, latches and barriers
    messages.py, files.py, directories.py
                          mailboxes and chats, channels, directories
    answers.py            the answers to these questions
    probe.py              questions to the server itself, without a script
    raw_client.py         a client for commands that Penstock does not wrap
    wording.py            numbers and names, as people read them
    key_tables.py         the key tables of all nouns, and the row of a given key
    inventory.py          checks the keys of an app at work
    doctor.py             `penstock doctor`, which runs the checks
    proof.py              proves that locks exclude, on a given server
"""
