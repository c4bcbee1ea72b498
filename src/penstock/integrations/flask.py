"""Flask: each job runs in an application context, so that tasks use `current_app`, the database session and `g`.

    # shop/__init__.py
    def create_app() -> Flask: ...

    # shop/jobs.py
    app = Penstock(middleware=[FlaskContext("shop:create_app")])

Views enqueue as any other code does; they need nothing from this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from typing import TypeAlias

from penstock.errors import ConfigurationError
from penstock.integrations.requirements import needs
from penstock.jobs.middleware import JobContext, Middleware

with needs("flask", "flask"):
    from flask import Flask

__all__ = ["FlaskContext"]

Source: TypeAlias = Flask | Callable[[], Flask] | str


class FlaskContext(Middleware):
    """Runs each job inside the application context of a Flask application. When the context ends, Flask cleans up as it
    does after a request: it closes, for example, the session of Flask-SQLAlchemy.

    source  the Flask application, a function that creates it, or the location of either as "module:name"

    A process that runs jobs imports or creates the application once, for its first job. So does the process of an
    isolated run. A process that only enqueues does neither, so there is no circular import. A job in a process where
    the application cannot be created fails with ConfigurationError, and is retried as its task says.
    """

    def __init__(self, source: Source) -> None:
        if not isinstance(source, (Flask, str)) and not callable(source):
            raise ConfigurationError(f"FlaskContext({source!r}): give a Flask application, a function, or module:name")
        self._source = source
        self._flask: Flask | None = None
        self._lock = threading.Lock()

    def execute(self, job: JobContext) -> Iterator[None]:
        with self.flask.app_context():
            yield

    @property
    def flask(self) -> Flask:
        """The application, created now if this is its first use."""
        if self._flask is None:
            with self._lock:
                if self._flask is None:
                    self._flask = self._create()
        return self._flask

    def _create(self) -> Flask:
        found = _imported(self._source) if isinstance(self._source, str) else self._source
        if not isinstance(found, Flask) and callable(found):
            found = found()
        if not isinstance(found, Flask):
            raise ConfigurationError(
                f"FlaskContext({self._source!r}) leads to a {type(found).__name__}, not to a Flask application"
            )
        return found


def _imported(path: str) -> object:
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, (name or "app").split("."), import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"FlaskContext({path!r}): {error}; write it as module:name") from error
