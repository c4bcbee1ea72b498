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


def test_a_tree_shows_what_waits_for_the_job(shop, last, penstock):
    part = shop.job(json.loads(penstock("job", "tree", last.id, "--json")[1])["predecessors"][0]["id"])
    code, out, err = penstock("job", "tree", part.id)
    assert (code, err) == (Exit.OK, "")
    first, heading, dependent = out.splitlines()
    assert first.startswith("ready  ")
    assert heading == "awaited by 1 job:"
    assert dependent.startswith("  waiting  ")
    assert dependent.endswith(f"{last.id}  (0 of 3 have ended)")
    said = json.loads(penstock("job", "tree", part.id, "--json")[1])
    assert (said["awaited_by"], [one["id"] for one in said["dependents"]]) == (1, [last.id])


def test_a_job_is_shown_with_its_flow_in_both_directions(shop, penstock):
    @shop.task(queue="mail")
    def part(number: int) -> int:
        return number

    job = part.using(after=[part.enqueue(n) for n in range(25)]).enqueue(1)
    for n in range(30):
        part.using(after=job).enqueue(n)
    shown = penstock("job", "show", job.id)[1]
    assert "(0 of 25 have ended)" in shown
    assert f"(6 more; `penstock job tree {job.id}` shows them)" in shown
    assert "awaited by 30 jobs:" in shown
    flow = json.loads(penstock("job", "show", job.id, "--json")[1])["flow"]
    assert (flow["total"], len(flow["predecessors"])) == (25, 19)
    assert (flow["awaited_by"], len(flow["dependents"])) == (30, 19)
    alone = part.enqueue(1)
    assert "flow" not in json.loads(penstock("job", "show", alone.id, "--json")[1])


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
