"""The constants that Lua and Python share."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.core.scripts import read
from penstock.core.sections import constants
from tests.lua.constants import module, modules

RECORD = """\
record = { FORMAT = 1 }

state = {
  READY = "r",
  RUNNING = "x", -- held by a worker
  ENDED = "\\0end",
}

_class = { FIRST = 97 }
"""


def test_a_module_has_a_text_as_bytes_and_a_number_as_it_is():
    assert module({"record.lua": RECORD, "queue.lua": "turn = { SHARE = 0.5 }\n"}).splitlines()[4:] == [
        "# record, in record.lua",
        "FORMAT: Final = 1",
        "",
        "# state, in record.lua",
        'READY: Final = b"r"',
        'RUNNING: Final = b"x"',
        'ENDED: Final = b"\\x00end"',
        "",
        "# turn, in queue.lua",
        "SHARE: Final = 0.5",
    ]


def test_a_layout_has_offset_and_bytes_of_each_field():
    text = 'claim = layout { number = "I6", flags = "B", tenant = "Bc0", keys = "*" }\n_own = layout { turn = "I6" }\n'
    assert module({"lease.lua": text}).splitlines()[4:] == [
        "# claim, in lease.lua",
        "CLAIM: Final = {",
        '    "number": (0, 6),',
        '    "flags": (6, 1),',
        '    "tenant": (7, 0),',
        "}",
    ]


def test_constants_of_lua_alone_are_left_out():
    assert "FIRST" not in module({"record.lua": RECORD})
    assert module({"record.lua": "_class = { FIRST = 97 }\n"}) == ""


def test_a_name_with_two_values_is_refused():
    with pytest.raises(ValueError, match=r"lease.lua: claim.FORMAT is 2, and elsewhere in this folder 1"):
        module({"record.lua": RECORD, "lease.lua": "claim = { FORMAT = 2 }\n"})


@pytest.mark.parametrize(
    ("path", "text"), [*modules()], ids=lambda part: part.parent.name if isinstance(part, Path) else ""
)
def test_what_is_committed_is_what_the_lua_says(path: Path, text: str):
    assert path.read_text("utf-8") == text, "run `make constants`"


def test_a_state_and_an_ending_never_share_a_letter():
    states, endings = constants_of("jobs/record.lua")["state"], constants_of("jobs/results.lua")["ending"]
    letters = [*states.values(), *endings.values()]
    assert len(letters) == len(set(letters)) == 12


def test_a_mask_leaves_out_the_flags_that_it_names():
    found = constants_of("jobs/record.lua")
    flag, mask = found["flag"], found["_mask"]
    assert mask == {
        "NO_SUSPECT": 255 - flag["SUSPECT"],
        "OF_KEYS": flag["LIMITED"] + flag["UNIQUE"],
        "OF_RUNS": flag["CALL"] + flag["SUSPECT"] + flag["REASON"] + flag["NOTES"],
        "STORED": flag["REASON"] + flag["NOTES"],
        "READ": 255 - found["power"]["OPAQUE"],
    }


def constants_of(name: str) -> Mapping[str, Mapping[str, int]]:
    return constants(name, read(name))  # type: ignore[return-value]
