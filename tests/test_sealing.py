"""The form of a sealed body: what was sealed is opened again, and everything else stays as it is."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import ConfigurationError, Penstock, Settings, codec
from penstock.errors import BadCall, SealError
from penstock.jobs.claims import Failure
from penstock.jobs.constants import LONGEST
from penstock.jobs.notes import encode_line, encode_notes, encode_progress
from penstock.sealing import Sealed, key_of, open_body, open_text, seal_body, seal_text
from tests.seals import MARKER, TestSeal

SEAL = TestSeal("old", "2026-11")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_every_value_is_the_same_after_it_was_sealed_and_opened(value: Any):
    data = codec.encode(value, limit=10**6, what="it", seal=SEAL)
    assert key_of(data) == "2026-11"
    assert codec.decode(data, what="it", seal=SEAL) == codec.readable(data, SEAL) == value
    assert codec.readable(data) == codec.readable(data, TestSeal("old")) == Sealed("2026-11")
    assert msgspec.json.decode(data)["*sealed"][0] == "2026-11"  # scripts may put it where a value may stand


@given(JSON)
def test_what_is_not_sealed_stays_as_it_is(value: Any):
    try:
        data = codec.encode(value, limit=10**6, what="it")
    except BadCall:
        assert isinstance(value, dict)
        assert next(iter(value)) == "*sealed"
        return
    assert open_body(data, SEAL, "it") == data
    assert open_body(data, None, "it") == data


@given(st.text(), st.integers(0, 200))
def test_a_text_that_was_cut_off_is_never_an_error(text: str, length: int):
    assert open_text(seal_text(text, SEAL), SEAL) == text
    cut = seal_text(text, SEAL)[:length]
    assert isinstance(open_text(cut, SEAL), str)
    assert isinstance(open_text(cut, None), str)


@given(st.binary(max_size=300))
def test_damaged_bytes_are_a_seal_error_or_stay_as_they_are(rest: bytes):
    damaged = b'{"*sealed":["2026-11","' + rest
    with pytest.raises(SealError, match="is sealed with key"):
        open_body(damaged, SEAL, "it")
    assert isinstance(codec.readable(damaged, SEAL), Sealed)


@pytest.mark.parametrize("traceback", ["", "  File 'x', line 1\n" * 3, "e" * 50_000, "\ud800 half"])
def test_a_failure_keeps_the_class_of_its_error_and_fits(traceback: str):
    failure = Failure(f"ValueError: {MARKER}", traceback.encode(errors="replace").decode(), "host:1", "v1")
    data = failure.encode(SEAL)
    assert len(data) <= LONGEST
    assert MARKER.encode() not in data
    opened = Failure.read(data, SEAL)
    assert (opened.reason, opened.worker, opened.release) == (failure.reason, "host:1", "v1")
    assert failure.traceback.endswith(opened.traceback)
    shown = Failure.read(data)
    assert (shown.reason, shown.traceback) == ("ValueError (sealed with key 2026-11)", "")
    assert Failure.read(Failure(MARKER).encode(SEAL)).reason == "(sealed with key 2026-11)"


def test_notes_have_a_readable_fraction_only():
    notes = encode_notes(encode_progress(0.5, MARKER), [encode_line(MARKER), encode_line("")], SEAL)
    assert MARKER.encode() not in notes
    assert b"[0.5," in notes


@pytest.mark.parametrize("seal", [object(), "shop.keys:seal", TestSeal, 7])
def test_what_is_no_codec_is_refused_when_the_app_is_made(seal: Any):
    with pytest.raises(ConfigurationError, match="seal="):
        Penstock("unix:///nowhere", settings=Settings(seal=seal))


def test_settings_do_not_show_the_codec():
    assert "TestSeal" not in repr(Settings(seal=SEAL))
    assert hash(Settings(seal=SEAL)) == hash(Settings())


def test_two_seals_of_one_body_differ():
    assert seal_body(b"1", SEAL, "it")[1] != seal_body(b"1", SEAL, "it")[1]
