"""Jobs whose payload is sealed: drafts of them, and their arguments as a worker reads them. See `sealing.py`.

The section SEALED of a record has the id of the key. The payload says it, too, because a script puts results of other
jobs behind it without looking into it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

from penstock import codec, sealing
from penstock.jobs.awaited import RESULTS, with_results
from penstock.jobs.constants import SEALED
from penstock.jobs.record import POWERS_AT, Record, pack_sections, read_sections, with_power
from penstock.settings import Seal, Settings


def encode_limit(settings: Settings) -> int:
    """The most bytes of a payload that is not sealed yet."""
    return settings.max_payload if settings.seal is None else sys.maxsize


def seal_payload(payload: bytes, settings: Settings, what: str) -> tuple[str, bytes]:
    """The id of the key, "" without a codec, and the payload that is sent. Raises SealError and PayloadTooLarge."""
    if settings.seal is None:
        return "", payload
    return codec.sealed(payload, settings.seal, limit=settings.max_payload, what=what)


def new_record(start: bytes, powers: bytes, payload: bytes, settings: Settings, what: str) -> bytes:
    """The record of a new job. If the app has a codec, the payload is sealed, and `what` names it in errors.

    start, powers  the record up to its sections, and the sections
    """
    key, sealed = seal_payload(payload, settings, what)
    if not key:
        return start + powers + payload
    sections = read_sections(start[POWERS_AT], powers)[0] | {SEALED: key.encode()}
    return with_power(start, SEALED) + pack_sections(sections) + sealed


def open_call(record: Record, payload: bytes, seal: Seal | None) -> tuple[bytes, bytes]:
    """The arguments of a claimed call: as its producer made them, and with the results of other jobs in place.

    Raises SealError for arguments or a result that cannot be opened.
    """
    what = f"the call of {record.task}"
    if not record.waits_for_others:
        opened = sealing.open_body(payload, seal, what)
        return opened, opened
    given = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    arrived = given.pop(RESULTS, None)
    sealed = given.get(sealing.NAME)
    sent = payload if sealed is None else sealing.open_body(_object(sealing.NAME, sealed), seal, what)
    if arrived is None:
        return sent, sent
    if sealed is not None:
        given = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
    return sent, with_results(record.indexes_of_results, given, _opened(arrived, seal, what))


def _object(name: str, value: msgspec.Raw) -> bytes:
    return b'{"%b":%b}' % (name.encode(), bytes(value))


def _opened(arrived: msgspec.Raw, seal: Seal | None, what: str) -> Mapping[int, msgspec.Raw]:
    """The results of other jobs, by their indexes."""
    results = msgspec.json.decode(arrived, type=list[tuple[int, msgspec.Raw]])
    where = f"a result of another job, for {what},"
    return {index: msgspec.Raw(sealing.open_body(bytes(one), seal, where)) for index, one in results}
