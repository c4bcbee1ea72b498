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


def complete(shop: Penstock, result: object = 1) -> None:
    """Complete all jobs that are ready."""
    for item in shop.queue("mail").claim(10):
        item.complete(result)


def test_the_flow_of_a_job_that_has_ended_is_shown_in_both_directions(shop: Penstock, penstock):
    @shop.task(queue="mail")
    def part(number: int) -> int:
        return number

    @shop.task(queue="mail")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @shop.task(queue="mail")
    def report() -> None: ...

    parts = [part.using(id=f"part-{n}").enqueue(n) for n in range(2)]
    summed = total.using(id="total", after=parts).enqueue([])
    report.using(id="report", after=[summed], result_ttl=0).enqueue()
    complete(shop)
    tree = penstock("job", "tree", parts[0].id)[1].splitlines()
    assert tree == [
        "completed  part  mail:part-0",
        "awaited by 1 job:",
        "  ready  total  mail:total  (2 of 2 have ended)",
        "    waiting  report  mail:report  (0 of 1 have ended)",
    ]
    complete(shop)
    complete(shop)
    assert penstock("job", "tree", parts[0].id)[1].splitlines() == [
        "completed  part  mail:part-0",
        "awaited by 1 job:",
        "  completed  total  mail:total  (2 of 2 have ended)",
        "    completed  report  mail:report  (1 of 1 have ended)",
    ]
    assert penstock("job", "tree", summed.id)[1].splitlines() == [
        "completed  total  mail:total  (2 of 2 have ended)",
        "  completed  part  mail:part-0",
        "  completed  part  mail:part-1",
        "awaited by 1 job:",
        "  completed  report  mail:report  (1 of 1 have ended)",
    ]
    assert "awaited by 1 job:" in penstock("job", "show", parts[1].id)[1]
    (said,) = json.loads(penstock("job", "show", parts[1].id, "--json")[1])["flow"]["dependents"]
    assert (said["id"], said["status"], said["task"]) == ("mail:total", "completed", "total")


def test_a_job_of_a_flow_whose_row_is_gone_says_so(shop: Penstock, penstock):
    @shop.task(queue="mail")
    def part() -> None: ...

    first = part.using(id="first").enqueue()
    second = part.using(id="second", after=[first]).enqueue()
    complete(shop)
    shop.queue("mail").keep(finished=0, results=0)
    shop.queue("other").put(1)
    shop.queue("mail").put(1)
    for item in shop.queue("mail").claim(2):
        item.retry(0)
    assert penstock("job", "tree", second.id)[1].splitlines() == [
        "ready  part  mail:second  (1 of 1 have ended)",
        "  unknown  mail:first  (it has ended, and its row is gone)",
    ]
    code, _, err = penstock("job", "tree", first.id)
    assert (code, "its row is gone" in err) == (Exit.FAILED, True)


def test_a_result_that_is_gone_is_not_shown_as_null(shop: Penstock, penstock):
    for key in ("kept", "gone"):
        shop.queue("mail").put(1, id=key, result_ttl=0 if key == "gone" else 3600)
    complete(shop, None)
    assert "result    null\n" in penstock("job", "show", "mail:kept")[1]
    assert "result    (not kept any longer)\n" in penstock("job", "show", "mail:gone")[1]
