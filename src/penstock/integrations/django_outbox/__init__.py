"""The outbox and the inbox in a transaction of Django, on the same tables as `penstock.sql`. Needs `penstock[sql]`.

    INSTALLED_APPS = [..., "penstock.integrations.django_outbox"]     # its migration makes the tables

    from penstock.integrations.django_outbox import DjangoOutbox

    outbox = DjangoOutbox(app)

    with transaction.atomic():
        order.save()
        outbox.enqueue(ship.call(order.pk))

With `"OUTBOX": True` in the OPTIONS of a backend, Django's own tasks go this way. Each database needs a relay:
`penstock outbox relay`. docs/howto/django.md has more.

In reading order:

    connection.py         statements of SQLAlchemy on a connection of Django
    outbox.py             `DjangoOutbox`
    migrations/           Django's migration of the tables
"""

from penstock.lazy import LazyNames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from penstock.integrations.django_outbox.outbox import DjangoOutbox

__all__: list[str] = []
_names = LazyNames(__name__, __all__)
__all__ += ["DjangoOutbox"]
_names.are_in("penstock.integrations.django_outbox.outbox")
if not TYPE_CHECKING:
    __getattr__, __dir__ = _names.load, _names.listed
