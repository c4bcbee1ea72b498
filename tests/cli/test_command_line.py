"""`penstock`: the overview, wrong usage, and how errors are reported."""

import os
import re
import subprocess
import sys

import pytest

import penstock
from penstock import Penstock, Rate
from penstock.cli import COMMANDS
from penstock.cli.exits import Exit, exit_for
from penstock.errors import BadCall, ConfigurationError, JobFailed, PenstockError, ServerRefused, ServerUnavailable
from tests.command_line import Command
from tests.speed import scaled


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview_names_every_command(run, words):
    done = run(*words)
    assert done.returncode == Exit.OK
    lines = dict(re.findall(r"^  ([a-z]+)  +(.*(?:\n {6,}.*)*)", done.stdout, re.MULTILINE))
    for command in COMMANDS:
        noun, _, verb = command.name.partition(" ")
        assert (verb or command.summary) in re.sub(r"\s+", " ", lines[noun])
    assert done.stdout.count("\n") <= 50


@pytest.mark.parametrize("command", ["penstock --help", "penstock queue ls --help", "penstock --version"])
def test_a_reader_that_is_gone_is_no_traceback(command):
    program = f"{sys.executable} -m {command}"
    script = f"({program}; echo code=$? >&2) | true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_the_server_may_be_named_before_the_command(run):
    after = run("queue", "ls", "--url", "unix:///does/not/exist", "--prefix", "p")
    for words in (["--url", "unix:///does/not/exist", "--prefix=p"], ["--url=unix:///does/not/exist", "--prefix", "p"]):
        before = run(*words, "queue", "ls")
        assert before.returncode == after.returncode == Exit.SERVER
        # What is said before the error, and the seconds in it, follow from how busy the machine is.
        said = [done.stderr.splitlines()[-1].partition(", tried for ")[0] for done in (before, after)]
        assert said == ["penstock: no server answers at unix:///does/not/exist"] * 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(run, shell):
    done = run("--show-completion", shell)
    assert done.returncode == Exit.OK
    assert all(word in done.stdout for word in ("dead", "mailbox", "cancel-tree", "state"))


def test_completion_is_installed_where_the_shell_finds_it(run, tmp_path):
    done = run("--install-completion", "fish", HOME=str(tmp_path), XDG_CONFIG_HOME="", XDG_DATA_HOME="")
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (done.returncode, str(file) in done.stdout) == (Exit.OK, True)
    for words, said in ((["tcsh"], "'tcsh' is unknown"), (["bash", "zsh"], "one shell"), ([], "$SHELL is not set")):
        refused = run("--install-completion", *words, HOME=str(tmp_path), SHELL="")
        assert (refused.returncode, said in refused.stderr) == (Exit.USAGE, True)


def test_the_version_is_that_of_the_package(run):
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"


def test_the_overview_loads_no_command_line_library():
    script = "import sys; from penstock.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"cyclopts", "rich", "penstock.cli.worker"}.isdisjoint(done.stdout.split())


def test_a_worker_loads_no_command_line_library_unless_its_words_are_wrong():
    script = """if True:
        import sys
        from penstock.cli import main
        main(["worker", "nowhere:app", "-c", "2", "--queues", "a,b", "--processes", "0"])
        print(*sys.modules)
        assert main(["worker", "nowhere:app", "--nonsense"]) == 2
        assert main(["worker", "--help"]) == 0
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules, *help_lines = done.stdout.splitlines()
    assert {"cyclopts", "rich"}.isdisjoint(modules.split())
    assert any("--stop-timeout" in line for line in help_lines)
    assert "See penstock worker --help" in done.stderr


def test_a_command_explains_itself_in_a_process_of_its_own(run):
    done = run("queue", "ls", "--help")
    assert done.returncode == Exit.OK
    assert done.stdout.startswith("Usage: penstock queue ls")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("wroker",), 'Did you mean "worker"'),
        (("job", "ls", "--stat", "x"), "Did you mean --state? See penstock job ls --help"),
        (("worker",), "APP"),
        (("worker", "tasks", "--concurency", "3"), "--concurency"),
        (("worker", "tasks", "-c", "many"), "many"),
        (("worker", "tasks", "--log-format", "xml"), "xml"),
        (("demo", "no-such.log"), "no-such.log"),
        (("demo", "--jobs", "0"), "--jobs"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(run, words, expected):
    done = run(*words)
    assert done.returncode == Exit.USAGE
    assert done.stdout == ""
    assert done.stderr.startswith("penstock: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("dead", "ls", "mail"), ("dead", "ls", "mail", "--json")])
def test_who_reads_no_further_is_no_reason_for_a_traceback(start, server, words):
    with Penstock(server.address, prefix=f"pipe{os.getpid()}") as app:
        app.queue("mail").put_many(["x" * 1000] * 300)
        for item in app.queue("mail").claim(300):
            item.fail("it broke " * 100)
        process = start(*words, "--limit", "1000", PENSTOCK_URL=server.address, PENSTOCK_PREFIX=app.settings.prefix)
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(scaled(30)) == Exit.FAILED
        assert process.stderr.read() == ""
        process.stdout = None
        app.queue("mail").dead.remove(*(letter.id for letter in app.queue("mail").dead.list(1000)))


def test_an_error_has_a_traceback_only_for_who_debugs(run):
    plain, debug, variable = (
        run("worker", "nowhere"),
        run("worker", "nowhere", "--debug"),
        run("worker", "nowhere", PENSTOCK_DEBUG="1"),
    )
    assert plain.stderr.count("\n") == 1
    assert "Traceback" in debug.stderr
    assert "Traceback" in variable.stderr
    assert {plain.returncode, debug.returncode, variable.returncode} == {Exit.USAGE}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError(), Exit.USAGE),
        (BadCall(), Exit.USAGE),
        (ServerUnavailable(), Exit.SERVER),
        (ServerRefused(), Exit.SERVER),
        (JobFailed(""), Exit.FAILED),
        (PenstockError(), Exit.FAILED),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exit_for(error) == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("job output", "job output needs ID. See penstock job output --help"),
        ("doctor keys queues", "doctor takes no further 'queues'. See penstock doctor --help"),
        ("queue weigh mail --tenant acme", "queue weigh needs --weight. See penstock queue weigh --help"),
        ("job ls --limit", "--limit needs a value. See penstock job ls --help"),
        ("job ls --limit x", "--limit x: give a whole number. See penstock job ls --help"),
        ("job ls --limit 0", "--limit 0: give at least 1. See penstock job ls --help"),
        ("top --interval x", "--interval x: give a number. See penstock top --help"),
        ("semaphore limit market x", "LIMIT x: give a whole number. See penstock semaphore limit --help"),
        ("queue bound mail --jobs 0", "--jobs 0: give at least 1. See penstock queue bound --help"),
        ("queue split mail --shards 99", "--shards 99: give at most 32. See penstock queue split --help"),
        ("queue hold-limit mail crm --for 5", "--for '5': use a number and a unit, as in 90s, 15m, 12h, 7d or 2w. See"),
        ("queue hold-limit mail crm --until noon", "--until noon: give a date, such as 2026-03-01T07:00:00+01:00. See"),
        ("queue hold-limit mail crm --for 5s", "queue mail has no rate 'crm', and only a rate can be held"),
        ("tenants ls", "there is no command 'tenants': `penstock queue show QUEUE --tenants 50` lists them"),
        ("--url", "--url: give a value and a command after it"),
        ("--url redis://x", "--url: give a command after it"),
        ("--prefix=x", "--prefix: give a command after it"),
    ],
)
def test_a_wrong_command_is_answered_in_words_of_the_command_line(
    penstock: Command, shop: Penstock, words: str, said: str
):
    shop.queue("mail").put(1)
    code, out, err = penstock(*words.split())
    assert (code, out) == (Exit.USAGE, "")
    assert err.startswith(f"penstock: {said}"), err


def test_a_hold_of_more_than_a_year_is_refused(penstock: Command, shop: Penstock):
    @shop.task(queue="mail", limit=Rate(5, per=60, name="crm"))
    def send() -> None: ...

    send.enqueue()
    code, _, err = penstock("queue", "hold-limit", "mail", "crm", "--for", "900w")
    assert code == Exit.USAGE
    assert err == "penstock: --for: name a time in the future, by the server's clock, and at most a year from now\n"
