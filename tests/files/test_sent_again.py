"""Files that are sent a second time: only what is new arrives. And the progress of a send."""

import gzip
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.errors import FileDamaged, FilesError
from penstock.files.upload import Progress
from tests.conftest import Do


@pytest.fixture
async def channel(app: Penstock, do: Do):
    channel = app.files("access")
    await do(channel.open, ["me"])
    yield channel
    await do(channel.delete)


async def test_lines_before_damage_are_sent_once_until_the_file_changes(channel, do: Do, tmp_path: Path):
    text = b"".join(b"%d\n" % (number * number) for number in range(100_000))
    packed = gzip.compress(text)
    file = tmp_path / "a.log.gz"
    file.write_bytes(packed[: len(packed) // 2])
    for _ in range(2):
        with pytest.raises(FilesError, match=r"1 of 1 files were not sent whole: .*a\.log\.gz is damaged: it ends at"):
            await do(channel.send_lines, file)
    file.write_bytes(packed)  # a log that is still being written
    assert (await do(channel.send_lines, file, close=True)).skipped == []
    lines, faults = [], []
    stream = channel.receiver("me").lines()
    while True:
        try:
            async for line in stream:
                lines.append(line)
        except FileDamaged as error:
            faults.append(error)
        else:
            break
    assert lines == text.splitlines()
    assert len(faults) == 1


async def test_progress_counts_packed_bytes(channel, do: Do, tmp_path: Path):
    files = [tmp_path / "a.log", tmp_path / "b.log.gz", tmp_path / "c.log"]
    for file in files:
        text = b"".join(b"%s %d\n" % (file.name.encode(), number * number) for number in range(60_000))
        file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    reports: list[Progress] = []
    await do(channel.send_lines, files, progress=reports.append)
    sizes = [file.stat().st_size for file in files]
    assert [one.sent for one in reports] == sorted(one.sent for one in reports)
    assert {one.total for one in reports} == {sum(sizes)}
    ends = {one.name: (one.sent, one.done, one.size) for one in reports}
    assert ends == {
        file.name: (sum(sizes[: place + 1]), sizes[place], sizes[place]) for place, file in enumerate(files)
    }
