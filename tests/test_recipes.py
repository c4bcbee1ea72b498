"""The pages of recipes: each block runs as it is pasted, in a program of its own, and prints what the page shows.

Further tests show faults of the recipes, as the commands of two clients in an order that can happen.
"""

import gzip
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import valkey

from penstock.testing import TemporaryServer
from tests.speed import scaled

HOWTO = Path(__file__).parents[1] / "docs" / "howto"
PAGES = sorted(HOWTO.glob("recipes*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_WORDS = 1800


class Recipe(NamedTuple):
    """A section of a page: its heading, its program, and what the program prints."""

    heading: str
    program: str
    output: str


def recipes_in(text: str) -> Iterator[Recipe]:
    """Every section has one program, and below it one output. Raises AssertionError for any other section."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        blocks = BLOCK.findall(body)
        assert [kind for kind, _ in blocks] == ["python", "text"], heading
        yield Recipe(heading, blocks[0][1], blocks[1][1])


RECIPES = [recipe for page in PAGES for recipe in recipes_in(page.read_text("utf-8"))]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryServer() as server:
        yield server.address


@pytest.mark.parametrize(("number", "recipe"), [pytest.param(*one, id=one[1].heading) for one in enumerate(RECIPES)])
def test_a_pasted_recipe_prints_what_the_page_shows(number: int, recipe: Recipe, address: str, tmp_path: Path):
    (tmp_path / "recipe.py").write_text(recipe.program, "utf-8")
    environment = {"PENSTOCK_URL": address, "PENSTOCK_PREFIX": f"recipe-{number}", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "recipe.py"],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=scaled(60),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, recipe.output), done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_of_recipes_is_short(page: Path):
    assert len(BLOCK.sub("", page.read_text("utf-8")).split()) <= MOST_WORDS


def test_a_section_without_a_program_or_its_output_is_found():
    program, output = "```python\nprint(1)\n```\n", "```text\n1\n```\n"
    assert list(recipes_in(f"# Page\n\n## One\n\nWords.\n\n{program}\n{output}")) == [("One", "print(1)\n", "1\n")]
    for body in ("Words.\n", program, output + program):
        with pytest.raises(AssertionError, match="One"):
            list(recipes_in(f"# Page\n\n## One\n\n{body}"))


# --- the faults of the recipes ---


@pytest.fixture
def raw(address: str) -> Iterator[Any]:
    with valkey.Valkey.from_url(address, decode_responses=True) as client:
        yield client
        client.flushall()


def test_equal_payloads_are_one_member_and_ties_are_sorted_by_bytes(raw: Any):
    for payload in ("pump", "book", "pump"):
        raw.zadd("orders", {payload: 1})
    assert raw.zrange("orders", 0, -1) == ["book", "pump"]


def test_two_workers_read_the_same_first_member(raw: Any):
    raw.zadd("orders", {"pump": 1})
    assert [raw.zrange("orders", 0, 0) for _worker in range(2)] == [["pump"], ["pump"]]


def test_the_latest_due_job_runs_first(raw: Any):
    for due in ("at nine", "at ten"):
        raw.lpush("calls", due)
    assert raw.lpop("calls") == "at ten"


def test_a_batch_is_removed_unread(raw: Any):
    raw.rpush("acme", "a1", "a2", "a3", "a4")
    batches = [raw.lrange("acme", 0, 1) for _worker in range(2)]
    for _worker in range(2):
        raw.ltrim("acme", 2, -1)
    assert batches == [["a1", "a2"], ["a1", "a2"]]
    assert raw.llen("acme") == 0


def test_the_number_of_a_fair_semaphore_is_older_than_its_rank(raw: Any):
    """The limit is 1."""
    first, second = raw.incr("counter"), raw.incr("counter")
    raw.zadd("owners", {"second": second})
    assert raw.zrank("owners", "second") < 1
    raw.zadd("owners", {"first": first})
    assert raw.zrank("owners", "first") < 1


def test_a_clock_that_is_ahead_empties_a_semaphore_of_time_stamps(raw: Any):
    now, lease = 1000.0, 10.0
    raw.zadd("semaphore", {"a": now, "b": now})
    raw.zremrangebyscore("semaphore", "-inf", now + 11 - lease)
    assert raw.zcard("semaphore") == 0


def test_a_clock_that_is_behind_takes_the_rank_of_a_holder(raw: Any):
    now = 1000.0
    raw.zadd("semaphore", {"a": now, "late": now - 1})
    assert raw.zrank("semaphore", "late") == 0


def test_a_refresh_adds_a_permit_that_was_lost(raw: Any):
    assert raw.zadd("semaphore", {"lost": 1000.0}) == 1
    assert raw.zcard("semaphore") == 1


def test_a_message_that_arrives_while_the_mailbox_is_read_is_deleted(raw: Any):
    raw.rpush("mailbox", "seen")
    seen = raw.lrange("mailbox", 0, -1)
    raw.rpush("mailbox", "unseen")
    raw.delete("mailbox")
    assert seen == ["seen"]
    assert raw.lrange("mailbox", 0, -1) == []


def test_a_member_that_joins_misses_a_message_that_is_sent_meanwhile(raw: Any):
    raw.zadd("seen", {"bo": 0})
    start = int(raw.get("counter") or 0)  # the member that joins pauses here
    raw.zadd("messages", {"hello": raw.incr("counter")})
    raw.zadd("seen", {"bo": 1})  # the only member so far has read it
    raw.zremrangebyscore("messages", "-inf", min(score for _, score in raw.zrange("seen", 0, -1, withscores=True)))
    raw.zadd("seen", {"di": start})
    assert raw.zrange("messages", "(0", "+inf", byscore=True) == []


def test_a_lock_without_time_out_never_ends(raw: Any):
    raw.setnx("invoice:7", "an owner that is killed, also one that was killed before its EXPIRE")
    assert raw.ttl("invoice:7") == -1


def test_of_equal_payloads_the_first_is_deleted(raw: Any):
    raw.rpush("jobs", "x", "y", "x")
    raw.lrem("jobs", 1, "x")
    assert raw.lrange("jobs", 0, -1) == ["y", "x"]


def test_two_receivers_are_above_ten_as_text():
    assert max(b"2", b"10") == b"2"


def test_one_inflater_reads_one_member_and_accepts_half_a_file():
    members = gzip.compress(b"one") + gzip.compress(b"two")
    assert zlib.decompressobj(wbits=31).decompress(members) == b"one"
    noise = os.urandom(10_000)
    half = gzip.compress(noise)[:5_000]
    assert noise.startswith(zlib.decompressobj(wbits=31).decompress(half))


def test_the_second_file_of_a_day_replaces_the_count_of_the_first(raw: Any):
    for count in (5, 6):
        raw.zadd("days", {"2026-03-02": count})
    assert raw.zscore("days", "2026-03-02") == 6
