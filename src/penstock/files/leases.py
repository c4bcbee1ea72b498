"""The leases that receiving processes renew: on a receiver, or on records that they have claimed."""

from __future__ import annotations

from typing import Literal

from penstock.core.operations import RoundTrip
from penstock.core.renewal import PlainLease
from penstock.files.bindings import ChannelBindings
from penstock.messages.bindings import default_on


class ReceiverLease(PlainLease):
    """The lease under which a process owns a receiver, renewed while it works on what it has pulled."""

    def __init__(self, channel: ChannelBindings, receiver: str, token: str, lease: float, asked: float) -> None:
        super().__init__(lease, asked)
        self.token = token
        self._channel = channel
        self._receiver = receiver

    @property
    def extension(self) -> RoundTrip[bool]:
        return self._channel.renew(self._receiver, self.token, self.lease)

    @property
    def give_back(self) -> RoundTrip[bool]:
        return self._channel.give_back(self._receiver, self.token)


class ClaimsLease(PlainLease):
    """The leases of claimed records, renewed together. `claims` may change meanwhile."""

    def __init__(
        self, channel: ChannelBindings, receiver: str, claims: list[bytes], lease: float, asked: float
    ) -> None:
        super().__init__(lease, asked)
        self.claims = claims
        self._channel = channel
        self._receiver = receiver

    @property
    def extension(self) -> RoundTrip[bool]:
        return self._settle("extend")

    @property
    def give_back(self) -> RoundTrip[bool]:
        return self._settle("release")

    def _settle(self, action: Literal["extend", "release"]) -> RoundTrip[bool]:
        """The result is whether this process still has any of the claims."""
        claims = self.claims
        call = self._channel.settle_claims(self._receiver, action, claims, self.lease)
        return default_on(b"NOT_A_MEMBER GONE", call.then(lambda reply: len(reply[1]) < len(claims)), False)
