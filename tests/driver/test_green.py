"""A process that gevent or eventlet has patched is refused with words, each in a process of its own."""

import importlib.util
import subprocess
import sys

import pytest

PATCHES = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}

USES = (
    "app.lock('x', lease=1).acquire()",
    "app.semaphore('x', limit=1).acquire()",
    "app.queue('q').put(1)",
    "app.job('q:1').result()",
)


def run(*lines: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-W", "ignore", "-c", "\n".join(lines)]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)


@pytest.mark.parametrize("library", PATCHES)
@pytest.mark.parametrize("order", ["patch first", "app first"])
def test_a_patched_process_is_refused_with_words(library: str, order: str):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    imported, app, patch = "from penstock import Penstock", "app = Penstock('valkey://127.0.0.1:1/0')", PATCHES[library]
    lines = [patch, imported] if order == "patch first" else [imported, app, patch]
    tried = [app] if order == "patch first" else USES
    for one in tried:
        lines += ["try:", f"    {one}", "except Exception as error:", "    print(type(error).__name__, error)"]
    done = run(*lines)
    said = done.stdout.splitlines()
    assert (done.returncode, len(said)) == (0, len(tried)), done.stderr
    for line in said:
        assert line.startswith("ConfigurationError Penstock does not work under ")
        assert library in line
        assert "use threads or asyncio" in line


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_library_that_is_only_imported_does_no_harm(library: str):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    done = run(f"import {library}", "from penstock import Penstock", "Penstock('valkey://127.0.0.1:1/0').queue('q')")
    assert done.returncode == 0, done.stderr
