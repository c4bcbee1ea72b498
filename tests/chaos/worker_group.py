"""Worker processes of one app, which a storm kills, freezes and starts again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from tests.chaos import groups
from tests.chaos.groups import Group


@dataclass
class WorkerGroup:
    """One process for each name of an app. Each is the leader of a process group, which all its children share.

    environments  name of the app, as on the command line -> its environment beside that of the test
    """

    address: str
    environments: dict[str, dict[str, str]]
    chance: random.Random
    running: dict[str, Group] = field(default_factory=dict)
    frozen: dict[str, float] = field(default_factory=dict)
    """Until when, by the steady clock."""
    kills: int = 0
    freezes: int = 0

    def __enter__(self) -> WorkerGroup:
        self.start_missing()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_missing(self) -> None:
        for name in self.environments.keys() - self.running.keys():
            self.running[name] = groups.start(
                name, "-c", "4", "--processes", "0", STORM_URL=self.address, **self.environments[name]
            )

    def kill(self, *names: str) -> None:
        for name in names:
            victim = self.running.pop(name)
            self.frozen.pop(name, None)
            groups.kill(victim)
            self.kills += 1

    def shock(self, freeze: float) -> None:
        """Kill a process and start another one, or freeze it for so many seconds."""
        awake = sorted(self.running.keys() - self.frozen.keys())
        if not awake:
            return
        name = self.chance.choice(awake)
        if (self.kills + self.freezes) % 2:
            groups.freeze(self.running[name])
            self.frozen[name] = time.monotonic() + freeze
            self.freezes += 1
        else:
            self.kill(name)
            self.start_missing()

    def thaw(self, *, everything: bool = False) -> None:
        for name in [name for name, until in self.frozen.items() if everything or until <= time.monotonic()]:
            del self.frozen[name]
            groups.thaw(self.running[name])

    def stop(self) -> None:
        self.thaw(everything=True)
        groups.stop([*self.running.values()])
        self.running.clear()
