"""A supervisor reads what a worker process wrote before it died."""

import os

from penstock.worker.shared_status import QueueStatus, SharedStatus


def test_the_supervisor_reads_what_the_worker_wrote_last():
    reader = SharedStatus.create(queues=2, runners=3)
    writer = SharedStatus(os.dup(reader.fd))
    long_id = "名" * 66
    tokens = [b"000000000001a", b"000000000002" + long_id.encode(), b"000000000003c"]
    for queue, token in zip((0, 1, 1), tokens, strict=True):
        writer.job_started(queue, token)
    writer.job_ended(tokens[0])
    status = QueueStatus("01M7Z4X65C1XEC55FE8YEVQSP3", 12.5, True)
    writer.update_queue(1, status)
    assert {queue: sorted(found) for queue, found in reader.running_jobs().items()} == {1: tokens[1:]}
    assert reader.queue_statuses() == [QueueStatus("", 0.0, False), status]
    writer.close()
    reader.close()


def test_more_jobs_than_runners_are_not_recorded_and_break_nothing():
    status = SharedStatus.create(queues=1, runners=1)
    for name in (b"a", b"b"):
        status.job_started(0, b"000000000001" + name)
    status.job_ended(b"000000000001b")
    assert status.running_jobs() == {0: [b"000000000001a"]}
    status.job_ended(b"000000000001a")
    status.job_started(0, b"000000000001c")
    assert status.running_jobs() == {0: [b"000000000001c"]}
    status.close()
