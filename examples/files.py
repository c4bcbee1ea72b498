"""One thread sends files, another saves them, a third counts their lines, all through a channel of two megabytes."""

import tempfile
from collections import Counter
from pathlib import Path
from threading import Thread

from penstock import LineBatch, Penstock

app = Penstock(prefix="example")


@app.aggregate("access")
def by_status(lines: LineBatch) -> dict[str, Counter[str]]:
    return {"status": Counter(line.rsplit(b" ", 1)[-1].decode() for line in lines)}


def write_logs(folder: Path) -> None:
    for day in (1, 2, 3):
        lines = [f"GET /page/{n} {404 if n % 10 == 0 else 200}\n" for n in range(50_000 * day)]
        (folder / f"day-{day}.log").write_text("".join(lines))


def main(folder: Path) -> None:
    sent, saved = folder / "sent", folder / "saved"
    sent.mkdir()
    write_logs(sent)
    channel = app.files("access")
    channel.open(["by_status", "archive"], limit=2 << 20)
    threads = [Thread(target=lambda: channel.send_lines(sent, close=True)), Thread(target=by_status.run)]
    for thread in threads:
        thread.start()
    for file in channel.receiver("archive").save(saved):
        print(f"saved {file.name}, {file.size:,} bytes: {file.path.read_bytes() == (sent / file.name).read_bytes()}")
    for thread in threads:
        thread.join()

    totals = by_status.totals()
    print(f"{totals.lines:,} lines, {totals.counted:,} counted: {by_status.top('status')}")
    print(f"never more than {channel.info().peak:,} bytes in the server")


if __name__ == "__main__":
    with app, tempfile.TemporaryDirectory() as folder:
        try:
            main(Path(folder))
        finally:
            app.files("access").delete()
