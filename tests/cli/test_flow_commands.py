"""`penstock job tree` and `penstock job cancel-tree`."""

import json

import pytest

from penstock import RESULT, Job, Penstock
from penstock.cli.exits import Exit


@pytest.fixture
def last(shop: Penstock) -> Job[int]:
    """The last job of a flow: three parts in a queue, and their sum."""

    @shop.task(queue="mail")
    def part(number: int) -> int:
        return number

    @shop.task(queue="mail")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return part.map(range(3)).then(total.call(RESULT)).enqueue()


def test_a_tree_is_shown_with_indents(last, penstock):
    code, out, err = penstock("job", "tree", last.id)
    assert (code, err) == (Exit.OK, "")
    first, *parts = out.splitlines()
    assert first.startswith("waiting  ")
    assert first.endswith(f"{last.id}  (0 of 3 have ended)")
    assert len(parts) == 3
    assert all(line.startswith("  ready  ") and "part" in line for line in parts)


def test_a_tree_with_a_limit_counts_the_jobs_that_it_hides(last, penstock):
    assert penstock("job", "tree", last.id, "--limit", "2")[1].splitlines()[-1] == "  (2 more; --limit shows them)"


def test_a_tree_is_one_json_document(last, penstock):
    said = json.loads(penstock("job", "tree", last.id, "--json")[1])
    assert (said["id"], said["status"], said["total"], said["left"]) == (last.id, "waiting", 3, 3)
    assert [one["status"] for one in said["predecessors"]] == ["ready"] * 3


def test_a_tree_with_a_dead_letter_says_so(shop, last, penstock):
    items = shop.queue("mail").claim(1)
    items[0].fail("it broke")
    first, *parts = penstock("job", "tree", last.id)[1].splitlines()
    assert first.startswith("blocked  ")
    assert "1 dead letter)" in first
    assert parts[0].startswith("  dead  ")


def test_a_flow_is_cancelled_only_if_that_is_confirmed(shop, last, penstock):
    code, _, err = penstock("job", "cancel-tree", last.id)
    assert code != Exit.OK
    assert "--yes" in err
    assert shop.queue("mail").count().dependent == 1
    code, out, _ = penstock("job", "cancel-tree", last.id, "--yes")
    assert (code, out) == (Exit.OK, "cancelled 4 jobs, or asked them to end\n")
    counts = shop.queue("mail").count()
    assert (counts.ready, counts.dependent, counts.cancelled) == (0, 0, 4)


def test_a_job_that_is_not_there_has_no_tree(shop, penstock):
    shop.queue("mail").put(1)
    for words in (("tree", "mail:none"), ("cancel-tree", "mail:none", "--yes")):
        code, out, err = penstock("job", *words)
        assert code != Exit.OK
        assert out == ""
        assert "mail:none" in err
