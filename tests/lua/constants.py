"""`make constants`: what Lua and Python both know is written once, in Lua.

The constants of a folder's .lua files become its constants.py: a text as bytes, as a script's reply has it. Of a layout
it has the offset, from 0, and the bytes of each field. A text, and what is left, have 0 bytes there; the offset of a
text is that of its length. What is behind the first text has no offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.core.sections import constants, layouts

SRC = Path(__file__).parents[2] / "src" / "penstock"


def module(texts: Mapping[str, str]) -> str:
    """The text of constants.py for these .lua files (name -> text); "" if they have no constants.

    ValueError where two tables give one name to two values.
    """
    values: dict[str, object] = {}
    lines: list[str] = []
    for file, text in texts.items():
        for noun, table in constants(file, text).items():
            if noun.startswith("_"):
                continue
            lines += ["", f"# {noun}, in {file}"]
            for name, literal in table.items():
                value = literal.encode() if isinstance(literal, str) else literal
                if values.setdefault(name, value) != value:
                    raise ValueError(
                        f"{file}: {noun}.{name} is {value!r}, and elsewhere in this folder {values[name]!r}"
                    )
                line = f"{name}: Final = {_python(value)}"
                lines += [line] * (line not in lines)
        for layout in layouts(file, text):
            if not layout.noun.startswith("_"):
                offsets = {one.name: (one.at - 1, one.size) for one in layout.fields.values() if one.at}
                rows = [f'    "{name}": {place},' for name, place in offsets.items()]
                lines += ["", f"# {layout.noun}, in {file}", f"{layout.noun.upper()}: Final = {{", *rows, "}"]
    if not lines:
        return ""
    head = '"""Constants that the .lua files of this folder share with Python. `make constants` writes this file."""'
    return "\n".join([head, "", "from typing import Final", *lines, ""])


def _python(value: object) -> str:
    if isinstance(value, bytes):
        return 'b"' + "".join(chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}" for byte in value) + '"'
    return repr(value)


def modules() -> Iterator[tuple[Path, str]]:
    """Each constants.py, and what it has to hold."""
    for folder in sorted({path.parent for path in SRC.rglob("*.lua")}):
        texts = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.lua"))}
        if text := module(texts):
            yield folder / "constants.py", text


if __name__ == "__main__":
    for path, text in modules():
        path.write_text(text, "utf-8")
