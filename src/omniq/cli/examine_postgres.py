"""What `omniq doctor` says of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from omniq.cli.examine_store import Finding

if TYPE_CHECKING:
    from omniq.storage.postgres.records import Vitals

# A snapshot that is held for longer keeps VACUUM from the dead rows of a busy queue.
OLD_SNAPSHOT_S: Final = 300.0
# Where nobody can say since when, by the transactions that have begun since.
OLD_SNAPSHOT_IDS: Final = 1_000_000
FULL_SHARE: Final = 0.9


def examine_server(vitals: Vitals) -> Iterator[Finding]:
    yield Finding(
        "ok", "server", f"PostgreSQL {vitals.server_version}, schema version {vitals.schema_version}"
    )
    yield _rights(vitals)
    yield _durability(vitals)
    yield _snapshot(vitals)
    yield _connections(vitals)
    yield _wake_ups(vitals)


def _rights(vitals: Vitals) -> Finding:
    if not vitals.missing_rights:
        return Finding("ok", "rights", "this role may do all that a worker does")
    return Finding("problem", "rights", f"this role lacks {', '.join(vitals.missing_rights)}; GRANT it")


def _durability(vitals: Vitals) -> Finding:
    if not vitals.fsync:
        return Finding("warning", "durable", "fsync is off: a crash of the machine can damage everything")
    if not vitals.synchronous_commit:
        return Finding("warning", "durable", "synchronous_commit is off: a crash can lose the last moments")
    return Finding("ok", "durable", "commits wait for the disk")


def _snapshot(vitals: Vitals) -> Finding:
    dead = "" if vitals.dead_rows is None else f"; {vitals.dead_rows:,} dead rows"
    if vitals.oldest_xmin_ids is None:
        return Finding("ok", "snapshot", f"oldest_xmin_age 0 s: nobody holds an old snapshot{dead}")
    age_s = vitals.oldest_xmin_age_s
    age = f"{vitals.oldest_xmin_ids:,} transactions" if age_s is None else f"{age_s:.0f} s"
    text = f"oldest_xmin_age {age}, held by {vitals.oldest_xmin_who}{dead}"
    if (age_s or 0.0) < OLD_SNAPSHOT_S and vitals.oldest_xmin_ids < OLD_SNAPSHOT_IDS:
        return Finding("ok", "snapshot", text)
    return Finding("warning", "snapshot", f"{text}; until it ends, VACUUM cannot remove what has died since")


def _connections(vitals: Vitals) -> Finding:
    text = f"{vitals.connections} of at most {vitals.max_connections} connections"
    if vitals.connections < FULL_SHARE * vitals.max_connections:
        return Finding("ok", "server", text)
    return Finding("warning", "server", f"{text}: workers wait when there is none; raise max_connections")


def _wake_ups(vitals: Vitals) -> Finding:
    if vitals.wakes:
        through = " through a pooler that keeps sessions" if vitals.pooled else ""
        return Finding("ok", "wake-ups", f"workers are told by LISTEN{through}")
    if vitals.pooled:
        return Finding(
            "warning", "wake-ups", "none through this pooler, which lends connections per transaction: "
            "workers look every poll_interval; give them the address of the server itself",
        )  # fmt: skip
    return Finding("warning", "wake-ups", "no connection that listens: workers look every poll_interval")
