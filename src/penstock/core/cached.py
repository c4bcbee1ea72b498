"""A property that is computed once for each object, without a lock.

`functools.cached_property` of Python 3.11 has one lock for all objects of a class. If one thread computes the property
while another thread forks, the lock stays locked in the child, and the child hangs at its next use of the property.
Here two threads may compute the same value at once, and one of the two results is kept.
"""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801 (named as in the standard library)
    """Like `functools.cached_property`, but safe in a process whose threads fork."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type[Any] | None = None) -> Self | T:
        if instance is None:
            return self
        value = self.func(instance)
        vars(instance)[str(self.attrname)] = value
        return value
