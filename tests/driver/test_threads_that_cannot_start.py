"""A thread cannot be started, as at a limit of processes: the caller hears of it, and the next one tries again."""

import threading
import time
from collections.abc import Callable

import pytest

from penstock import Penstock
from tests.conftest import MakeApp
from tests.speed import scaled


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that lifts the limit."""

    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("can't start new thread")

    with_limit = pytest.MonkeyPatch()
    newer = "_start_joinable_thread"  # since Python 3.13
    with_limit.setattr(threading, newer if hasattr(threading, newer) else "_start_new_thread", fail)
    return with_limit.undo


def test_a_lock_is_renewed_after_a_thread_could_not_be_started(make_blocking_app: MakeApp, limit: Callable[[], None]):
    app = make_blocking_app()
    app.queue("q").count()
    with pytest.raises(RuntimeError, match="new thread"):
        app.lock("a", lease=0.5).acquire()
    limit()
    with app.lock("b", lease=0.5) as held:
        time.sleep(1.5)
        held.check()


def test_messages_arrive_after_a_thread_could_not_be_started(make_blocking_app: MakeApp, limit: Callable[[], None]):
    app, other = make_blocking_app(), make_blocking_app()
    app.queue("q").count()
    with pytest.raises(RuntimeError, match="new thread"):
        app.mailbox("m").pull(wait=5)
    limit()
    threading.Timer(0.3, other.mailbox("m").post, ("x",)).start()
    began = time.monotonic()
    assert app.mailbox("m").pull(wait=20)
    assert time.monotonic() - began < scaled(2)


def test_an_error_of_the_renewer_is_survived(make_blocking_app: MakeApp, monkeypatch: pytest.MonkeyPatch):
    """Such as too many open files when it makes its event loop."""
    app, failures = make_blocking_app(), [OSError(24, "Too many open files"), OSError(24, "Too many open files")]
    serve = app._renewer._serve

    def fail_twice() -> object:
        if failures:
            raise failures.pop()
        return serve()

    monkeypatch.setattr(app._renewer, "_serve", fail_twice)
    with app.lock("c", lease=2) as held:
        time.sleep(2.5)
        held.check()


def test_what_ends_while_the_renewer_cannot_run_is_reported(
    make_blocking_app: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    app, lost = make_blocking_app(), threading.Event()

    def fail() -> object:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(app._renewer, "_serve", fail)
    held = app.lock("d", lease=0.5, on_loss=lambda _: lost.set()).acquire()
    assert lost.wait(scaled(2))
    assert held.lost.is_set()


@pytest.fixture
def make_blocking_app(server: object) -> Callable[[], Penstock]:
    made: list[Penstock] = []
    return lambda: made.append(Penstock(server.address, prefix="threads")) or made[-1]  # type: ignore[attr-defined,func-returns-value]
