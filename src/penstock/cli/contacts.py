"""`penstock contacts …`: the names that users used last or most often."""

from __future__ import annotations

from penstock.cli.exits import Exit
from penstock.cli.where import HERE, AsJson, Limit, Where, Yes, confirm
from penstock.errors import ConfigurationError
from penstock.ops.wording import many
from penstock.terminal.tables import headings, show, show_json, show_list


def ls(*, where: Where = HERE, as_json: AsJson = False) -> None:
    """List the names of all lists of contacts.

    Reads the names of all keys of the server once, in slices: some seconds for many millions.

    Parameters
    ----------
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        names = inspector.directories.contacts_names()
    show_list(
        names, headings("contacts:name"), ((name,) for name in names), none="There are no contacts.", as_json=as_json
    )


def show_one(
    name: str, prefix: str = "", /, *, limit: Limit = 100, where: Where = HERE, as_json: AsJson = False
) -> None:
    """Show the contacts of one list, in the order in which they are offered.

    Parameters
    ----------
    name
        The list, such as user:17.
    prefix
        Only contacts that begin with this text, by the rules with which the list was made.
    limit
        The most contacts to show.
    as_json
        Print one JSON document.
    """
    with where.open() as inspector:
        found = inspector.directories.contacts(name, prefix, limit)
    if as_json:
        return show_json(found)
    lines = [(contact,) for contact in found.contacts]
    return show_list(lines, headings("contact:text"), lines, none="No contact begins with this text.", as_json=False)


def rm(name: str, /, *contacts: str, yes: Yes = False, where: Where = HERE) -> Exit:
    """Remove contacts from a list. Exit code 1 if none of them was in it.

    Parameters
    ----------
    name
        The list, such as user:17.
    contacts
        The contacts, as they are shown.
    yes
        Do not ask; required unless at a terminal.
    """
    if not contacts:
        raise ConfigurationError("name the contacts to remove, as `penstock contacts show` prints them")
    with where.open() as inspector:
        confirm(f"This removes {many(len(contacts), 'contact')} from {name}, at {inspector.location}.", yes=yes)
        removed = inspector.directories.remove_contacts(name, contacts)
    show(f"{many(removed, 'contact')} removed.")
    return Exit.OK if removed else Exit.FAILED
