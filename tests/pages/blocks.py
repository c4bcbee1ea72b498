"""The Python blocks of a page, and running one as a reader would who pastes it into a file.

```python                 a whole program: it ends by itself, with exit code 0
```output                 directly behind it: what it prints. `…` stands for any text. Without it, it prints nothing
```python title="a.py"    a file of a larger program, which a test of its own runs: it only has to compile
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROGRAM = re.compile(
    r"^(?P<indent> *)```python(?P<title> [^\n]*)?\n(?P<source>.*?)^(?P=indent)``` *$"
    r"(?:\n+(?P=indent)```output\n(?P<output>.*?)^(?P=indent)``` *$)?",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of a page; `title` is "" for a program."""

    page: Path
    line: int
    title: str
    source: str
    output: str


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for found in PROGRAM.finditer(text):
        source, output = (textwrap.dedent(found[name] or "") for name in ("source", "output"))
        yield Block(page, text.count("\n", 0, found.start()) + 1, (found["title"] or "").strip(), source, output)


def is_as_shown(printed: str, shown: str) -> bool:
    pattern = r"[^\n]*".join(re.escape(part) for part in shown.split("…"))
    return re.fullmatch(pattern, printed) is not None


def run(block: Block, folder: Path, address: str, prefix: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run it in a folder of its own, on the server at this address."""
    (folder / "program.py").write_text(block.source, "utf-8")
    own = {"PENSTOCK_URL": address, "PENSTOCK_PREFIX": prefix, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
