"""`penstock files …`: sent and received by processes of their own, looked at, closed and deleted."""

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Penstock
from penstock.cli.download_view import showing_download
from penstock.cli.exits import Exit
from penstock.cli.upload_view import describe_slowest, show_sent
from penstock.files.bindings import ChannelInfo, ReceiverInfo
from penstock.files.saving import ReceiveProgress
from penstock.files.sender import Sent
from penstock.ops.inspect import Inspector
from penstock.terminal import progress
from tests.command_line import Command, Run, Start
from tests.servers import eventually, was_interrupted
from tests.speed import scaled

LINES = [f"{number * number}" for number in range(40_000)]


@pytest.fixture
def logs(shop: Penstock, tmp_path: Path) -> Iterator[Path]:
    """A folder of files to send. The channel is deleted when the test is over."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("".join(f"{line}\n" for line in LINES))
    (folder / "b.log.gz").write_bytes(gzip.compress(b"one\r\n") + gzip.compress(b"\xfftwo"))
    (folder / "c.empty").touch()
    yield folder
    shop.files("access").delete()


def penstock_at(shop: Penstock, start: Start, *words: str, **environment: str) -> subprocess.Popen[str]:
    return start(*words, PENSTOCK_URL=os.environ["PENSTOCK_URL"], PENSTOCK_PREFIX=shop.settings.prefix, **environment)


def test_files_are_sent_saved_and_listed(shop: Penstock, penstock: Command, logs: Path, tmp_path: Path):
    code, out, err = penstock("files", "send", "logs", "--channel", "access", "--to", "agg-1, agg-2", "--close")
    assert (code, err) == (Exit.OK, "")
    assert out.startswith("3 files sent to access: ")
    assert "closed" in out

    code, out, err = penstock("files", "receive", "--channel", "access", "--as", "agg-1")
    assert (code, err) == (Exit.OK, "")
    assert out.splitlines()[-1] == "3 files saved in access."
    assert out.startswith("access/a.log  ")
    code, out, _ = penstock("files", "receive", "--channel", "access", "--as", "agg-2", "--into", "x/y", "--json")
    assert [one["path"] for one in json.loads(out)] == ["x/y/a.log", "x/y/b.log.gz", "x/y/c.empty"]
    for file in logs.iterdir():
        assert (
            file.read_bytes() == (tmp_path / "access" / file.name).read_bytes() == Path("x/y", file.name).read_bytes()
        )

    code, out, _ = penstock("files", "send", "logs/a.log", "--channel", "access", "--to", "agg-1", "--json")
    report = json.loads(out)
    assert (code, report["channel"], report["bytes"], report["sent"]["skipped"]) == (Exit.OK, "access", 0, ["a.log"])


def test_the_summary_names_copies_unfinished_lines_and_forgotten_files(
    penstock: Command, logs: Path, capsys: pytest.CaptureFixture[str]
):
    log = logs / "a.log"
    send = ("files", "send", "--lines", "--channel", "access", "--to", "agg")
    assert penstock(*send, "logs/a.log")[0] == Exit.OK
    log.rename(logs / "moved.txt")
    log.write_text("new\nhalf")
    (logs / "copy.txt").write_bytes((logs / "moved.txt").read_bytes())
    code, out, _ = penstock(*send, "logs/a.log", "logs/copy.txt")
    assert code == Exit.OK
    assert "same content as a.log: copy.txt not sent again" in out
    assert "a.log: 4 B of an unfinished line held back (--final)" in out
    assert "1 file sent to access: 4 B" in out
    _, out, _ = penstock(*send, "logs/a.log", "--final")
    assert "1 file sent to access" in out
    assert "held back" not in out
    show_sent("access", Sent(forgotten=3), 0.1)
    assert "The channel remembers 100,000 files, and forgot the 3 oldest" in capsys.readouterr().out


def test_a_receive_reports_its_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.0)
    with showing_download() as report:
        report(ReceiveProgress("a.log", "web-1", 512, 2048, 512))
        report(ReceiveProgress("a.log", "web-1", 2048, 2048, 2048))
    shown = capsys.readouterr().err
    assert "a.log: 512 B of 2.0 KiB" in shown
    assert "2.0 KiB received" in shown


def test_lines_are_printed_as_they_are(shop: Penstock, penstock: Command, start: Start, logs: Path):
    assert penstock("files", "send", "logs", "--channel", "access", "--to", "me", "--lines", "--close")[0] == Exit.OK
    receiving = penstock_at(shop, start, "files", "receive", "--channel", "access", "--as", "me", "--lines")
    assert receiving.stdout is not None
    assert receiving.stdout.buffer.read() == (logs / "a.log").read_bytes() + b"one\n\xfftwo\n"  # type: ignore[attr-defined]
    assert receiving.wait(scaled(30)) == Exit.OK


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_reads_no_further_ends_it_and_what_was_printed_does_not_come_again(
    shop: Penstock, start: Start, logs: Path, unbuffered: str
):
    channel = shop.files("access")
    channel.send_lines([logs / "a.log"], receivers=["me"])
    (logs / "d.log").write_text("".join(f"{number:999}\n" for number in range(1000)))  # more than a pipe holds
    channel.send_lines([logs / "d.log"], close=True)
    receiving = penstock_at(
        shop, start, "files", "receive", "--channel", "access", "--as", "me", "--lines", PYTHONUNBUFFERED=unbuffered
    )
    assert receiving.stdout is not None
    assert [receiving.stdout.readline() for _ in LINES] == [f"{line}\n" for line in LINES]
    receiving.stdout.close()
    assert receiving.wait(scaled(30)) == Exit.FAILED
    assert receiving.stderr is not None
    assert receiving.stderr.read() == ""
    receiving.stdout = None
    with channel.receiver("me").lines(wait=0) as rest:
        assert int(next(iter(rest))) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_send_that_is_broken_off_goes_on_with_the_same_command(
    shop: Penstock, penstock: Command, start: Start, logs: Path, number: signal.Signals
):
    (logs / "d.bin").write_bytes(os.urandom(6_000_000))
    words = ("files", "send", "logs", "--channel", "access", "--to", "me", "--limit-mb", "2", "--close")
    sending = penstock_at(shop, start, *words)
    channel = shop.files("access")
    eventually(lambda: any(one.bytes > 1_000_000 for one in Inspector(shop).files.channels()))
    sending.send_signal(number)
    _, errors = sending.communicate(timeout=scaled(30))
    assert was_interrupted(sending)
    assert errors.splitlines()[-2:] == ["penstock: run the same command to resume", "penstock: interrupted"]

    receiving = penstock_at(shop, start, "files", "receive", "--channel", "access", "--as", "me")
    code, out, _ = penstock(*words)
    assert code == Exit.OK
    assert "1 file resumed." in out
    assert receiving.wait(scaled(30)) == Exit.OK
    assert channel.info().peak <= 2 * 2**20
    assert Path("access/d.bin").read_bytes() == (logs / "d.bin").read_bytes()


def test_a_receive_that_is_broken_off_hands_its_place_on(shop: Penstock, start: Start, logs: Path):
    shop.files("access").send(logs / "a.log", receivers=["me"])
    words = ("files", "receive", "--channel", "access", "--as", "me")
    first = penstock_at(shop, start, *words)
    eventually(Path("access/a.log").exists)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate(timeout=scaled(30))
    assert was_interrupted(first)
    assert "run the same command to resume" in errors
    second = penstock_at(shop, start, *words)
    shop.files("access").send(logs / "b.log.gz", close=True)
    out, _ = second.communicate(timeout=scaled(30))
    # The first may have been broken off before the server knew that it had saved one.
    assert out.splitlines()[-1] in {"1 file saved in access.", "2 files saved in access."}


def test_a_damaged_file_is_reported_and_the_others_are_sent(shop: Penstock, penstock: Command, logs: Path):
    (logs / "b.log.gz").write_bytes(gzip.compress(b"one\ntwo\n")[:-4])
    code, out, err = penstock("files", "send", "logs", "--channel", "access", "--to", "me", "--lines", "--close")
    assert (code, out) == (Exit.FAILED, "")
    assert err.startswith("penstock: 1 of 3 files were not sent whole: ")
    assert "b.log.gz is damaged" in err
    assert err.count("\n") == 1
    code, out, err = penstock("files", "receive", "--channel", "access", "--as", "me")
    assert (code, out.splitlines()[-1]) == (Exit.FAILED, "2 files saved in access.")
    assert "b.log.gz is damaged" in err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["send", "logs", "--channel", "access"], Exit.FAILED, "no receivers: name some, for example --to agg-1,agg-2"),
        (
            ["send", "gone", "no", "--channel", "access"],
            Exit.USAGE,
            "nothing was sent: gone: No such file or directory; no:",
        ),
        (["send", "--channel", "access"], Exit.USAGE, "name at least one file or folder"),
        (["send", "logs"], Exit.USAGE, "files send needs --channel. See penstock files send --help"),
        (["receive", "--as", "me"], Exit.USAGE, "files receive needs --channel. See penstock files receive --help"),
        (["send", "logs", "--channel", "access", "--limit-mb", "1"], Exit.USAGE, "--limit-mb 1: use 2 or more"),
        (["receive", "--channel", "access", "--as", "you"], Exit.FAILED, "name it in files send --to, or use --join"),
        (["receive", "--channel", "access", "--as", "me", "--lines", "--json"], Exit.USAGE, "--lines prints lines"),
        (["receive", "--channel", "../x", "--as", "me"], Exit.USAGE, "no folder can be named '../x'"),
        (
            ["receive", "--channel", "access", "--as", "me", "--into", "logs/a.log"],
            Exit.USAGE,
            "cannot be used as a folder",
        ),
        (["ls", "acces"], Exit.FAILED, "no channel 'acces' with prefix"),
        (["ls", "b"], Exit.FAILED, "on this server; there is access"),
        (["close", "acces"], Exit.FAILED, "there is access"),
        (["rm", "access"], Exit.USAGE, "nothing was done: add --yes"),
    ],
)
def test_an_impossible_command_is_reported_in_one_line_with_the_fix(
    shop: Penstock, penstock: Command, logs: Path, words: list[str], code: Exit, expected: str
):
    if "send" not in words:
        shop.files("access").open(["me"])
    done = penstock("files", *words)
    assert (done[0], done[1]) == (code, "")
    assert expected in done[2]
    assert done[2].splitlines()[-1].startswith("penstock: ")


def test_channels_are_listed_and_one_is_shown_in_detail(shop: Penstock, penstock: Command, logs: Path):
    assert penstock("files", "ls") == (Exit.OK, "There are no channels.\n", "")
    assert penstock("files", "ls", "x")[2].endswith(" on this server\n")
    odd = shop.files("a}b%\x1b[31m")
    odd.send(logs, receivers=["ada", "bo"])
    code, out, _ = penstock("files", "ls", "--json")
    (one,) = json.loads(out)
    assert (code, one["name"], one["closed"], one["limit"]) == (Exit.OK, odd.name, False, 64 * 2**20)
    assert one["bytes"] == one["peak"] > (logs / "a.log").stat().st_size
    assert [(each["name"], each["state"]) for each in one["receivers"]] == [("ada", "reading"), ("bo", "reading")]
    for words in ((), (odd.name,)):
        code, shown, _ = penstock("files", "ls", *words)
        assert code == Exit.OK
        assert "ada" in shown
        assert "\x1b" not in shown
    odd.close()
    list(odd.receiver("ada").save("saved"))
    assert penstock("files", "rm", odd.name, "bo", "--yes")[:2] == (
        Exit.OK,
        "Removed 1 receiver from a}b%\\x1b[31m.\n",
    )
    assert "over" in penstock("files", "ls")[1]
    assert "has everything" in penstock("files", "ls", odd.name)[1]
    code, _, err = penstock("files", "rm", odd.name, "--yes")
    assert code == Exit.OK
    assert err.endswith(f"{shop.settings.prefix!r}: everything counted in it.\n")
    assert "\x1b" not in err
    assert penstock("files", "ls", "--json")[1] == "[]\n"


def test_a_receiver_joins_and_a_channel_is_closed_by_hand(shop: Penstock, penstock: Command, logs: Path):
    words = ("files", "receive", "--channel", "access", "--as", "late", "--wait", "0", "--join")
    code, out, err = penstock(*words)
    assert (code, out) == (Exit.OK, "0 files saved in access.\n")
    assert err == "penstock: late remains a receiver until `penstock files rm access late`\n"
    assert not Path("access").exists()
    shop.files("access").send(logs)
    assert penstock("files", "close", "access")[:2] == (Exit.OK, "access is closed.\n")
    assert penstock("files", "close", "access")[:2] == (Exit.OK, "access was closed before.\n")
    assert penstock("files", "receive", "--channel", "access", "--as", "late")[0] == Exit.OK


def test_a_receiver_that_joined_and_has_everything_prints_no_note(shop: Penstock, start: Start, logs: Path):
    receiving = penstock_at(
        shop, start, "files", "receive", "--channel", "access", "--as", "late", "--wait", "30", "--join"
    )
    eventually(Inspector(shop).files.channels)
    shop.files("access").send(logs, close=True)
    out, err = receiving.communicate(timeout=scaled(40))
    assert (out.splitlines()[-1], err) == ("3 files saved in access.", "")


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_the_receiver_that_holds_up_the_upload_is_named(shop: Penstock, start: Start, logs: Path, words: list[str]):
    (logs / "d.bin").write_bytes(os.urandom(4_000_000))
    sending = penstock_at(
        shop, start, "files", "send", "logs/d.bin", "--channel", "access", "--to", "ada,bo", "--limit-mb", "2", *words
    )
    channel = shop.files("access")
    eventually(lambda: any(one.bytes > 1_500_000 for one in Inspector(shop).files.channels()))
    assert sending.stderr is not None
    with channel.receiver("ada").blocks(wait=0) as blocks:
        list(blocks)
    line = sending.stderr.readline()
    while "bo" not in line:
        line = sending.stderr.readline()
    assert "full: waiting for bo" in line
    channel.receiver("bo").leave()
    with channel.receiver("ada").blocks(wait=1) as blocks:
        list(blocks)
    assert sending.wait(scaled(30)) == Exit.OK


def test_a_silent_receiver_is_named_with_the_remedies():
    def receiver(name: str, state: str, behind: int) -> ReceiverInfo:
        return ReceiverInfo(name, state, behind, 1000.0, "")

    def held_up_by(*receivers: ReceiverInfo, now: float) -> str:
        return describe_slowest(ChannelInfo("logs", 1, 1, 1, 9, 1, False, None, receivers), now)

    three = [receiver("one", "gone", 9), receiver("two", "reading", 1), receiver("three", "reading", 5)]
    assert held_up_by(*three, now=1005.0) == "three"
    assert held_up_by(*three, now=1600.0) == (
        "three, silent for 10 min: `penstock files rm logs three` removes it, --patience passes it over"
    )
    assert held_up_by(three[0], now=1000.0) == "a receiver"


def test_in_a_fresh_folder_work_starts_a_server_and_a_look_names_how(run: Run, tmp_path: Path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "a").write_text("a")
    looked = run("files", "ls")
    assert looked.returncode == Exit.USAGE
    assert "start one here: penstock server start" in looked.stderr
    try:
        sent = run("files", "send", "a", "--channel", "c", "--to", "me", "--close")
        assert sent.returncode == Exit.OK
        assert sent.stderr.startswith("penstock: no --url and no PENSTOCK_URL: using this folder's own server")
        assert run("files", "receive", "--channel", "c", "--as", "me").stdout.endswith("1 file saved in c.\n")
    finally:
        run("server", "stop")


def test_a_waiting_command_reports_the_reason(shop: Penstock, penstock: Command, start: Start, logs: Path):
    code, out, err = penstock("files", "receive", "--channel", "typo", "--as", "me", "--wait", "0")
    assert (code, out) == (Exit.OK, "0 files saved in typo.\n")
    assert err == "penstock: no channel 'typo' yet: waiting for it (channels here: none)\n"

    channel = shop.files("access")
    channel.send(logs / "a.log", receivers=["me"])
    words = ("files", "receive", "--channel", "access", "--as", "me")
    first = penstock_at(shop, start, *words)
    eventually(lambda: any(one.holder for one in channel.info().receivers))
    (one,) = channel.info().receivers
    errors = penstock(*words, "--wait", "0.1")[2]
    assert errors == f"penstock: {one.holder} receives for me: standing by\n"
    assert penstock("files", "receive", "--channel", "typo", "--as", "me", "--wait", "0")[2].endswith("here: access)\n")
    assert one.holder in penstock("files", "ls", "access")[1]

    first.kill()
    first.wait()
    assert f"{one.holder}, ended" in penstock("files", "ls", "access")[1]
    assert penstock(*words, "--wait", "0.1")[2] == ""


def test_subfolders_are_skipped_and_reported(shop: Penstock, penstock: Command, logs: Path):
    for name in "dxyz":
        (logs / name).mkdir()
    words = ("files", "send", "--channel", "access", "--to", "me")
    code, out, err = penstock(*words, "logs")
    assert (code, out[:12]) == (Exit.OK, "3 files sent")
    assert err == "penstock: 4 subfolders skipped: logs/d, logs/x, logs/y, …\n"
    code, _, err = penstock(*words, "logs/d")
    assert (code, err) == (Exit.USAGE, "penstock: nothing was sent: logs/d contains no file\n")
