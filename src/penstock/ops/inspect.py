"""The inspector: what the command line, the dashboard and tests use to query a server, and to act on it.

A queue, a job or a directory has methods for questions about itself. The inspector has the questions that involve
several of them, or the server, and opens one of them for an operator. All answers are frozen dataclasses.
"""

from __future__ import annotations

from penstock.app import Penstock
from penstock.core.operations import Driver, Operation, verb
from penstock.ops.checks.result import CheckResult
from penstock.ops.coordination import CoordinationQuestioner
from penstock.ops.directories import DirectoryQuestioner
from penstock.ops.doctor import diagnose, prove_locks
from penstock.ops.files import FileQuestioner
from penstock.ops.health import HealthQuestioner
from penstock.ops.history import HistoryQuestioner
from penstock.ops.inventory import Inventory, take_inventory
from penstock.ops.jobs import JobQuestioner
from penstock.ops.messages import MessageQuestioner
from penstock.ops.probe import ServerFacts, primaries, read_facts, server_time
from penstock.ops.queues import QueueQuestioner
from penstock.ops.schedules import ScheduleQuestioner
from penstock.ops.tasks import TaskQuestioner
from penstock.ops.workers import WorkerQuestioner


class Inspector:
    """Inspects and operates the server of an app, with a questioner for each kind of component.

        Inspector(app).queues.show("mail").counts.ready

    Making one is cheap and sends nothing.
    """

    def __init__(self, app: Penstock) -> None:
        self._app = app
        self.queues = QueueQuestioner(app)
        self.jobs = JobQuestioner(app)
        self.history = HistoryQuestioner(app)
        self.health = HealthQuestioner(app)
        self.workers = WorkerQuestioner(app)
        self.tasks = TaskQuestioner(app)
        self.schedules = ScheduleQuestioner(app)
        self.coordination = CoordinationQuestioner(app)
        self.messages = MessageQuestioner(app)
        self.files = FileQuestioner(app)
        self.directories = DirectoryQuestioner(app)

    @property
    def _driver(self) -> Driver:
        return self._app._driver

    @property
    def location(self) -> str:
        """The server's address, without its password, and the app's prefix."""
        return f"{self._app._driver.connector.address}, prefix {self._app.settings.prefix!r}"

    @verb
    def now(self) -> Operation[float]:
        """Seconds since 1970 by the server's clock, which all times from the inspector use. One round trip."""
        nodes = yield from primaries()
        return (yield from server_time(nodes[0]))

    @verb
    def servers(self) -> Operation[list[ServerFacts]]:
        """The facts that each server with keys reports about itself. Two round trips for each."""
        found = []
        for node in (yield from primaries()):
            found.append((yield from read_facts(node)))
        return found

    @verb
    def inventory(self, most: int | None = None) -> Operation[Inventory]:
        """Check every key of the app (see `inventory.py`). Only reads."""
        return take_inventory(self._app.settings.prefix, most)

    @verb
    def doctor(self, topic: str | None = None, *, without: str | None = None) -> Operation[list[CheckResult]]:
        """Check whether the server is fit for Penstock, in one topic or in all but one (see `doctor.py`)."""
        return diagnose(self._app, topic, without)

    def prove_locks(self, seconds: float = 3.0) -> list[CheckResult]:
        """Test for this many seconds whether locks exclude and semaphores keep their limit on this server. Blocks."""
        return prove_locks(self._app, seconds)
