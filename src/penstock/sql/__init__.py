"""Jobs and the program's own database: an outbox, an inbox, and their tables. Install `penstock[sql]`.

    from penstock.sql import Outbox

    outbox = Outbox(app, engine)

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.enqueue(session, send_email.call("ada@example.com", subject="Hi"))

In reading order:

    schema.py         the tables, and the states of a row
    migrations.py     the same as steps of a migration
    outbox.py         `Outbox`, which writes rows
    writing.py        calls become rows
    session_verb.py   methods that take blocking sessions and those of asyncio
    after_commit.py   the hook after a commit
    sender.py         enqueues what this process has committed
    rows.py           the statements that read and change rows
    relay.py          sends what was left behind
    delivery.py       sends rows to their queues, and deletes them when that is safe
    inbox.py          effects that happen once
    restores.py       detects that the database was restored to an earlier state
    connecting.py, operating.py
                      the engine for an operator's address; what an operator asks and does
    background.py     work in the background of a program, in a thread or on an event loop
"""

from penstock.lazy import LazyNames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.sql.inbox import Once
    from penstock.sql.migrations import create_tables, drop_tables
    from penstock.sql.outbox import Outbox
    from penstock.sql.rows import Backlog

__all__: list[str] = []
_names = LazyNames(__name__, __all__)
__all__ += ["Outbox"]
_names.are_in("penstock.sql.outbox")
__all__ += ["Once"]
_names.are_in("penstock.sql.inbox")
__all__ += ["create_tables", "drop_tables"]
_names.are_in("penstock.sql.migrations")
__all__ += ["Backlog"]
_names.are_in("penstock.sql.rows")
if not TYPE_CHECKING:
    __getattr__, __dir__ = _names.load, _names.listed
