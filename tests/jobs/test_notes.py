"""What running jobs report: the script side. Reports are fenced as settlements are, and a repeated turn counts once."""

from typing import Any

from penstock.jobs.claims import Settlement
from penstock.jobs.job import info_of
from penstock.jobs.notes import encode_line, encode_notes, encode_progress
from tests.jobs.stand import Stand, record


def notes(*lines: str, progress: float | None = None) -> bytes:
    encoded = b"" if progress is None else encode_progress(progress, "")
    return encode_notes(encoded, [encode_line(line) for line in lines])


def lines_of(stand: Stand, job_id: str) -> list[str]:
    return [line.text for line in info_of(job_id, stand.run(stand.bindings.show(job_id))).log]


def claim(stand: Stand, incarnation: str, number: int = 1, **options):
    return stand.run(stand.bindings.turn(incarnation, number, lease=10, want=1, **options))


def test_a_repeated_turn_appends_its_lines_once(stand: Stand):
    stand.run(stand.bindings.enqueue(["a", record()]))
    (held,) = claim(stand, "w").claims
    for _ in range(2):
        claim(stand, "w", 2, notes=[(held.token, notes("one", progress=0.5))])
    assert lines_of(stand, "a") == ["one"]


def test_a_job_that_is_held_no_longer_takes_no_lines(stand: Stand):
    stand.run(stand.bindings.enqueue(["a", record()]))
    (held,) = claim(stand, "w").claims
    stand.clock.now_ms += 11_000
    (again,) = claim(stand, "v").claims
    assert not claim(stand, "w", 2, notes=[(held.token, notes("late"))]).alive
    claim(stand, "v", 2, notes=[(held.token, notes("late")), (again.token, notes("in time"))])
    assert lines_of(stand, "a") == ["in time"]


def test_lines_in_the_turn_that_settles_the_job_are_kept_with_its_result(stand: Stand):
    stand.run(stand.bindings.enqueue(["a", record(), "b", record()]))
    held = stand.run(stand.bindings.turn("w", 1, lease=10, want=2)).claims
    claim(
        stand,
        "w",
        2,
        notes=[(one.token, notes(f"last of {one.id}", progress=1)) for one in held],
        settlements=[Settlement(held[0].token, b'"result"'), Settlement(held[1].token, b"{}", "retry", 60)],
    )
    assert lines_of(stand, "a") == ["last of a"]
    assert lines_of(stand, "b") == ["last of b"]
    done = info_of("a", stand.run(stand.bindings.show("a")))
    assert (done.result, done.progress and done.progress.fraction) == ("result", 1.0)
    assert stand.run(stand.bindings.cancel(["a", "b", "b"])) == ["done", "cancelled", "cancelled"]
    assert lines_of(stand, "b") == ["last of b"]
    assert not [name for name in stand.dump() if name.endswith("notes")]


def calls(stand: Stand, call: Any) -> int:
    """How many commands a script calls."""

    def total() -> int:
        return sum(one["calls"] for one in stand.client.info("commandstats").values())

    before = total()
    stand.run(call)
    return total() - before - 1


def test_a_job_that_reports_nothing_costs_no_command(stand: Stand):
    stand.put("a", "b", "c", "d")
    (quiet,) = claim(stand, "w").claims
    (loud,) = claim(stand, "w", 2).claims
    claim(stand, "other")  # the last job of a queue costs fewer commands
    claim(stand, "w", 3, notes=[(loud.token, notes("x"))])  # and another job: the last one of a worker costs one more
    costs = [
        calls(stand, stand.bindings.turn("w", n, lease=10, want=0, settlements=[Settlement(one.token)]))
        for n, one in ((4, quiet), (5, loud))
    ]
    assert costs[1] - costs[0] == 5, "the notes are read and removed, also steps, children and output"
