"""Files that are sent a second time: what grew, and what is damaged, sends what is new and nothing twice."""

import gzip
from pathlib import Path

import pytest

from penstock import FileDamaged, FilesError, Penstock
from tests.conftest import Do


@pytest.fixture
async def channel(app: Penstock, do: Do):
    channel = app.files("access")
    await do(channel.open, ["me"])
    yield channel
    await do(channel.delete)


async def test_its_lines_before_the_damage_are_sent_once_until_it_changes(channel, do: Do, tmp_path: Path):
    text = b"".join(b"%d\n" % (number * number) for number in range(100_000))
    packed = gzip.compress(text)
    file = tmp_path / "a.log.gz"
    file.write_bytes(packed[: len(packed) // 2])
    for _ in range(2):
        with pytest.raises(FilesError, match=r"1 of 1 files were not sent whole: .*a\.log\.gz is damaged: it ends at"):
            await do(channel.send_lines, file)
    file.write_bytes(packed)  # it was still being written
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


async def test_what_a_short_log_grew_by_is_sent(channel, do: Do, tmp_path: Path):
    file = tmp_path / "a.log"
    file.write_text("one\n")
    await do(channel.send_lines, file)
    file.write_text("one\ntwo\n")
    await do(channel.send_lines, file, close=True)
    assert [line async for line in channel.receiver("me").lines()] == [b"one", b"two"]
