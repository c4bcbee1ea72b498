"""The command line, `penstock noun verb`: a table of commands, each loaded when it runs.

The overview is printed from that table without cyclopts and rich, whose import alone takes 250 ms of CPU.

The modules of this folder, in reading order:

    exits.py              exit codes
    loading.py            loads the app that a command names
    where.py              options that most commands share
    app_outline.py        what a supervisor knows of the app, which it does not import
    worker.py, reload.py, workers.py
                          `penstock worker`, its `--reload`, and `worker ls`
    metrics.py            serves the metrics of a worker
    metrics_page.py       serves those of the queues, without a worker
    limits.py             the limits of a queue
    top.py, top_screen.py
                          queues, tenants and workers, live in a terminal
    history.py            what a queue did in the last hour or day
    tasks.py              what each task did lately
    queue.py, job.py, job_tree.py, dead.py
                          queues, jobs and dead letters
    job_enqueue.py        enqueues a call of a task
    job_output.py, job_log.py
                          the output and the log of a job, also while it runs
    job_filter.py, job_list.py, job_actions.py
                          jobs that match a filter
    plain_worker.py, parameter.py
                          `penstock worker` without cyclopts
    dead_kinds.py         retries and removes dead letters that are in no queue
    dead_messages.py      the dead letters of mailboxes
    dead_files.py         the same for files that a receiver could not save
    dead_batches.py       the batches that an aggregate could not count
    ages.py               ages as people type them
    job_outcomes.py       what became of jobs that a command acted on
    schedule.py           schedules
    lock.py, directory.py, contacts.py, mailbox.py, chat.py
                          locks, directories, contacts, mailboxes and chats
    breaking.py           takes from processes what they hold
    coordination.py       semaphores, rate limits, read-write locks, elections, latches and barriers, from one table
    outbox.py, sql.py     calls that wait in a database, and its tables
    dashboard.py          serves the dashboard
    usage_errors.py       says what is wrong with a command
    help_text.py          the form of the help of a command
    completion.py         completion of commands by the shell
    owners.py             how commands name the processes that hold something
    channels.py           the channels of files
    files.py, upload_view.py, download_view.py
                          files, and the progress of uploads and downloads
    server.py, doctor.py  the folder's server, and the doctor
    demo.py, bench.py     the demo and the benchmark
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.exits import Exit, exit_for
from penstock.errors import ConfigurationError, PenstockError
from penstock.worker.standard_streams import open_closed_streams, print_any_text

if TYPE_CHECKING:
    from cyclopts import App


class Command(NamedTuple):
    name: str
    target: str
    summary: str


COMMANDS = (
    Command("demo", "penstock.cli.demo:demo", "see it work: count a web access log while one client floods the queue"),
    Command("bench", "penstock.cli.bench:bench", "measure what each operation costs, compared with bare round trips"),
    Command("worker", "penstock.cli.worker:worker", "run the jobs of an app's queues"),
    Command("worker ls", "penstock.cli.workers:ls", "list the workers of each queue"),
    Command("worker show", "penstock.cli.job_list:show_worker", "show one worker and the jobs that it runs"),
    Command("worker quiet", "penstock.cli.workers:quiet", "ask workers to claim no more jobs"),
    Command("worker stop", "penstock.cli.workers:stop", "ask workers to stop when their jobs have finished"),
    Command("task ls", "penstock.cli.tasks:ls", "list tasks: how many jobs ended, how long they waited and ran"),
    Command("queue ls", "penstock.cli.queue:ls", "list the queues and their jobs by state"),
    Command("queue show", "penstock.cli.queue:show_one", "show one queue: counts, totals, tenants"),
    Command("top", "penstock.cli.top:top", "show queues, tenants and workers live"),
    Command("queue history", "penstock.cli.history:history", "show what a queue did in the last hour or day"),
    Command("queue pause", "penstock.cli.queue:pause", "stop handing out jobs"),
    Command("queue resume", "penstock.cli.queue:resume", "hand out jobs again"),
    Command("queue limits", "penstock.cli.limits:ls", "list the limits of a queue and their parked jobs"),
    Command("queue limit", "penstock.cli.limits:change", "change the numbers of a limit"),
    Command("queue hold-limit", "penstock.cli.limits:hold", "close one key of a rate for a while, or open it"),
    Command("queue weigh", "penstock.cli.queue:weigh", "serve one tenant more or less often than others"),
    Command("queue spread", "penstock.cli.queue:spread", "spread one tenant over several shards"),
    Command("queue split", "penstock.cli.queue:split", "give a queue more shards, each in a cluster slot of its own"),
    Command("queue keep", "penstock.cli.queue:keep", "limit what is kept of jobs that have ended"),
    Command("queue bound", "penstock.cli.queue:bound", "refuse jobs beyond a number of unfinished ones"),
    Command("queue order", "penstock.cli.queue:order", "choose in which order jobs are handed out"),
    Command("queue purge", "penstock.cli.queue:purge", "cancel all waiting jobs"),
    Command("queue rm", "penstock.cli.queue:rm", "remove an empty queue"),
    Command("job ls", "penstock.cli.job_list:ls", "list jobs by state, task, tenant, worker, id or age"),
    Command("job show", "penstock.cli.job:show_one", "show everything known about a job"),
    Command("job output", "penstock.cli.job_output:output", "print what a job emits"),
    Command("job log", "penstock.cli.job_log:log", "print what a job logs"),
    Command("job enqueue", "penstock.cli.job_enqueue:enqueue", "enqueue a call of a task"),
    Command("job why", "penstock.cli.job:why", "say why a job does not run"),
    Command("job tree", "penstock.cli.job_tree:tree", "show a job with the jobs that it waits for"),
    Command("job cancel-tree", "penstock.cli.job_tree:cancel_tree", "cancel a job with the jobs that it waits for"),
    Command("job cancel", "penstock.cli.job_actions:cancel", "cancel jobs, by id or by filter"),
    Command("job signal", "penstock.cli.job:signal", "send a job a signal that it waits for"),
    Command("job promote", "penstock.cli.job:promote", "make delayed jobs ready now"),
    Command("job edit", "penstock.cli.job:edit", "change when waiting jobs are due, or their priority"),
    Command("job retry", "penstock.cli.job_actions:retry", "run dead letters again, by id or by filter"),
    Command("job run-again", "penstock.cli.job_actions:run_again", "run ended jobs again, as new ones"),
    Command("job rm", "penstock.cli.job_actions:rm", "delete dead letters, by id or by filter"),
    Command("job move", "penstock.cli.job_actions:move", "move jobs to another queue, by id or by filter"),
    Command("dead ls", "penstock.cli.dead:ls", "list the dead letters of a queue or mailbox"),
    Command("dead groups", "penstock.cli.dead:groups", "group the dead letters of a queue by task and error"),
    Command("dead show", "penstock.cli.dead:show_one", "show one dead letter with its traceback"),
    Command("dead retry", "penstock.cli.dead:retry", "run dead letters again, some or all"),
    Command("dead rm", "penstock.cli.dead:rm", "delete dead letters, some or all"),
    Command("schedule ls", "penstock.cli.schedule:ls", "list the schedules with their next ticks"),
    Command("schedule show", "penstock.cli.schedule:show_one", "show one schedule and its last ten runs"),
    Command("schedule add", "penstock.cli.schedule:add", "enqueue a task again and again"),
    Command("schedule run", "penstock.cli.schedule:run", "enqueue the job of a schedule now"),
    Command("schedule pause", "penstock.cli.schedule:pause", "enqueue nothing for a schedule until it is resumed"),
    Command("schedule resume", "penstock.cli.schedule:resume", "continue a schedule with its next tick"),
    Command("schedule rm", "penstock.cli.schedule:rm", "remove schedules"),
    Command("mailbox ls", "penstock.cli.mailbox:ls", "list the mailboxes with their unread and claimed messages"),
    Command("mailbox show", "penstock.cli.mailbox:show_one", "show one mailbox"),
    Command("mailbox unread", "penstock.cli.mailbox:unread", "mark a message, and all after it, as unread"),
    Command("chat ls", "penstock.cli.chat:ls", "list the chats, each with its reader that is furthest behind"),
    Command("chat show", "penstock.cli.chat:show_one", "show one chat: its messages and who has read them"),
    Command("chat unread", "penstock.cli.chat:unread", "mark a message, and all after it, as unread for a member"),
    Command("directory ls", "penstock.cli.directory:ls", "list the directories and how many names they have"),
    Command("directory import", "penstock.cli.directory:import_", "add the names of a file, with a progress bar"),
    Command("directory add", "penstock.cli.directory:add", "add one name, or give an id a new name"),
    Command("directory rename", "penstock.cli.directory:rename", "change the name of an id"),
    Command("directory bump", "penstock.cli.directory:bump", "add to the weight of an id"),
    Command("directory rm", "penstock.cli.directory:rm", "remove names, some or all"),
    Command("directory complete", "penstock.cli.directory:complete", "list the names with a prefix"),
    Command("directory top", "penstock.cli.directory:top", "list the heaviest names with a prefix"),
    Command("directory get", "penstock.cli.directory:get", "show the name of an id"),
    Command("directory count", "penstock.cli.directory:count", "count the names with a prefix"),
    Command("contacts ls", "penstock.cli.contacts:ls", "list the lists of contacts"),
    Command("contacts show", "penstock.cli.contacts:show_one", "show the contacts of one list"),
    Command("contacts rm", "penstock.cli.contacts:rm", "remove contacts from a list"),
    Command("files send", "penstock.cli.files:send", "send files, or their lines, to every receiver"),
    Command("files receive", "penstock.cli.files:receive", "save files, or print their lines"),
    Command("files ls", "penstock.cli.channels:ls", "list the channels, or show one"),
    Command("files close", "penstock.cli.channels:close", "close a channel: receivers end when they have everything"),
    Command("files rm", "penstock.cli.channels:rm", "delete a channel, or remove receivers from it"),
    Command(
        "logs count", "penstock.cli.logs.command:count", "count the requests in access logs by day, country and host"
    ),
    Command("lock ls", "penstock.cli.lock:ls", "list the locks with their owners and waiters"),
    Command("lock break", "penstock.cli.breaking:break_locks", "take locks from their owners"),
    Command("semaphore ls", "penstock.cli.coordination:list_semaphores", "list the semaphores that are in use"),
    Command("semaphore show", "penstock.cli.coordination:show_semaphore", "show one with its holders and waiters"),
    Command(
        "semaphore limit", "penstock.cli.coordination:limit_semaphore", "store a limit that replaces all programs' own"
    ),
    Command("semaphore break", "penstock.cli.breaking:break_semaphores", "take permits from their holders"),
    Command("ratelimit ls", "penstock.cli.coordination:list_rate_limits", "list the rate limits that are in use"),
    Command(
        "ratelimit show", "penstock.cli.coordination:show_rate_limit", "show one and the requests that wait for it"
    ),
    Command("ratelimit reset", "penstock.cli.coordination:reset_rate_limit", "forget the units that were used"),
    Command("rwlock ls", "penstock.cli.coordination:list_locks", "list the read-write locks that are held"),
    Command("rwlock show", "penstock.cli.coordination:show_lock", "show one with its writer, readers and waiters"),
    Command("rwlock break", "penstock.cli.breaking:break_read_write_locks", "take them from the writer or the readers"),
    Command("election ls", "penstock.cli.coordination:list_elections", "list the elections with their leaders"),
    Command("election show", "penstock.cli.coordination:show_election", "show one with its leader and candidates"),
    Command("election break", "penstock.cli.breaking:break_elections", "take the leadership from leaders"),
    Command(
        "latch ls", "penstock.cli.coordination:list_latches", "list the latches and how much is left to be counted down"
    ),
    Command("latch show", "penstock.cli.coordination:show_latch", "show one latch"),
    Command("latch open", "penstock.cli.coordination:open_latch", "let those that wait continue"),
    Command("barrier ls", "penstock.cli.coordination:list_barriers", "list the barriers and how many parties wait"),
    Command("barrier show", "penstock.cli.coordination:show_barrier", "show one with the parties that wait"),
    Command("barrier break", "penstock.cli.coordination:break_barrier", "break the meeting of those that wait"),
    Command("dashboard", "penstock.cli.dashboard:dashboard", "serve pages that show all of this, live"),
    Command("outbox relay", "penstock.cli.outbox:relay", "send calls that programs have left in their database"),
    Command("outbox ls", "penstock.cli.outbox:ls", "list the calls that wait in a database"),
    Command("outbox retry", "penstock.cli.outbox:retry", "send calls that are held, some or all"),
    Command("outbox rm", "penstock.cli.outbox:rm", "delete calls that are held, some or all"),
    Command("sql schema", "penstock.cli.sql:schema", "print the tables that an outbox needs in a database"),
    Command("metrics", "penstock.cli.metrics_page:metrics", "serve the metrics of the queues for Prometheus"),
    Command("server start", "penstock.cli.server:start", "start this folder's own server and keep it running"),
    Command("server stop", "penstock.cli.server:stop", "stop this folder's own server"),
    Command("server status", "penstock.cli.server:status", "show this folder's own server"),
    Command("server forget", "penstock.cli.server:forget", "delete this folder's own server with its data"),
    Command("doctor", "penstock.cli.doctor:doctor", "check the server's health"),
)

_VERBS_OF_WORKER = {command.name for command in COMMANDS if command.name.startswith("worker ")}

WITHOUT_CYCLOPTS = "penstock.cli.plain_worker"
"""Runs `penstock worker` without cyclopts, which is missing or not needed."""

HELP = ("help", "--help", "-h")
VERSION = ("version", "--version", "-V")
WHERE = ("--url", "--prefix", "--app")
COMPLETION = ("--install-completion", "--show-completion")
DEBUG = "PENSTOCK_DEBUG"
RELOADED = "PENSTOCK_RELOADED"
"""Marks a process that a reloader has started: it must not reload itself."""

_LOGIN = re.compile(r"://[^\s]*@")
_PASSWORD = re.compile(r"([?&](?:sentinel_)?password=)[^\s&'\"]+")

_ARGUMENT = re.compile(r"^\w+\((\w+)=((?:[^,()]|'[^']*')*)\): ")


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (see `exits.py`)."""
    open_closed_streams()
    print_any_text()
    words = list(sys.argv[1:] if words is None else words)
    if "--debug" in words:
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        code = _run(_options_last(words))
        sys.stdout.flush()  # here, so that a reader that is gone is noticed before the interpreter ends
        return code
    except PenstockError as error:
        return _failed(error)
    except BrokenPipeError:  # the reader has seen enough, as in `| head`; print nothing more, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    except KeyboardInterrupt:
        print("penstock: interrupted", file=sys.stderr)
        return Exit.INTERRUPTED


def _options_last(words: list[str]) -> list[str]:
    """The words with the options that select the server after the command, where its own options are."""
    moved: list[str] = []
    while words and words[0].partition("=")[0] in WHERE:
        n = 1 if "=" in words[0] else 2
        if len(words) <= n:
            option = words[0].partition("=")[0]
            raise ConfigurationError(f"{option}: give {'a value and ' if n > len(words) else ''}a command after it")
        moved, words = [*moved, *words[:n]], words[n:]
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *moved, *words[at:]]


def _run(words: list[str]) -> int:
    if not words or words[0] in HELP:
        print(overview())
        return Exit.OK
    if words[0] in VERSION:
        print(f"penstock {version()}")
        return Exit.OK
    # Other verbs of this noun are commands of their own, such as `worker ls`.
    is_worker = words[0] == "worker" and " ".join(words[:2]) not in _VERBS_OF_WORKER
    if is_worker and (code := _run_plain_worker(words[1:])) is not None:
        return code
    try:
        from cyclopts import App, CycloptsError, Group

        from penstock.cli.help_text import HelpText
    except ModuleNotFoundError as error:
        if is_worker:
            return int(import_module(WITHOUT_CYCLOPTS).run_worker(words[1:]))
        print(f"penstock: the command line needs more packages ({error}): install penstock[cli]", file=sys.stderr)
        return Exit.USAGE
    # Errors are caught here, to be reported in one line like all others.
    app = App(
        name="penstock",
        help_flags=HELP[1:],
        version_flags=(),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        group_parameters=Group("Options", sort_key=1),
        help_formatter=HelpText(),
    )
    completes = words[0] in COMPLETION
    nouns: dict[str, App] = {}
    for command in COMMANDS:
        first, _, verb = command.name.partition(" ")
        if first not in nouns:
            nouns[first] = App(name=first)
            app.command(nouns[first])
        if completes or first == words[0]:
            _add(nouns[first], verb, command.target)
    try:
        if completes:
            return int(import_module("penstock.cli.completion").complete(app, words))
        return int(app(words) or Exit.OK)
    except CycloptsError as error:
        from penstock.cli.usage_errors import usage_error

        print(
            f"penstock: {_without_secrets(usage_error(error))} "
            f"See {' '.join(['penstock', *_matching(words), '--help'])}",
            file=sys.stderr,
        )
        return Exit.USAGE


def _run_plain_worker(words: list[str]) -> int | None:
    """Run `penstock worker` without cyclopts. None if these words are for cyclopts, which explains what is wrong."""
    plain = import_module(WITHOUT_CYCLOPTS)
    try:
        return int(plain.run_worker(words, quiet=True))
    except plain.Refused:
        for name in (WITHOUT_CYCLOPTS, "penstock.cli.worker", "penstock.cli.parameter"):
            sys.modules.pop(name, None)  # they have been imported without cyclopts
        return None


def _matching(words: list[str]) -> list[str]:
    """The leading words that match a command, or the beginning of several."""
    names = [command.name.split() for command in COMMANDS]
    return next((words[:n] for n in (2, 1) if words[:n] in [name[:n] for name in names]), [])


def _add(noun: App, verb: str, target: str) -> None:
    """Load a command. A command without a verb is run by the noun alone."""
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)
    if verb:
        noun.command(function, name=verb)
    else:
        noun.default(function)


def _failed(error: PenstockError) -> int:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exception(error)
    print(f"penstock: {_without_secrets(_as_option(str(error)))}", file=sys.stderr)
    return exit_for(error)


def _without_secrets(text: str) -> str:
    """The text, which may repeat what was typed, without the user and the password of an address in it."""
    return _PASSWORD.sub(r"\1…", _LOGIN.sub("://…@", text))


def _as_option(message: str) -> str:
    """A message about one argument of a function, in words of the command line: `--state 'x': …`."""
    return _ARGUMENT.sub(lambda found: f"--{found[1].replace('_', '-')} {found[2]}: ", message, count=1)


def overview() -> str:
    """The output of `penstock --help`: a line for each noun with its verbs, so that it fits a screen."""
    verbs: dict[str, list[str]] = {}
    for command in COMMANDS:
        noun, _, verb = command.name.partition(" ")
        verbs.setdefault(noun, [])
        verbs[noun] += [verb] if verb else []
    alone = {command.name: command.summary for command in COMMANDS if " " not in command.name}
    width = max(map(len, verbs)) + 2
    lines = []
    for noun, names in verbs.items():
        text = "; ".join(filter(None, [alone.get(noun, ""), ", ".join(names)]))
        lines += wrap(text, 80, initial_indent=f"  {noun:{width}}", subsequent_indent=" " * (width + 2))
    commands = "\n".join(lines)
    return f"""\
Usage: penstock COMMAND

Reliable, fair jobs and more on one Valkey or Redis server.

Commands:
{commands}

  penstock NOUN --help         say what each verb of a noun does
  penstock NOUN VERB --help    show its arguments
  --url, --prefix, --app       before or after the command: the server, and the app on it
  --install-completion         complete commands in bash, zsh or fish (--show-completion prints it)
  --version                    show the version of Penstock
  --debug                      with any command: show the traceback of an error (also PENSTOCK_DEBUG=1)

Settings: command line > PENSTOCK_* > [tool.penstock] in pyproject.toml > default. Server: PENSTOCK_URL.
Exit codes: 0 done, 1 the work failed, 2 wrong usage or settings, 3 no server, 130 interrupted."""


def version() -> str:
    """The version of the package, which is loaded already. Importing it here would be an upward import."""
    return str(sys.modules["penstock"].__version__)
