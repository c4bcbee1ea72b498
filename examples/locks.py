"""Ten threads share a counter in a file: a lock admits one at a time, and its fence refuses a late writer.

python examples/locks.py
"""

import tempfile
import threading
import time
from pathlib import Path

from penstock import Penstock


class Counter:
    """Keeps a number in a file, and refuses a writer whose fence is lower than the last one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.fence = 0
        self.file.write_text("0")

    def add_one(self, fence: int) -> None:
        if fence < self.fence:
            raise PermissionError(f"fence {fence} is too low: the owner with fence {self.fence} has written already")
        self.fence = fence
        number = int(self.file.read_text())
        time.sleep(0.001)  # without the lock, another thread would read the same number
        self.file.write_text(str(number + 1))


def main() -> None:
    with Penstock() as app, tempfile.TemporaryDirectory() as folder:
        counter, busy, most = Counter(Path(folder, "counter")), 0, 0
        guard = threading.Lock()

        def work() -> None:
            nonlocal busy, most
            for _ in range(5):
                with app.lock("counter", lease=5) as held:
                    counter.add_one(held.fence)
                with app.semaphore("machine", limit=3):
                    with guard:
                        busy += 1
                        most = max(most, busy)
                    time.sleep(0.002)
                    with guard:
                        busy -= 1

        threads = [threading.Thread(target=work) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"counted to {counter.file.read_text()} of 50, at most {most} of 3 at the machine at once")


if __name__ == "__main__":
    main()
