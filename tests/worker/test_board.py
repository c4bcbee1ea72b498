"""What a supervisor reads of a process that died."""

import os

from penstock.worker.board import Board, Shown


def test_the_reader_sees_what_the_writer_wrote_last():
    reader = Board.make(queues=2, runners=3)
    writer = Board(os.dup(reader.fd))
    long_id = "名" * 66
    tokens = [b"000000000001a", b"000000000002" + long_id.encode(), b"000000000003c"]
    for queue, token in zip((0, 1, 1), tokens, strict=True):
        writer.start(queue, token)
    writer.end(tokens[0])
    writer.show(1, Shown("01M7Z4X65C1XEC55FE8YEVQSP3", 12.5, True))
    assert {queue: sorted(found) for queue, found in reader.running().items()} == {1: tokens[1:]}
    assert reader.shown() == [Shown("", 0.0, False), Shown("01M7Z4X65C1XEC55FE8YEVQSP3", 12.5, True)]
    writer.close()
    reader.close()


def test_more_jobs_than_runners_are_not_shown_and_break_nothing():
    board = Board.make(queues=1, runners=1)
    for name in (b"a", b"b"):
        board.start(0, b"000000000001" + name)
    board.end(b"000000000001b")
    assert board.running() == {0: [b"000000000001a"]}
    board.end(b"000000000001a")
    board.start(0, b"000000000001c")
    assert board.running() == {0: [b"000000000001c"]}
    board.close()
