"""What `penstock dead retry` and `rm` do to dead letters that are in no queue: messages, batches and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.cli.exits import Exit
from penstock.cli.where import Where, confirm
from penstock.ops.inspect import Inspector
from penstock.ops.wording import many
from penstock.terminal.tables import note, show


@dataclass(frozen=True)
class Words:
    """The words of one of the two commands.

    question  in the question before it acts: "This <question>, at <server>."; {} is the number of dead letters
    done      in the report of success: "<id> <done>"
    refused   in the report of an id on which it could not act: "<id> is not <refused>"
    """

    question: str
    done: str
    refused: str


@dataclass(frozen=True)
class DeadKind:
    """One kind of dead letters.

    one, several  the word for one of them, and for several
    open          opens the dead letters of a mailbox, an aggregate or a receiver, by its name. Raises
                  ConfigurationError for a malformed name
    split         splits an id as it was printed into that name and the id. Raises ConfigurationError for a malformed id
    ids           returns the ids of all dead letters that `open` has opened
    """

    one: str
    several: str
    open: Callable[[Inspector, str], Any]
    split: Callable[[str], tuple[str, str]]
    ids: Callable[[Any], Sequence[str]]

    def act(
        self,
        words: Words,
        verb: Callable[[Any], Callable[..., int]],
        ids: Sequence[str],
        all_of: str | None,
        where: Where,
        *,
        yes: bool,
        ask: bool = False,
    ) -> Exit:
        """Apply `verb` to these dead letters, or to all of a name after a confirmation. `ask`: confirm ids, too."""
        with where.open() as inspector:
            if all_of is not None:
                dead = self.open(inspector, all_of)
                present = self.ids(dead)
                self._confirm(inspector, words, len(present), f" of {all_of}", yes=yes)
                show(f"{many(verb(dead)(*present), self.one, self.several)} of {all_of} {words.done}.")
                return Exit.OK
            if ask:
                self._confirm(inspector, words, len(ids), yes=yes)
            failed = False
            for id in ids:
                name, key = self.split(id)
                if verb(self.open(inspector, name))(key):
                    show(f"{id} {words.done}")
                else:
                    failed = True
                    note(f"{id} is not {words.refused}")
            return Exit.FAILED if failed else Exit.OK

    def _confirm(self, inspector: Inspector, words: Words, n: int, of: str = "", *, yes: bool) -> None:
        which = many(n, self.one, self.several) + of
        confirm(f"This {words.question.format(which)}, at {inspector.location}.", yes=yes)
