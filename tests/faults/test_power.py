"""F28: the power fails. Of what was written since the last sync, any part may be there and any part not."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from omniq.storage import SQLiteStorage
from tests.faults.processes import Field
from tests.faults.recorder import Op

SECTOR_BYTES = 512


class Disk:
    """What a disk holds for sure, and what it was only asked to hold."""

    def __init__(self) -> None:
        self.safe: dict[str, bytearray] = {}
        self.pending: dict[str, list[Op]] = {}

    def take(self, op: Op) -> None:
        match op.what:
            case "write" | "truncate":
                self.pending.setdefault(op.file, []).append(op)
            case "sync":
                content = self.safe.setdefault(op.file, bytearray())
                for waiting in self.pending.pop(op.file, []):
                    apply(content, waiting)
            case "delete":
                self.pending.pop(op.file, None)
                self.safe.pop(op.file, None)

    def after_power_loss(self, chance: random.Random, share: float) -> dict[str, bytearray]:
        """`share` of what was not synced is there: 0 is nothing, 1 is all; writes are torn at sectors."""
        found = {name: bytearray(content) for name, content in self.safe.items()}
        for name, waiting in self.pending.items():
            for op in waiting:
                for part in sectors(op):
                    if chance.random() < share:
                        apply(found.setdefault(name, bytearray()), part)
        return found


def apply(content: bytearray, op: Op) -> None:
    if op.what == "truncate":
        del content[op.offset :]
        return
    missing = op.offset + len(op.data) - len(content)
    if missing > 0:
        content.extend(bytes(missing))
    content[op.offset : op.offset + len(op.data)] = op.data


def sectors(op: Op) -> list[Op]:
    if op.what != "write":
        return [op]
    starts = range(0, len(op.data), SECTOR_BYTES)
    return [op._replace(offset=op.offset + s, data=op.data[s : s + SECTOR_BYTES]) for s in starts]


class Recording(NamedTuple):
    ops: list[Op]

    @property
    def boundaries(self) -> list[int]:
        """After each sync, and right before it."""
        syncs = [index for index, op in enumerate(self.ops) if op.what == "sync"]
        return sorted({*syncs, *(index + 1 for index in syncs)})

    def acked(self, cut: int) -> dict[str, set[str]]:
        """What callers had been told when the power failed."""
        told: dict[str, set[str]] = {"ENQUEUED": set(), "SUCCESS": set()}
        for op in self.ops[:cut]:
            if op.what == "ack":
                told[op.file].add(op.data.decode())
        return told


def record(field: Field, durability: str, rounds: int) -> Recording:
    recording = field.folder / "recording"
    config = {"database": str(field.database), "durability": durability, "rounds": rounds}
    child = field.run("tests.faults.recorded", {**config, "recording": str(recording)})
    child.line("DONE")
    assert child.wait() == 0
    found = Recording(msgspec.msgpack.decode(recording.read_bytes(), type=list[Op]))
    restarts = sum(op.what == "write" and op.file.endswith("-wal") and op.offset == 0 for op in found.ops)
    assert restarts > 2, "the log never began again: this records too little"
    assert len(found.acked(len(found.ops))["SUCCESS"]) == 2 * rounds
    return found


def lost(recording: Recording, cuts: list[tuple[int, float]], folder: Path) -> int:
    """Cut the power at each moment; how many acknowledged things are gone. A damaged file fails at once."""
    chance = random.Random(28)
    folder.mkdir()
    disk, position, gone = Disk(), 0, 0
    for cut, share in sorted(cuts):
        for op in recording.ops[position:cut]:
            disk.take(op)
        position = cut
        for name, content in disk.after_power_loss(chance, share).items():
            (folder / name).write_bytes(content)
        gone += missing(recording.acked(cut), folder / "jobs.db")
        for path in folder.iterdir():
            path.unlink()
    return gone


def missing(acked: dict[str, set[str]], database: Path) -> int:
    if not database.exists() or not database.stat().st_size:
        return sum(map(len, acked.values()))
    with closing(sqlite3.connect(database)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        known = conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'omniq_boot'").fetchone()
        rows = dict(conn.execute("SELECT id, status FROM omniq_task")) if known else {}
    succeeded = {task_id for task_id, status in rows.items() if status == 2}
    return len(acked["ENQUEUED"] - rows.keys()) + len(acked["SUCCESS"] - succeeded)


def moments(recording: Recording, most: int, at_random: int) -> list[tuple[int, float]]:
    """Boundaries with nothing, half and all of the rest, and moments between with a random part of it."""
    chance = random.Random(7)
    boundaries = recording.boundaries
    chosen = boundaries if len(boundaries) <= most else sorted(chance.sample(boundaries, most))
    cuts = [(cut, share) for cut in chosen for share in (0.0, 0.5, 1.0)]
    return cuts + [(chance.randrange(len(recording.ops)), chance.random()) for _ in range(at_random)]


def test_f28_what_was_acknowledged_survives_a_power_loss(field: Field) -> None:
    recording = record(field, "fsync", 30)
    cuts = moments(recording, most=60, at_random=60)
    assert lost(recording, cuts, field.folder / "after") == 0


@pytest.mark.soak
@pytest.mark.bound(600)
def test_f28_at_every_sync_and_a_thousand_moments_between(field: Field) -> None:
    recording = record(field, "fsync", 60)
    cuts = moments(recording, most=len(recording.ops), at_random=1000)
    assert lost(recording, cuts, field.folder / "after") == 0


def test_f28_relaxed_may_lose_the_last_moments_but_never_the_file(field: Field) -> None:
    """It also shows that this test sees what is lost."""
    recording = record(field, "relaxed", 30)
    cuts = moments(recording, most=20, at_random=60)
    assert lost(recording, cuts, field.folder / "after") > 0


async def test_f28_what_is_left_opens_and_is_sound(field: Field) -> None:
    recording = record(field, "fsync", 20)
    disk, chance = Disk(), random.Random(1)
    for op in recording.ops:
        disk.take(op)
    (field.folder / "after").mkdir()
    for name, content in disk.after_power_loss(chance, 0.5).items():
        (field.folder / "after" / name).write_bytes(content)
    async with SQLiteStorage(field.folder / "after" / "jobs.db") as storage:
        assert await storage.verify() == []
        acked = recording.acked(len(recording.ops))
        for task_id in acked["SUCCESS"]:
            result = await storage.get_result(task_id)
            assert result is not None
            assert result.result in range(20)
