"""Processes and folders that a test process leaves behind are removed; a session that leaves a process fails."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.leftovers import MARK, swept
from tests.servers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")

KILLED = """
import os, signal, subprocess, tempfile
from tests.leftovers import swept
from tests.servers import Server

with swept(grace=0):
    child = {child}
    print(child.pid, tempfile.mkdtemp(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("child", ["subprocess.Popen(['sleep', '600'], start_new_session=True)", "Server()"])
def test_nothing_outlives_a_killed_test_process(child: str):
    """A server shows no environment in /proc after it has changed its title."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(child=child)], capture_output=True, text=True, check=False
    )
    pid, folder = done.stdout.split()
    assert done.returncode == -signal.SIGKILL
    eventually(lambda: not Path(folder).parent.exists())
    eventually(lambda: not Path(f"/proc/{pid}/cwd").exists())


def test_a_process_that_outlives_the_session_is_killed_and_an_error():
    mark, temporary = os.environ[MARK], tempfile.gettempdir()
    session = swept(grace=0.1)
    session.__enter__()
    assert os.environ[MARK] != mark
    assert tempfile.gettempdir() == os.environ["TMPDIR"] != temporary
    child = subprocess.Popen(["sleep", "600"])
    with pytest.raises(AssertionError, match=r"the tests left processes behind: \{\d+: 'sleep 600 '\}"):
        session.__exit__(None, None, None)
    assert child.wait() == -signal.SIGKILL
    assert (os.environ[MARK], tempfile.gettempdir()) == (mark, temporary)


def test_the_folder_of_multiprocessing_goes_without_a_traceback():
    program = """
from multiprocessing import util
from tests.leftovers import swept
with swept(grace=0):
    print(util.get_temp_dir())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).parent.exists()
    assert done.stderr == ""


def test_a_process_that_ends_by_itself_is_no_error():
    with swept():
        child = subprocess.Popen(["sleep", "0.2"])
    assert child.wait() == 0
