"""One worker process, as the process that started it sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from penstock.errors import PenstockError
from penstock.jobs.claims import Ending, Failure
from penstock.jobs.shard import Shard
from penstock.worker.parent_pipe import ParentPipe
from penstock.worker.processes import describe_exit, process_state
from penstock.worker.shared_status import SharedStatus

log = logging.getLogger("penstock.supervisor")


class WorkerProcess:
    """A worker process that this process has started."""

    def __init__(
        self, process: asyncio.subprocess.Process, status: SharedStatus, pipe: ParentPipe, shards: Sequence[Shard]
    ) -> None:
        self.process = process
        self._status = status
        self._pipe = pipe
        self._shards = shards
        self._cpu_ticks = 0
        self._heartbeats: asyncio.Task[None] | None = None
        self.killed_by_supervisor = False
        """Whether it was killed because it did not stop in time. Its jobs are then not charged."""

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        shards: Sequence[Shard],
        runners: int,
        *,
        report: Callable[[bytes], None],
        environment: Mapping[str, str] | None = None,
        begins_slowly: bool = False,
        is_sole_trial: bool = False,
    ) -> WorkerProcess:
        """Start a process that serves these shards with `runners` runners.

        report         the loop calls it with each report of the process (see `SharedStatus`)
        environment    further variables for the process
        begins_slowly  whether it adds its runners little by little, because its predecessor was killed at work
        is_sole_trial  whether it is a trial process, and no other trial process runs meanwhile

        Raises OSError if there is no memory or no descriptor for another process.
        """
        status, child_end = SharedStatus.create(
            len(shards), runners, begins_slowly=begins_slowly, is_sole_trial=is_sole_trial
        )
        with contextlib.ExitStack() as on_error, ParentPipe(passes_stops=True) as pipe:
            on_error.callback(status.close)
            on_error.callback(pipe.close)
            try:
                # A session of its own keeps Ctrl-C from the process: the supervisor gets it, and passes it on once.
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(status.fd, child_end, pipe.child_end),
                    env={**os.environ, **(environment or {}), **pipe.environment, **status.environment(child_end)},
                )
            finally:
                os.close(child_end)
            on_error.pop_all()
        started = cls(process, status, pipe, shards)
        started._listen(report)
        return started

    def _listen(self, report: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()

        def read() -> None:
            found = self._status.read_reports()
            if not found:  # the child has closed its end
                loop.remove_reader(self._status.pipe)
            for number in sorted(set(found)):
                report(bytes([number]))

        loop.add_reader(self._status.pipe, read)

    def keep_alive(self, lease: float) -> None:
        """Send heartbeats for the process when its own are late (see `_send_heartbeats`), until `close` is called."""
        self._heartbeats = asyncio.create_task(self._send_heartbeats(lease))

    def stop(self, number: int) -> None:
        """Pass on the first stop (1), or a further one."""
        self._pipe.pass_stop(number)
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process because it has not stopped in time. Its jobs are not charged."""
        self.killed_by_supervisor = True
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        """Release the shared memory and the pipes. Call it when the process has ended."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        asyncio.get_running_loop().remove_reader(self._status.pipe)
        self._status.close()
        self._pipe.close()

    @property
    def exit_description(self) -> str:
        """How the process ended, in words."""
        return describe_exit(self.process.returncode or 0)

    def took_a_turn(self) -> bool:
        return any(status.renewed_at for status in self._status.queue_statuses())

    def held_jobs(self) -> bool:
        return any(status.holds_jobs for status in self._status.queue_statuses())

    def has_worked(self) -> bool:
        """Whether the process was able to work: a job has ended in it, or was running when the process ended."""
        return self._status.has_ended_a_job() or bool(self._status.running_jobs())

    async def hand_back_jobs(self, within: float) -> bool:
        """Hand back the jobs of the dead process, so that other workers can run them now.

        If exactly one job ran in the process, over all shards, that job is charged with a crash. If several ran, each
        is lost once more, and none is charged. If the server does not answer within `within` seconds, the jobs wait
        for the lease to expire. Returns whether suspects wait for a trial.
        """
        suspects = False
        running = self._status.running_jobs()
        alone = sum(map(len, running.values())) == 1
        verdict: Ending = "release" if self.killed_by_supervisor else "crash" if alone else "loss"
        name = f"{socket.gethostname()}:{self.process.pid}"
        why = Failure(worker=name, reason=f"its worker process {self.exit_description}")
        for index, (shard, status) in enumerate(zip(self._shards, self._status.queue_statuses(), strict=True)):
            if not status.incarnation:
                continue
            try:
                work = shard.abandon(status.incarnation, running[index], verdict, why)
                suspects |= await asyncio.wait_for(shard._driver.aio.run(work), within)
            except (PenstockError, TimeoutError) as error:
                log.warning(
                    "worker %d's jobs on queue %s wait until its lease expires: %s", self.process.pid, shard.name, error
                )
        return suspects

    async def _send_heartbeats(self, lease: float) -> None:
        """Send heartbeats on behalf of a process whose own are late, as long as the process uses CPU.

        They are late while C code holds the interpreter's lock. A process that uses no CPU may be frozen for ever.
        """
        while True:
            await asyncio.sleep(lease / 6)
            uses_cpu = self._uses_cpu()
            for shard, status in zip(self._shards, self._status.queue_statuses(), strict=True):
                if uses_cpu and status.holds_jobs and time.monotonic() - status.renewed_at > lease / 2:
                    with contextlib.suppress(PenstockError):
                        await shard._driver.aio.run(shard.bindings.heartbeat(status.incarnation, lease))

    def _uses_cpu(self) -> bool:
        """Whether the process can run and has used CPU since the last call. Always False except on Linux."""
        state = process_state(self.process.pid)
        if state is None:
            return False
        before, self._cpu_ticks = self._cpu_ticks, state.cpu_ticks
        return state.can_run and self._cpu_ticks > before
