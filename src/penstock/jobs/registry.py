"""The tasks of one app, by name."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import ConfigurationError, UnknownTask
from penstock.jobs.definition import Definition

MOST_NAMED = 20
"""Tasks that a message about an unknown one names."""


class Registry:
    """The tasks by name.

    A task is named like its function unless `name=` says otherwise, so that moving a module breaks no queue.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, Definition] = {}
        self._encoded: dict[bytes, Definition] = {}

    def add(self, definition: Definition) -> None:
        """Register a task. Raises ConfigurationError if another function has this name."""
        known = self._tasks.get(definition.name)
        _ = definition._execution  # now: a later reload changes the module
        if known is not None and not known.is_replaced_by(definition):
            where = f"{known.location} and {definition.location}"
            if known.location == definition.location:
                where = f"both made at {known.location}; a decorator needs functools.wraps"
            raise ConfigurationError(f"two tasks are named {definition.name!r} ({where}): give one a name=…")
        self._check_queue(definition)
        encoded = definition.name.encode(errors="backslashreplace")
        self._tasks[definition.name] = self._encoded[encoded] = definition

    def _check_queue(self, definition: Definition) -> None:
        """A task with batch=… lets the server collect the jobs of its whole queue."""
        for other in self:
            if other.queue == definition.queue and other.name != definition.name and (other.batch or definition.batch):
                batch, rest = (other, definition) if other.batch else (definition, other)
                raise ConfigurationError(
                    f"task {batch.name} has batch=… and shares queue {batch.queue!r} with task {rest.name}: give it a "
                    f"queue of its own, such as queue={batch.name!r}"
                )

    def get(self, name: str) -> Definition | None:
        """The task of this name; None if it is unknown."""
        return self._tasks.get(name)

    def get_encoded(self, name: bytes) -> Definition | None:
        """The task of this name, as a record has it; None if it is unknown."""
        return self._encoded.get(name)

    def find(self, name: str) -> Definition:
        """The task of this name. Raises UnknownTask, which suggests a similar name."""
        found = self._tasks.get(name)
        if found is None:
            raise UnknownTask(f"no task is named {name!r}; {self.hint(name)}")
        return found

    def hint(self, name: str) -> str:
        """A hint for an unknown name: a similar name, or some of the names that are known."""
        import difflib  # imported here, because most programs never need it

        if near := difflib.get_close_matches(name, self._tasks, n=1):
            return f"did you mean {near[0]!r}?"
        names = sorted(self._tasks)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"known are: {', '.join(names[:MOST_NAMED]) or 'none'}{more}"

    def __iter__(self) -> Iterator[Definition]:
        return iter(self._tasks.values())

    def queues(self) -> tuple[str, ...]:
        """The queues that have a task, in the order of definition."""
        return tuple(dict.fromkeys(task.queue for task in self))
