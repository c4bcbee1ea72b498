"""Both type checkers agree with `api.py`: every mistake marked in it is one, and nothing else is."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CHECKERS = {
    "mypy": ("--strict", str(HERE / "api.py")),
    "basedpyright": ("--project", str(HERE / "pyrightconfig.json"), "--pythonpath", sys.executable),
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_typed_face_is_as_it_should_be(checker: str):
    tool = Path(sys.executable).with_name(checker)
    done = subprocess.run(
        [str(tool), *CHECKERS[checker]], cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
