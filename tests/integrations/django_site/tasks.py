"""The tasks of the project. Django 6 has the decorator in its own package, and older ones in the backport."""

from __future__ import annotations

import asyncio
from typing import Any

from django.db import connection

from penstock.integrations.django import PenstockBackend, app_of

task: Any = PenstockBackend._django.task


@task(queue_name="mail", priority=50)
def greet(name: str, *, greeting: str = "hello") -> dict[str, Any]:
    return {"text": f"{greeting} {name}", "letters": (1, 2)}


@task
async def greet_later(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


@task(takes_context=True)
def attempts(context: Any, factor: int) -> int:
    return factor * int(context.attempt)


@task
def fail(text: str) -> None:
    raise LookupError(text)


@task(backend="retrying")
def fail_twice() -> None:
    raise OSError("no answer")


@task
def rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from orders")
        return int(cursor.fetchone()[0])


@app_of().task(queue="mail", schedule="0 7 * * mon-fri", timezone="Europe/Berlin")
def remind() -> None:
    greet.enqueue("ada")
