"""The worker's end of the socket to a process that runs one job."""

import asyncio
import contextlib
import socket
import threading

from penstock.worker.job_channel import CHUNK, LENGTH
from penstock.worker.run_channel import RunChannel
from tests.speed import scaled


async def test_a_process_that_sends_without_a_pause_leaves_the_loop_to_others():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel, ended = RunChannel(ours), threading.Event()
    message = LENGTH.pack(4) + CHUNK + b'"x"'

    def send() -> None:
        with theirs, contextlib.suppress(OSError):  # as a job that emits in a loop
            while not ended.wait(0):
                theirs.sendall(message * 1000)

    sender = threading.Thread(target=send)
    sender.start()
    answer = asyncio.create_task(channel.answer())
    rescue = threading.Timer(scaled(2), ended.set)  # otherwise a loop that is held up would never end
    rescue.start()
    try:
        for _ in range(100):
            await asyncio.sleep(0)
        assert not ended.is_set()
    finally:
        rescue.cancel()
        ended.set()
        assert await answer is None
        channel.close()
        await asyncio.to_thread(sender.join)
