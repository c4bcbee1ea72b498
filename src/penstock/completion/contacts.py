"""The contacts of a user: the names used last, or most often, completed as the user types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, TypeVar

from penstock.completion.bindings import ContactsBindings, ContactsRules
from penstock.completion.fold import NEWEST_FOLD, Typed, begins, check_name
from penstock.completion.keys import CompletionKeys
from penstock.completion.name_rules import NameCollection, checked
from penstock.completion.spelling import encode_equivalents, require_pinyin
from penstock.core.arguments import check_whole
from penstock.core.keys import check_label
from penstock.core.operations import Driver, Operation, verb

T = TypeVar("T")

ContactOrder: TypeAlias = Literal["recency", "frequency"]
Names: TypeAlias = list[str]

MAX_CONTACTS = 10_000
"""The highest `limit` of one user. A search reads a thousand contacts in a round trip."""


CONTACTS_PER_PAGE = 1000
"""How many contacts one round trip reads."""


class Contacts(NameCollection[ContactsRules]):
    """The last `limit` names that a user used, each once. Made by `app.contacts(name)`, which sends nothing."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        prefix: str,
        *,
        limit: int = 100,
        by: ContactOrder | None,
        accents: bool | None,
        equivalents: Mapping[str, str] | None = None,
        pinyin: bool | None = None,
    ) -> None:
        self.name = check_label("contacts", name)
        check_whole("contacts", "limit", limit, 1, MAX_CONTACTS, f"from 1 to {MAX_CONTACTS:,}")
        if by not in {None, "recency", "frequency"}:
            raise ValueError(f"contacts(by={by!r}): 'recency' or 'frequency'")
        if pinyin:
            require_pinyin()
        table = None if equivalents is None else encode_equivalents(equivalents)
        chosen = {"by": by, "accents": accents, "equivalents": table, "pinyin": pinyin}
        super().__init__(f"contacts {name}", ContactsRules(fold=NEWEST_FOLD), chosen)
        self.limit = limit
        self._driver = driver
        self._keys = CompletionKeys(prefix, "contacts", name)
        self._bindings = ContactsBindings(self._keys, self._rules)

    def __repr__(self) -> str:
        return f"<Contacts {self.name}>"

    def _with_bindings(self, work: Callable[[ContactsBindings], Operation[T]]) -> Operation[T]:
        def with_rules(rules: ContactsRules) -> Operation[T]:
            if self._bindings.rules is not rules:
                self._bindings = ContactsBindings(self._keys, rules)
            return work(self._bindings)

        return self._with_rules(with_rules)

    @verb
    def touch(self, name: str) -> Operation[None]:
        """Record a use of this contact: it moves to the front, or its count rises. If there are more than `limit`
        contacts then, the one at the end is removed.

        Two names are the same contact only if their texts are equal. Raises BadName. One round trip; a call that the
        driver sends again counts once.
        """
        check_name(name, "contact")
        return self._with_bindings(lambda bindings: checked(bindings.touch(name, self.limit)))

    @verb
    def remove(self, name: str) -> Operation[bool]:
        """Remove a contact. False if it was not there. Raises BadName. One round trip."""
        check_name(name, "contact")
        return self._with_bindings(lambda bindings: checked(bindings.remove(name)))

    @verb
    def complete(self, prefix: str, limit: int = 10) -> Operation[Names]:
        """The names that begin with `prefix`: the one used last comes first, or with `by="frequency"` the one used most
        (of equal ones, the one used last).

        By default, `e` finds `é`, but `é` does not find `e`; the guide has all rules of matching.
        Raises BadName; ValueError for a limit that is not 1 to 1000. One round trip for each 1000 contacts read.
        """
        check_whole("complete", "limit", limit, 1, 1000, "from 1 to 1000")
        return self._matching(prefix, limit)

    @verb
    def list(self) -> Operation[Names]:
        """All contacts, in the order of `complete`. One round trip for each 1000."""
        return self._matching("", MAX_CONTACTS)

    def _matching(self, prefix: str, limit: int) -> Operation[Names]:
        def matching(bindings: ContactsBindings) -> Operation[Names]:
            spelling = bindings.rules.spelling
            typed = Typed(prefix, spelling.fold)
            is_long = bool(typed.long_texts)  # the server compares only its beginning
            found: dict[str, None] = {}  # a contact that is touched between two pages may be in both
            offset = 0
            while offset >= 0 and len(found) < limit:
                most = CONTACTS_PER_PAGE if is_long else limit - len(found)
                offset, names = yield from checked(bindings.page(typed.fold, offset, most))
                if is_long:
                    names = [name for name in names if any(begins(text, typed.fold) for text in spelling.texts(name))]
                found.update(dict.fromkeys(names))
            return [*found][:limit]

        return self._with_bindings(matching)
