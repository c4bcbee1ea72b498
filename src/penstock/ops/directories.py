"""Questions about directories of names."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.app import Penstock
from penstock.core.operations import Operation, verb
from penstock.ops.answers import ContactsView, DirectoryView
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

    @verb
    def contacts_names(self) -> Operation[list[str]]:
        """The names of all lists of contacts, such as `user:17`, sorted. One round trip for each 1000 keys."""
        return instance_names(self._prefix, "contacts")

    @verb
    def contacts(self, name: str, prefix: str = "", limit: int = 100) -> Operation[ContactsView]:
        """A list of contacts: those that begin with `prefix`, by the rules with which it was made. It changes nothing.

        One round trip for each 1000 contacts. Raises PenstockError for a list that is empty.
        """
        contacts = self._app.contacts(name)
        everyone = yield from contacts.list.within()
        if not everyone:
            raise self._not_found("contacts", name, (yield from instance_names(self._prefix, "contacts")))
        found = everyone[:limit]
        if prefix:
            found = yield from contacts.complete.within(prefix, limit)
        return ContactsView(name, found, len(everyone))

    @verb
    def remove_contacts(self, name: str, contacts: Sequence[str]) -> Operation[int]:
        """Remove contacts from a list. Returns how many were in it. One round trip for each."""
        removed = 0
        for contact in contacts:
            removed += yield from self._app.contacts(name).remove.within(contact)
        return removed
