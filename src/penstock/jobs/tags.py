"""Tags, such as `order:17`: people find a job by them. Its record has them, and every list can be filtered by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.core.arguments import is_text, shown
from penstock.errors import BadCall, ConfigurationError
from penstock.jobs.key_template import KeyTemplate

MOST_TAGS: Final = 8
LONGEST_TAG: Final = 64
"""Bytes of UTF-8."""

TAG_RULE: Final = f"a tag has 1 to {LONGEST_TAG} bytes of printable text"


def is_tag(tag: Any) -> bool:
    return is_text(tag, 1, LONGEST_TAG) and tag.isprintable()


def check_tags(what: str, tags: Any) -> tuple[str, ...]:
    """The tags without repetitions. Raises ValueError for anything but a few short texts."""
    if not isinstance(tags, list | tuple):
        raise ValueError(f'{what}={shown(tags)}: a list of texts, such as ["order:17"]')
    for tag in tags:
        if not is_tag(tag):
            raise ValueError(f"{what}: {shown(tag)}: {TAG_RULE}")
    if len(set(tags)) > MOST_TAGS:
        raise ValueError(f"{what}: {len(set(tags))} tags; a job has at most {MOST_TAGS}")
    return tuple(dict.fromkeys(tags))


class TaskTags:
    """The tags of a task's jobs: templates such as `order:{order}`, as those of a unique key.

    Raises ConfigurationError for a template that names no argument of the task, and for more than eight.
    """

    def __init__(self, task: str, given: Any, parameters: Sequence[str]) -> None:
        if not isinstance(given, list | tuple):
            raise ConfigurationError(f'task {task}: tags={shown(given)}: a list of texts, such as ["order:{{order}}"]')
        if len(given) > MOST_TAGS:
            raise ConfigurationError(f"task {task}: {len(given)} tags; a job has at most {MOST_TAGS}")
        self._task = task
        self._templates = [KeyTemplate(f"task {task}: tags", text, parameters) for text in given]
        for template in self._templates:
            if not template.fields and not is_tag(template.text):
                raise ConfigurationError(f"task {task}: tags: {shown(template.text)}: {TAG_RULE}")

    def __len__(self) -> int:
        return len(self._templates)

    def fill(self, value_of: Callable[[str], Any], tenant: str) -> list[str]:
        """The tags of one call. Raises BadCall for one that is too long. `value_of`: the argument of this name."""
        tags = [template.fill(value_of, tenant) for template in self._templates]
        for tag in tags:
            if not is_tag(tag):
                raise BadCall(f"task {self._task}: tags: {shown(tag)}: {TAG_RULE}; use a digest of a long value")
        return tags


def pack_tags(tags: Sequence[str]) -> bytes:
    """The section of a record that has these tags (`record.lua`)."""
    encoded = (tag.encode() for tag in dict.fromkeys(tags))
    return b"".join(bytes([len(tag)]) + tag for tag in encoded)


def read_tags(packed: bytes) -> tuple[str, ...]:
    """The tags in such a section."""
    found, at = [], 0
    while at < len(packed):
        end = at + 1 + packed[at]
        found.append(packed[at + 1 : end].decode(errors="replace"))
        at = end
    return tuple(found)
