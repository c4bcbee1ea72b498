"""A supervisor reads what a worker process wrote before it died."""

import os

from penstock.worker.shared_status import RETIRING, QueueStatus, SharedStatus


def test_the_supervisor_reads_what_the_worker_wrote_last():
    reader, child_end = SharedStatus.create(queues=2, runners=3)
    writer = SharedStatus(os.dup(reader.fd), child_end)
    long_id = "名" * 66
    tokens = [b"000000000001a", b"000000000002" + long_id.encode(), b"000000000003c"]
    for queue, token in zip((0, 1, 1), tokens, strict=True):
        writer.job_started(queue, token)
    writer.job_ended(tokens[0])
    status = QueueStatus("01M7Z4X65C1XEC55FE8YEVQSP3", 12.5, True)
    writer.update_queue(1, status)
    assert {queue: sorted(found) for queue, found in reader.running_jobs().items()} == {1: tokens[1:]}
    assert reader.queue_statuses() == [QueueStatus("", 0.0, False), status]
    assert (reader.has_ended_a_job(), reader.read_reports()) == (False, b"")
    writer.note_job_has_ended()
    writer.report(RETIRING)
    assert (reader.has_ended_a_job(), reader.read_reports()) == (True, RETIRING)
    writer.close()
    assert reader.read_reports() == b""
    reader.close()


def test_reports_that_nobody_reads_block_no_worker():
    status, child_end = SharedStatus.create(queues=1, runners=1)
    writer = SharedStatus(os.dup(status.fd), child_end)
    for _ in range(20):
        writer.report(RETIRING * 10_000)
    status.close()
    writer.report(RETIRING)
    writer.close()


def test_more_jobs_than_runners_are_not_recorded_and_break_nothing():
    status, child_end = SharedStatus.create(queues=1, runners=1)
    os.close(child_end)
    for name in (b"a", b"b"):
        status.job_started(0, b"000000000001" + name)
    status.job_ended(b"000000000001b")
    assert status.running_jobs() == {0: [b"000000000001a"]}
    status.job_ended(b"000000000001a")
    status.job_started(0, b"000000000001c")
    assert status.running_jobs() == {0: [b"000000000001c"]}
    status.close()
