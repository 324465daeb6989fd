"""What travels when tasks move from one store to another."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from omniq.errors import CorruptRecord
from omniq.task import Run, StoredTask


class Moved(Struct, frozen=True):
    """One task with its history."""

    task: StoredTask
    runs: list[Run] = field(default_factory=list)


class Parcel(Struct, frozen=True, kw_only=True):
    """Some tasks on their way; in the first one also what belongs to no task."""

    id: str
    tasks: list[Moved] = field(default_factory=list)
    schedules: list[bytes] = field(default_factory=list)  # records, as every store keeps them
    paused: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.tasks or self.schedules or self.paused or self.limits)


class TakenIn(Struct, frozen=True):
    """What became of a parcel. All is 0 for one that had been taken in before."""

    tasks: int = 0
    known: int = 0  # tasks that were here already
    blocked: int = 0  # kept as CANCELLED, because another task here holds their unique key
    schedules: int = 0  # that were not here yet
    returned: bool = False  # it came from here, and is back


def pack(parcel: Parcel) -> bytes:
    return msgspec.msgpack.encode(parcel)


def unpack(body: bytes) -> Parcel:
    try:
        return msgspec.msgpack.decode(body, type=Parcel)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise CorruptRecord(f"a parcel on its way to another store makes no sense: {exc}") from exc
