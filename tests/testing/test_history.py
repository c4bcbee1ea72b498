"""A history is written by many processes and survives each of them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock.testing.history import (
    Ended,
    Enqueued,
    Event,
    FaultInjected,
    FinalState,
    History,
    LeaseExpired,
    Outage,
    Settled,
    Started,
    read,
)


def test_recorded_events_are_read(tmp_path: Path):
    events: list[Event] = [
        Enqueued(job="a", answer="asked"),
        Started(job="a", claim=7, worker="w", attempt=2),
        Ended(job="a", claim=7, returned=False),
        Settled(job="a", claim=7, how="bury", answer="accepted"),
        LeaseExpired(worker="w"),
        FaultInjected(worker="w", how="killed"),
        Outage(what="server", over=True),
        FinalState(job="a", state="dead", reason="名前"),
    ]
    history = History(tmp_path / "new")
    for event in events:
        history.note(event)
    history.close()
    assert read(tmp_path / "new") == events


def test_several_processes_and_threads_write_and_a_kill_loses_nothing(tmp_path: Path):
    script = """
import os, sys, threading
from penstock.testing.history import Enqueued, History
history = History(sys.argv[1])
history.note(Enqueued(job=f"{sys.argv[2]} parent", answer="asked"))
if os.fork() == 0:
    for n in range(100):
        history.note(Enqueued(job=f"{sys.argv[2]} child {n}", answer="asked"))
    os._exit(0)
os.wait()
print("written", flush=True)
threading.Event().wait()
"""
    here = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    words = [sys.executable, "-c", script, str(tmp_path)]
    started = [subprocess.Popen([*words, f"p{n}"], env=here, stdout=subprocess.PIPE, text=True) for n in range(2)]
    history = History(tmp_path)

    def write(thread: int) -> None:
        for n in range(100):
            history.note(LeaseExpired(worker=f"{thread} {n}"))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    history.close()
    events = read(tmp_path)
    assert len(events) == 2 * 101 + 400
    assert len(list(tmp_path.iterdir())) == 5
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_cut_last_line_is_left_out_and_any_other_damage_raises(tmp_path: Path):
    history = History(tmp_path)
    history.note(LeaseExpired(worker="w"))
    history.close()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    assert [type(event) for event in read(tmp_path)] == [LeaseExpired]
    file.write_bytes(whole + whole[:20] + b"\n" + whole)
    with pytest.raises(ValueError, match=r"jsonl:2: "):
        read(tmp_path)
