"""The error of an integration that is imported where its framework is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(package: str, install: str) -> Iterator[None]:
    """Have imports inside of it raise an ImportError that says what to install, if `package` is missing.

    `install`: what `pip install` takes. Other import errors, such as one inside the package, are passed on.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(
            f"this integration of Penstock needs {package}, which is not installed: pip install {install}",
            name=error.name,
        ) from error
