"""`make lua`: every .lua file is valid Lua 5.1, and no script has an unknown global or a name it does not use.

luac reads the files. luacheck reads what the cutter makes of them: each script as the server gets it, and each function
on its own, below the names that it states under `--- uses:`. So a function that uses a name without stating it has an
unknown global, and one that states a name without using it has an unused variable.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.core import scripts
from penstock.core.sections import Section, link

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "penstock"

# The globals that the Lua of every supported server has: Redis 7.0 has neither `os` nor `server`.
GLOBALS = [
    "KEYS",
    "ARGV",
    "redis",
    "cjson",
    "cmsgpack",
    "setmetatable",
    "struct",
    "bit",
    "string",
    "table",
    "math",
    "tonumber",
    "tostring",
    "type",
    "pairs",
    "ipairs",
    "next",
    "unpack",
    "select",
    "error",
    "pcall",
]
OPTIONS = [
    "--std",
    "none",
    "--read-globals",
    *GLOBALS,
    "--ignore",
    "431",
    "581",  # a parameter may be named as an argument of the script is; `not` of an inline function
    "--no-unused-secondaries",  # a function's second result cannot be had without the first
    "--no-max-line-length",
    "--no-config",
    "--no-color",
    "--codes",
    "--formatter=plain",
]


def libraries() -> Iterator[tuple[str, ...]]:
    """The file names in each `Library("core/batch.lua", …)` of Penstock."""
    seen = set()
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "Library(" in text else ():
            match node:
                case ast.Call(func=ast.Name(id="Library"), args=[ast.Constant(), *_] as args):
                    names = tuple(str(ast.literal_eval(arg)) for arg in args)
                    if names not in seen:
                        seen.add(names)
                        yield names


def chunks(texts: Mapping[str, str]) -> dict[str, str]:
    """The input of luacheck: name -> text, for each script and each function of these files."""
    functions = link(texts).functions
    alone = {f"function {name}": _alone(function, functions) for name, function in functions.items()}
    # A key may be declared only so that a moving slot refuses the script.
    return alone | {
        f"script {name}": re.sub(r"(= KEYS\[\d+\])$", r"\1 -- luacheck: ignore 211", script.source, flags=re.MULTILINE)
        for name, script in scripts.cut(texts).items()
    }


def _alone(function: Section, functions: Mapping[str, Section]) -> str:
    lines = [f"local {', '.join(function.uses)} = unpack(KEYS)"] if function.uses else []
    lines.append("local F = {}")
    for name in functions:
        if name in function.calls:
            called = functions[name]
            lines.append(f"function F.{called.flat_name}(...) return {', '.join([*called.uses, '...'])} end")
    return "\n".join([*lines, function.as_field, "return F"])


def faults(texts: Mapping[str, str]) -> list[str]:
    """The findings of luacheck, each with its line."""
    found = set()
    with tempfile.TemporaryDirectory() as folder:
        written = {str(Path(folder, f"{n}.lua")): chunk for n, chunk in enumerate(chunks(texts).items())}
        for path, (_, text) in written.items():
            Path(path).write_text(text, "utf-8")
        checked = subprocess.run(["luacheck", *OPTIONS, *written], capture_output=True, text=True, check=False)
        if checked.returncode not in {0, 1, 2}:
            raise RuntimeError(checked.stdout + checked.stderr)
        for line in checked.stdout.splitlines():
            path, number, _, what = line.split(":", 3)
            name, text = written[path]
            found.add(f"{name}: {what.strip()}: {text.splitlines()[int(number) - 1]}")
    return sorted(found)


def invalid(*paths: Path) -> str:
    """The errors of luac for these files, or ""."""
    luac = shutil.which("luac5.1") or "luac"
    return subprocess.run([luac, "-p", *paths], capture_output=True, text=True, check=False).stderr.strip()


def missing() -> list[str]:
    """The programs that are not installed."""
    present = {"luac": shutil.which("luac5.1") or shutil.which("luac"), "luacheck": shutil.which("luacheck")}
    return [name for name, path in present.items() if path is None]


def main() -> int:
    if lacking := missing():
        print(f"the Lua was not checked: there is no {' and no '.join(lacking)} (Debian: lua5.1 and lua-check)")
        return 0
    if what := invalid(*sorted(SRC.rglob("*.lua"))):
        print(what)
        return 1
    found = [f"{names[-1]}: {fault}" for names in libraries() for fault in faults({n: scripts.read(n) for n in names})]
    print("\n".join(found) or "the Lua is fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
