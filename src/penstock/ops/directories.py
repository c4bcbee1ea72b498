"""Questions about directories of names."""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.operations import Operation, verb
from penstock.ops.answers import DirectoryView
from penstock.ops.probe import instance_names
from penstock.ops.questioner import Questioner


class DirectoryQuestioner(Questioner):
    """Asks about all directories, and opens one of them."""

    def __init__(self, app: Penstock) -> None:
        super().__init__(app)
        self.open = app.directory
        """One directory, to complete names and to change them. No round trip."""

    @verb
    def all(self) -> Operation[list[DirectoryView]]:
        """Every directory, sorted by name.

        One round trip for each 1000 keys of the server, two for each directory, and one for each further shard of it.
        """
        views = []
        for name in (yield from instance_names(self._prefix, "directory")):
            views.append(DirectoryView(name, (yield from self.open(name).current_count())))
        return views
