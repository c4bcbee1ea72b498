"""What the search of the site finds first. The theme makes an index of all sections; `arrange` writes it anew.

The theme compares titles, then texts, by how early and how close together the words of the query are, and leaves equals
in the order of the index. So the index begins with what users read first, and sections that users look for by other
words than those of their heading have a title of their own in the list of results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ORDER = ("", "quickstart", "guide", "howto", "reference", "guarantees", "zh", "tour", "changelog")
"""Folders and pages, the first ones first."""

LEFT_OUT = ("decisions/", "reference/help/")
"""Pages for the makers, and the help of the commands, which the pages of the commands repeat."""

# The location of a section, and its title among the results.
TITLES = {
    "guide/failures/#when-a-task-fails": "Retry, dead letter: when a task fails",
    "guide/failures/#jobs-that-kill-their-worker": "Jobs that kill their worker (crash, kill -9)",
    "guide/order/#order": "Priority, tenants and order",
    "guide/order/#limits": "Rate limit and concurrency limit of a task",
    "guide/locks/#a-lock": "Lock: timeout, lease and owner",
    "guide/shards/": "Cluster: one queue over several nodes",
    "guide/schedules/#schedules": "Cron and other schedules",
    "howto/operate/#dead-letters": "Dead letters: list, retry, remove",
}

SEPARATOR = r"""[\s\-_,:;!?=\[\](){}<>|\\"'`’‘“”…/]+|\.(?!\d)"""
"""Between two words. The theme keeps quotation marks, so that `'mail'` would be another word than `mail`."""

# What a title of these pages begins with among the results, where guides have the same words.
PREFIXES = {"reference/api/": "API: ", "reference/cli": "CLI: "}


def rank(location: str) -> int:
    if location.startswith("reference/api/"):
        return len(ORDER)
    place = location.partition("#")[0].partition("/")[0]
    return ORDER.index(place) if place in ORDER else len(ORDER)


def arranged(index: dict[str, Any]) -> dict[str, Any]:
    """The index in our order and with our titles. Raises ValueError for a title of a section that does not exist."""
    items = [dict(item) for item in index["items"] if not item["location"].startswith(LEFT_OUT)]
    if lost := TITLES.keys() - {item["location"] for item in items}:
        raise ValueError(f"tests/pages/search.py has titles of sections that do not exist: {', '.join(sorted(lost))}")
    for item in items:
        location = item["location"]
        prefix = next((prefix for start, prefix in PREFIXES.items() if location.startswith(start)), "")
        item["title"] = TITLES.get(location) or prefix + item["title"]
    # With Chinese among the languages, Chinese texts are cut into words; otherwise a sentence is one word.
    config = {**index["config"], "lang": ["en", "zh"], "separator": SEPARATOR}
    return {**index, "config": config, "items": sorted(items, key=lambda item: rank(item["location"]))}


def arrange(site: Path) -> None:
    path = site / "search.json"
    index = arranged(json.loads(path.read_text("utf-8")))
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), "utf-8")
