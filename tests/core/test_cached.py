"""A property that is computed once for each object, also in a process whose threads fork."""

import subprocess
import sys

from penstock.core.cached import cached_property


class Counted:
    calls = 0

    @cached_property
    def value(self) -> int:
        """One more than the last time."""
        self.calls += 1
        return self.calls


def test_it_is_computed_once_for_each_object():
    one, other = Counted(), Counted()
    assert (one.value, one.value, other.value) == (1, 1, 1)
    assert Counted.value.__doc__ == "One more than the last time."


def test_a_fork_while_a_thread_computes_it_leaves_it_usable_in_the_child():
    code = """if True:
        import os, signal, sys, threading
        from penstock.core.cached import cached_property
        computing, over = threading.Event(), threading.Event()
        class Slow:
            def __init__(self, work):
                self.work = work
            @cached_property
            def value(self):
                computing.set()
                return self.work()
        threading.Thread(target=lambda: Slow(over.wait).value).start()
        computing.wait()
        child = os.fork()
        if not child:
            signal.alarm(10)
            os._exit(Slow(lambda: 0).value)
        ended = os.waitpid(child, 0)[1]
        over.set()
        sys.exit(ended != 0)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
