"""Questions about directories of names."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.completion.directory import Directory
from penstock.core.operations import Operation, verb
from penstock.ops.answers import DirectoryView
from penstock.ops.probe import instance_names
from penstock.ops.questioner import Questioner


class DirectoryQuestioner(Questioner):
    """Asks about all directories, and opens one of them."""

    @verb
    def all(self) -> Operation[list[DirectoryView]]:
        """Every directory, sorted by name.

        One round trip for each 1000 keys of the server, two for each directory, and one for each further shard of it.
        """
        views = []
        for name in (yield from instance_names(self._prefix, "directory")):
            views.append(DirectoryView(name, (yield from self.open(name).current_count())))
        return views

    def open(
        self,
        name: str,
        *,
        accents: bool | None = None,
        words: bool | None = None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
        apostrophes: bool | None = None,
        initials: bool | None = None,
        shards: int | None = None,
    ) -> Directory:
        """One directory, to complete names and to change them, as `app.directory` returns it. No round trip."""
        return self._app.directory(
            name,
            accents=accents,
            words=words,
            equivalents=equivalents,
            pinyin=pinyin,
            apostrophes=apostrophes,
            initials=initials,
            shards=shards,
        )
