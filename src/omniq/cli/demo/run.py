"""The plot of the demo: what is enqueued when, what is cancelled, who is killed, how it ends."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from omniq.calls import TaskCall
from omniq.cli.demo import jobs
from omniq.cli.demo.accounting import Account, account, print_account
from omniq.cli.demo.display import Screen, screen
from omniq.cli.demo.ledger import Word
from omniq.cli.demo.scene import Crew, Scene, Tally
from omniq.cli.demo.stage import Stage
from omniq.task import Task, TaskStatus, WorkerInfo

PER_S: Final = 180  # tasks, while they trickle in
BURST_PER_S: Final = 150  # tasks of the burst, for every second of the whole
TICK_S: Final = 0.025
PICTURE_S: Final = 0.1
WELL_AT_WORK: Final = 12
LOOKS_FOR_VICTIM: Final = 80
WITHIN_S: Final = 30.0
# Parts of the whole, at which things happen.
CANCEL_AT, KILL_AT, LAST_FLAKY_AT, BURST_AT = 0.20, 0.35, 0.45, 0.68


def run(seconds: float) -> bool:
    """The whole evening; whether every task is accounted for."""
    folder = Path(tempfile.mkdtemp(prefix="omniq-demo-"))
    stage_screen = screen()
    try:
        accounted = asyncio.run(_perform(folder, seconds, stage_screen))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    print_account(accounted, stage_screen.console)
    if accounted.is_complete:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        stage_screen.console.print(f"The store and the ledger are kept in {folder}.")
    return accounted.is_complete


async def _perform(folder: Path, seconds: float, on: Screen) -> Account:
    stage = Stage(folder)
    try:
        with on:
            plot = Plot(stage, on, seconds)
            await plot.play()
        return account(stage.reader.entries, await plot.all_tasks(), plot.facts)
    finally:
        await stage.close()


class Plot:
    def __init__(self, stage: Stage, on: Screen, seconds: float) -> None:
        self._stage = stage
        self._on = on
        self._seconds = seconds
        self._started_at = time.monotonic()
        self._tally = Tally(self._started_at)
        self._dice = random.Random(20)
        self._crew: dict[str, Crew] = {}
        self._pulse_id = ""
        self.facts: dict[str, float] = {}

    async def play(self) -> None:
        self._on.say("starting `omniq worker` with 2 processes on a SQLite file")
        watching = asyncio.create_task(self._watch())
        try:
            workers = await self._stage.start()
            self._on.say(f"worker processes {' and '.join(str(w.pid) for w in workers)} are ready")
            self._scene_at = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for part in (self._trickle, self._cancel_one, self._kill_one):
                    group.create_task(part())
            await self._burst()
            await self._close()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    # --- the parts -------------------------------------------------------------------------------

    async def _trickle(self) -> None:
        """Tasks of all kinds, a few at a time."""
        self._pulse_id = await self._enqueue([("pulse", jobs.pulse.options(interval=1.0).call())])
        self._on.say(f"enqueueing about {PER_S} tasks a second, one of them to repeat")
        begun_at, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - begun_at) < BURST_AT * self._seconds:
            wanted = round(passed_s * PER_S) - sent
            sent += wanted
            if wanted:
                await self._enqueue([self._any_call(passed_s / self._seconds) for _ in range(wanted)])
            await asyncio.sleep(TICK_S)

    def _any_call(self, part: float) -> tuple[str, TaskCall[Any]]:
        dice = self._dice
        match dice.randrange(100):
            case n if n < 60:
                return "fetch", jobs.fetch.call(dice.uniform(0.01, 0.4))
            case n if n < 86:
                return "resize", jobs.resize.call(dice.uniform(0.002, 0.03))
            case 86:
                return "hopeless", jobs.hopeless.call()
            case n if n < 92 and part < LAST_FLAKY_AT:
                return "flaky", jobs.flaky.call(dice.choice((1, 1, 2)))
            case _:
                delay_s = dice.uniform(0.02, 0.2) * self._seconds
                return "remind", jobs.remind.options(delay=delay_s).call()

    async def _enqueue(self, calls: list[tuple[str, TaskCall[Any]]]) -> str:
        """Into the store, then into the ledger, with the time from before; the last id."""
        asked_at_s = time.monotonic()
        ids = await self._stage.storage.enqueue_many([call.task for _, call in calls])
        known = [(kind, str(task_id)) for (kind, _), task_id in zip(calls, ids, strict=True)]
        self._stage.ledger.write_many(Word.ENQUEUED, known, at_s=asked_at_s)
        return str(ids[-1])

    async def _cancel_one(self) -> None:
        task_id = await self._enqueue([("marathon", jobs.marathon.call())])
        await asyncio.sleep(CANCEL_AT * self._seconds)
        await self._until_status(task_id, TaskStatus.RUNNING)
        asked_at = time.monotonic()
        await self._stage.storage.cancel(task_id)
        await self._until_status(task_id, TaskStatus.CANCELLED)
        self._on.say(f"cancelled the marathon while it ran; it took {time.monotonic() - asked_at:.2f} s")

    async def _kill_one(self) -> None:
        await asyncio.sleep(KILL_AT * self._seconds)
        victim, held = await self._victim()
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        self._crew[victim.id].killed = True
        self._on.say(f"killed worker process {victim.pid} with SIGKILL; it ran {len(held)} tasks")
        lost = await self._lost(victim, held)
        begun = await self._begun_again(lost, victim.pid)
        self.facts["killed_pid"] = victim.pid
        self.facts["taken_over_s"] = max(begun, default=killed_at) - killed_at
        self._on.say(
            f"its {len(lost)} unfinished tasks run again, after {self.facts['taken_over_s'] * 1000:.0f} ms"
        )
        await self._stage.until(self._is_replaced, WITHIN_S, "the killed process was not replaced")
        self.facts["replaced_s"] = time.monotonic() - killed_at
        self._on.say(f"its supervisor has replaced it, after {self.facts['replaced_s']:.1f} s")

    async def _victim(self) -> tuple[WorkerInfo, list[str]]:
        """A process that is well at work, or, after a while, whichever is busiest."""
        for _ in range(LOOKS_FOR_VICTIM):
            victim, held = await self._stage.busiest()
            if len(held) >= WELL_AT_WORK:
                return victim, held
            await asyncio.sleep(TICK_S)
        return await self._stage.busiest()

    async def _lost(self, victim: WorkerInfo, held: list[str]) -> list[str]:
        """Which of them died with it: the others had ended just before."""

        async def released() -> bool:
            return not await self._stage.storage.held(victim.id)

        await self._stage.until(released, WITHIN_S, "the tasks of the killed process were not taken back")
        tasks = [await self._stage.storage.get_task(task_id) for task_id in held]
        return [task.id for task in tasks if task is not None and (task.losses or task.suspicions)]

    async def _begun_again(self, lost: list[str], dead_pid: int) -> list[float]:
        """When each of them was begun by somebody else."""

        def begun() -> dict[str, float]:
            wanted = set(lost)
            return {
                entry.task_id: entry.at_s
                for entry in reversed(self._stage.reader.entries)
                if entry.word is Word.BEGUN and entry.pid != dead_pid and entry.task_id in wanted
            }

        async def all_begun() -> bool:
            return len(begun()) == len(lost)

        await self._stage.until(all_begun, WITHIN_S, "tasks of the killed process did not run again")
        return list(begun().values())

    async def _is_replaced(self) -> bool:
        return sum(not one.killed for one in self._crew.values()) == 2

    async def _burst(self) -> None:
        how_many = round(BURST_PER_S * self._seconds)

        async def all_ended() -> bool:
            self._read_ledger()
            return self._tally.done["burst"] >= how_many

        self._on.say(f"and now {how_many:,} at once")
        calls: list[tuple[str, TaskCall[Any]]] = [("burst", jobs.burst.call()) for _ in range(how_many)]
        begun_at = time.monotonic()
        await self._enqueue(calls)
        enqueued_at = time.monotonic()
        await self._stage.until(all_ended, WITHIN_S, "the burst did not end")
        self.facts["enqueue_per_s"] = how_many / (enqueued_at - begun_at)
        self.facts["burst_per_s"] = how_many / (time.monotonic() - enqueued_at)
        self._on.say(f"done: {self.facts['burst_per_s']:,.0f} a second")

    async def _close(self) -> None:
        """Let everything end, then stop in good order."""
        await self._stage.until(self._only_the_pulse_is_left, WITHIN_S, "some tasks did not end")
        await self._stage.storage.cancel(self._pulse_id)
        await self._until_status(self._pulse_id, TaskStatus.CANCELLED)
        self._on.say("cancelled the pulse; stopping the workers with SIGTERM")
        self.facts["exit_code"] = await self._stage.stop()
        self.facts["seconds"] = time.monotonic() - self._scene_at
        self._read_ledger()

    async def _only_the_pulse_is_left(self) -> bool:
        counts = await self._statuses()
        return counts["PENDING"] + counts["RUNNING"] <= 1

    async def _until_status(self, task_id: str, status: TaskStatus) -> None:
        async def reached() -> bool:
            task = await self._stage.storage.get_task(task_id)
            return task is not None and task.status is status

        await self._stage.until(reached, WITHIN_S, f"task {task_id} did not become {status}")

    # --- looking ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await self._look_at_workers()
            self._read_ledger()
            scene = Scene(
                time.monotonic() - self._started_at,
                await self._statuses(),
                self._tally.enqueued,
                self._tally.done,
                self._tally.rates,
                list(self._crew.values()),
            )
            self._on.show(scene)
            await asyncio.sleep(PICTURE_S)

    def _read_ledger(self) -> None:
        self._tally.add(self._stage.reader.read(), time.monotonic())

    async def _statuses(self) -> dict[str, int]:
        counts = (await self._stage.storage.counts()).get("default", {})
        return {str(status): counts.get(status, 0) for status in TaskStatus}

    async def _look_at_workers(self) -> None:
        for worker in await self._stage.storage.workers():
            one = self._crew.setdefault(worker.id, Crew(worker.pid))
            one.running = len(await self._stage.storage.held(worker.id))

    async def all_tasks(self) -> list[Task]:
        """Every task that the store has."""
        found: list[Task] = []
        while page := await self._stage.storage.list_tasks(after=found[-1].id if found else None, limit=1000):
            found += page
        return found
