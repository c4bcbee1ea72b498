"""Interrupts at any moment of a wait leave no request among the waiters, and do not crash the process."""

import os
import random
import subprocess
import sys
from pathlib import Path

from penstock.driver.connector import packer
from tests.servers import Server
from tests.speed import scaled

INTERRUPTED = Path(__file__).with_name("interrupted.py")

COUNT = int(os.environ.get("INTERRUPTS", "500"))
"""Interrupts of one run. `INTERRUPTS=10000 pytest tests/locks/test_interrupted.py` takes some minutes."""


def test_a_storm_of_interrupts_leaves_no_waiter_and_crashes_nothing(server: Server):
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")  # pytest shows it if the test fails
    words = [sys.executable, str(INTERRUPTED), server.address, f"storm{seed}", str(COUNT), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=scaled(60 + COUNT / 5)
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "Fatal Python error" not in done.stderr
    got, remained = map(int, done.stdout.split())
    assert (got >= COUNT, remained) == (True, 0)
    server.client.flushall()


def test_numbers_are_texts_before_the_c_function_gets_them():
    """It would crash the process if an interrupt arrived while it converts one."""
    assert b"".join(packer()(("SET", "k", 17, b"\xff", 2.5))) == (
        b"*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n17\r\n$1\r\n\xff\r\n$3\r\n2.5\r\n"
    )
