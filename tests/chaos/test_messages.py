"""Processes that send to and read from a chat are killed at any moment. No reader misses a message."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from penstock import Penstock
from penstock.testing import History, message_violations
from penstock.testing.history import MessageRead, MessageSent, ReaderOpened, read
from tests.servers import Server
from tests.speed import Deadline

SEED = int(os.environ.get("PENSTOCK_SEED", "6"))
MESSAGES = int(os.environ.get("PENSTOCK_CHAOS_MESSAGES", "400"))
READERS = [f"reader {n}" for n in range(12)]
SENDERS = ["ada", "bo"]


def test_killed_senders_and_readers_miss_no_message_and_all_memory_is_freed(server: Server, tmp_path: Path):
    chance = random.Random(SEED)
    app = Penstock(server.address, prefix="kills")
    chat = app.chats.create([*READERS, *SENDERS], id="ops")
    history = History(tmp_path)
    for name in READERS:
        history.note(ReaderOpened(log="ops", reader=name, after=0))
    total = MESSAGES * len(SENDERS)
    commands = [
        *(["send", name, str(MESSAGES)] for name in SENDERS),
        *(["read", *READERS[n::3], str(total)] for n in range(3)),
    ]

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        script = Path(__file__).parent / "chat_process.py"
        return subprocess.Popen([sys.executable, str(script), server.address, "kills", str(tmp_path), *command])

    running = {tuple(command): start(command) for command in commands}
    kills, deadline = 0, Deadline(120)
    while running:
        assert not deadline.passed(), f"seed {SEED}: {list(running)} did not end"
        time.sleep(chance.uniform(0.2, 0.9))
        for command, process in list(running.items()):
            if process.poll() is not None:
                assert process.returncode in {0, -9}, f"seed {SEED}: {command}"
                del running[command]
                if process.returncode != 0:
                    running[command] = start(list(command))
        if running and kills < 12:
            chance.choice(list(running.values())).kill()
            kills += 1

    for name in SENDERS:
        reader = chat.reader(name)
        while mail := reader.pull(1000):
            reader.ack(mail[-1])
    events = read(tmp_path)
    assert message_violations(events) == [], f"seed {SEED}"
    assert len({event.number for event in events if isinstance(event, MessageRead | MessageSent)}) == total
    assert chat.info().bytes == 0
    assert server.client.exists(chat._log.keys.base + "log") == 0
    for name in [*READERS, *SENDERS]:
        chat.leave(name)
    held = [key for key in server.client.scan_iter(match="{kills:*") if server.client.pttl(key) < 0]
    assert held == []
    app.close()
