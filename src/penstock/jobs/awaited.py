"""Results of other jobs as arguments of a job that waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec


class AwaitedResult:
    """Stands for the result of a job, as an argument of a job that waits for it. "": see `RESULT`.

    Not a dataclass, because msgspec would encode that as an argument like any other.
    """

    __slots__ = ("job_id", "key")

    def __init__(self, job_id: str = "", key: str = "") -> None:
        self.job_id = job_id
        self.key = key


RESULTS: Final = "*results"
"""The name under which scripts add arrived results to the arguments of a call: pairs of an index and a result."""

RESULT: Any = AwaitedResult()
"""As an argument: the result of the job before; after a group or `after=[…]`, the list of their results."""


def stands_for_results(value: Any) -> bool:
    """Whether an argument stands for results: an AwaitedResult, or a list or tuple of nothing else."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(one, AwaitedResult) for one in value)
    return isinstance(value, AwaitedResult)


def with_results(
    indexes_of_results: Mapping[str, int | list[int]], given: Mapping[str, msgspec.Raw], by_index: Mapping[int, Any]
) -> bytes:
    """The arguments of a job that waited for others, with their results in place."""
    arguments: dict[str, Any] = dict(given)
    missing = msgspec.Raw(b"null")
    for name, indexes in indexes_of_results.items():
        if isinstance(indexes, int):
            arguments[name] = by_index.get(indexes, missing)
            continue
        is_range = len(indexes) == 2 and indexes[1] < 0
        chosen = range(indexes[0], indexes[0] - indexes[1]) if is_range else indexes
        arguments[name] = [by_index.get(index, missing) for index in chosen]
    return msgspec.json.encode(arguments)
