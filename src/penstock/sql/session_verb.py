"""Methods that take a session of SQLAlchemy, written once for blocking sessions and for those of asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

AnySession: TypeAlias = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any]


class BoundSessionVerb(Generic[P, R_co]):
    """A method of one object: call it with a `Session`, or await its `.aio(...)` with an `AsyncSession`."""

    __slots__ = ("_make", "_name")

    def __init__(self, make: Callable[..., Any], name: str) -> None:
        self._make, self._name = make, name

    def __call__(self, session: Session | scoped_session[Any], /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        result: R_co = self._make(blocking_session(session, self._name), *args, **kwargs)
        return result

    async def aio(
        self, session: AsyncSession | async_scoped_session[Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> R_co:
        """Do the same with an `AsyncSession`."""
        result: R_co = await asyncio_session(session, self._name).run_sync(self._make, *args, **kwargs)
        return result


class session_verb(Generic[S, P, R]):  # noqa: N801 - a decorator reads as a word
    """Decorate a method whose first parameter is a `Session`: it takes an `AsyncSession` as well, by `.aio`."""

    def __init__(self, make: Callable[Concatenate[S, Session, P], R]) -> None:
        self._make = make
        self.__doc__ = make.__doc__
        self.__name__ = make.__name__

    @overload
    def __get__(self, owner: None, kind: type[S]) -> session_verb[S, P, R]: ...
    @overload
    def __get__(self, owner: S, kind: type[S]) -> BoundSessionVerb[P, R]: ...
    def __get__(self, owner: S | None, kind: type[S]) -> session_verb[S, P, R] | BoundSessionVerb[P, R]:
        if owner is None:
            return self
        return BoundSessionVerb(self._make.__get__(owner), self.__name__)


def blocking_session(session: Any, name: str) -> Session:
    if isinstance(session, scoped_session):
        session = session()
    if isinstance(session, Session):
        return session
    if isinstance(session, (AsyncSession, async_scoped_session)):
        raise TypeError(f"{name}() got a session of asyncio: write `await ….{name}.aio(session, …)`")
    raise TypeError(f"{name}() takes a Session of SQLAlchemy, not {type(session).__name__}")


def asyncio_session(session: Any, name: str) -> AsyncSession:
    if isinstance(session, async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        return session
    if isinstance(session, (Session, scoped_session)):
        raise TypeError(f"{name}.aio() got a blocking session: write `{name}(session, …)`")
    raise TypeError(f"{name}.aio() takes an AsyncSession of SQLAlchemy, not {type(session).__name__}")
