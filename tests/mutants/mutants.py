# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in what decides and what remembers, and the tests that must notice each.

`old` stands exactly once in its file (below src/omniq); `new` takes its place. `tests` are files or folders,
of which `only` chooses by name, as pytest's -k does. A mutant that survives is a hole in the tests; one whose
text is no longer found has to be planted anew.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""


STORES = "tests/conformance/test_stores.py"
LOGIC = "tests/logic"
LIFECYCLE = "logic/lifecycle.py"
RETRY = "logic/retry.py"
ROWS = "storage/rows.py"
MEMORY = "storage/memory.py"
SQLITE_ROWS = "storage/sqlite/rows.py"
RECORDS = "storage/sqlite/records.py"
ENGINE = "storage/sqlite/engine.py"
BESIDE = "storage/sqlite/beside.py"

# --- what is decided -----------------------------------------------------------------------------

DECIDED = [
    Mutant(
        "the fence ignores the epoch",
        LIFECYCLE,
        "return task.status is TaskStatus.RUNNING and task.epoch == epoch",
        "return task.status is TaskStatus.RUNNING",
        (STORES,),
        "zombie or stale",
    ),
    Mutant(
        "the fence ignores the status",
        LIFECYCLE,
        "return task.status is TaskStatus.RUNNING and task.epoch == epoch",
        "return task.epoch == epoch",
        (STORES,),
        "stale or already_there",
    ),
    Mutant(
        "a cancel request is ignored at the end of a run",
        LIFECYCLE,
        "    if task.cancel_requested:\n        return _cancelled(task, RunOutcome.CANCELLED, error, now)\n",
        "",
        (LOGIC,),
    ),
    Mutant(
        "a cancel request is ignored when a run is lost",
        LIFECYCLE,
        "    if task.cancel_requested:\n        return _cancelled(task, RunOutcome.LOST, None, now)\n",
        "",
        (LOGIC,),
    ),
    Mutant(
        "a cancel request wins over a success",
        LIFECYCLE,
        "    if settlement.action is Action.SUCCEED:\n",
        "    if settlement.action is Action.SUCCEED and not task.cancel_requested:\n",
        (LOGIC,),
    ),
    Mutant(
        "one loss more than allowed",
        LIFECYCLE,
        "if losses >= task.max_losses:",
        "if losses > task.max_losses:",
        (LOGIC,),
    ),
    Mutant(
        "losses are not counted",
        LIFECYCLE,
        "waiting = replace(_waiting(task, now, loss_delay_s(task.losses)), losses=losses)",
        "waiting = _waiting(task, now, loss_delay_s(task.losses))",
        (STORES,),
        "t8 or t9 or losses",
    ),
    Mutant(
        "a give-back spends an attempt",
        LIFECYCLE,
        "        case _:\n            return waiting\n",
        "        case _:\n            return replace(waiting, attempts=waiting.attempts + 1)\n",
        (LOGIC,),
    ),
    Mutant(
        "a success of an interval task keeps its failures",
        LIFECYCLE,
        "                waiting,\n                attempts=0,\n                losses=0,\n",
        "                waiting,\n                losses=0,\n",
        (LOGIC,),
    ),
    Mutant(
        "an interval counts from the start of the run",
        LIFECYCLE,
        "status=TaskStatus.PENDING, owner=None, eta=now + timedelta",
        "status=TaskStatus.PENDING, owner=None, eta=(task.started_at or now) + timedelta",
        (LOGIC,),
    ),
    Mutant(
        "a retry by hand begins with epoch 0 again",
        LIFECYCLE,
        "        status=TaskStatus.PENDING,\n        attempts=0,\n        losses=0,\n        eta=now,\n",
        "        status=TaskStatus.PENDING,\n        epoch=0,\n        attempts=0,\n        losses=0,\n        eta=now,\n",
        (STORES,),
        "retry_by_hand or t13",
    ),
    Mutant(
        "every success after the end was the same one",
        LIFECYCLE,
        "task.status is TaskStatus.SUCCESS and task.epoch == epoch:",
        "task.status is TaskStatus.SUCCESS:",
        (LOGIC,),
    ),
    Mutant(
        "nothing ever expires",
        LIFECYCLE,
        "return task.expires_at is not None and task.expires_at <= now",
        "return False",
        (STORES,),
        "expired or t14",
    ),
    Mutant(
        "one retry more than allowed",
        RETRY,
        "attempts < max_retries",
        "attempts <= max_retries",
        (LOGIC,),
    ),
    Mutant(
        "the jitter goes below the delay",
        RETRY,
        "(1 + JITTER_SHARE * jitter)",
        "(1 - JITTER_SHARE * jitter)",
        (LOGIC,),
    ),
    Mutant(
        "the delay does not double",
        RETRY,
        "delay_s = self.base_s * 2.0 ** min(attempts, MAX_EXPONENT)",
        "delay_s = self.base_s * 2.0 * min(attempts + 0.5, MAX_EXPONENT)",
        (LOGIC,),
    ),
    Mutant(
        "the delay has no limit",
        RETRY,
        "return min(delay_s * (1 + JITTER_SHARE * jitter), self.max_s)",
        "return delay_s * (1 + JITTER_SHARE * jitter)",
        (LOGIC,),
    ),
    Mutant(
        "the first loss costs a pause",
        RETRY,
        "    if losses == 0:\n        return 0.0\n",
        "",
        (LOGIC,),
    ),
]

# --- what is remembered --------------------------------------------------------------------------

REMEMBERED = [
    Mutant(
        "a success in one statement ignores the epoch",
        RECORDS,
        "AND status = 1 AND epoch = ?6",
        "AND status = 1 AND ?6 > 0",
        (STORES,),
        "TestSQLite and (zombie or stale)",
    ),
    Mutant(
        "a success in one statement overwrites what has ended",
        RECORDS,
        "AND status = 1 AND epoch = ?6",
        "AND epoch = ?6",
        ("tests/faults/test_reaping.py",),
        "f11",
    ),
    Mutant(
        "an eta is ignored",
        RECORDS,
        "AND priority = {priority} AND due <= ?2 ORDER BY",
        "AND priority = {priority} AND ?2 > 0 ORDER BY",
        (STORES,),
        "TestSQLite and (eta or due)",
    ),
    Mutant(
        "the least urgent come first",
        RECORDS,
        "for priority in range(TOP_PRIORITY, -1, -1)",
        "for priority in range(TOP_PRIORITY + 1)",
        (STORES,),
        "TestSQLite and priorit",
    ),
    Mutant(
        "a claim does not count the epoch",
        RECORDS,
        "status = 1, epoch = epoch + 1, owner = ?",
        "status = 1, epoch = epoch, owner = ?",
        (STORES,),
        "TestSQLite and t2",
    ),
    Mutant(
        "a repeated claim takes new tasks",
        ROWS,
        "        if again:\n",
        "        if again and not claim.limit:\n",
        (STORES,),
        "claim_told_again",
    ),
    Mutant(
        "a paused queue is handed out",
        SQLITE_ROWS,
        "if name not in paused]",
        "if name not in paused or True]",
        (STORES,),
        "TestSQLite and pause",
    ),
    Mutant(
        "renewing extends nothing",
        SQLITE_ROWS,
        '"UPDATE omniq_task SET lease = ?, boot = ? WHERE status = 1 AND owner = ?"',
        '"UPDATE omniq_task SET lease = ?, boot = ? WHERE status = 9 AND owner = ?"',
        (STORES,),
        "TestSQLite and renew",
    ),
    Mutant(
        "an older run of a task that is held again is not lost",
        ROWS,
        "if h.id not in held or held[h.id].epoch != h.epoch)",
        "if h.id not in held)",
        (STORES,),
        "got_its_own_task_again",
    ),
    Mutant(
        "renewing in memory extends nothing",
        MEMORY,
        "        until = self.clock.monotonic() + lease_s\n",
        "        until = 0 * lease_s\n",
        (STORES,),
        "TestMemory and renew",
    ),
    Mutant(
        "a lease lapses a second too early",
        SQLITE_ROWS,
        "(boot = ? AND lease <= ?)",
        "(boot = ? AND lease - 1000000 <= ?)",
        ("tests/sqlite/test_clocks.py",),
        "jump",
    ),
    Mutant(
        "a lease never lapses",
        SQLITE_ROWS,
        "(boot = ? AND lease <= ?)",
        "(boot = ? AND lease <= ? AND 0)",
        (STORES,),
        "TestSQLite and lapse",
    ),
    Mutant(
        "the dead are not noticed",
        BESIDE,
        'return self._state(worker) == "free"',
        "return False",
        ("tests/faults/test_killed.py",),
        "living_worker",
    ),
    Mutant(
        "who has no lock file counts as dead",
        BESIDE,
        'return self._state(worker) == "free"',
        'return self._state(worker) != "held"',
        (STORES,),
        "TestSQLite and lapse",
    ),
    Mutant(
        "a restart of the machine ends the leases of the living",
        SQLITE_ROWS,
        "if not self.beside.is_held(owner)]",
        "]",
        ("tests/sqlite/test_clocks.py",),
        "lock_is_held",
    ),
    Mutant(
        "a restart of the machine ends nothing",
        SQLITE_ROWS,
        "OR (boot <> ? AND owner IN",
        "OR (boot > ? + 1000 AND owner IN",
        ("tests/sqlite/test_clocks.py",),
        "restart",
    ),
    Mutant(
        "what cannot be read hides what can",
        SQLITE_ROWS,
        "            if len(found) == len(rows):\n                return found\n",
        "            return found\n",
        ("tests/sqlite/test_corrupt.py",),
        "behind_many",
    ),
    Mutant(
        "one row that cannot be read undoes its neighbours",
        ROWS,
        '        except CorruptRecord as corrupt:\n            logger.error("cannot settle: {}", corrupt)\n            return Answer.STALE\n',
        "        finally:\n            pass\n",
        ("tests/sqlite/test_corrupt.py",),
        "neighbour",
    ),
    Mutant(
        "a deleted id is forgotten at once",
        SQLITE_ROWS,
        "if task.enqueued_at is not None and micros(task.enqueued_at)",
        "if task.enqueued_at is None and micros(task.enqueued_at)",
        (STORES,),
        "TestSQLite and remembered",
    ),
    Mutant(
        "a batch is kept in part",
        SQLITE_ROWS,
        '            self.conn.execute("DELETE FROM omniq_task WHERE seq >= ?", (first,))\n',
        "",
        (STORES,),
        "TestSQLite and batch",
    ),
    Mutant(
        "a unique key is never free again",
        "storage/sqlite/schema.sql",
        "WHERE unique_key IS NOT NULL AND status < 2;",
        "WHERE unique_key IS NOT NULL;",
        (STORES,),
        "TestSQLite and key",
    ),
    Mutant(
        "a unique key in memory is never free again",
        MEMORY,
        "            elif self._keys.get(task.unique_key) == task.id:\n                del self._keys[task.unique_key]\n",
        "",
        (STORES,),
        "TestMemory and key",
    ),
    Mutant(
        "a large result is lost",
        SQLITE_ROWS,
        '        self._put_beside("omniq_result", "result", task.seq, task.result)\n',
        "",
        ("tests/sqlite/test_payloads.py",),
    ),
    Mutant(
        "what was heard during the claim is forgotten",
        "storage/sqlite/__init__.py",
        "        return await super().exchange(settlements, claim)\n",
        "        answers = await super().exchange(settlements, claim)\n"
        '        if self._listener is not None and "due" in self._ears:\n'
        '            self._ears["due"].drain()\n'
        "            self._listener.due.clear()\n"
        "        return answers\n",
        ("tests/sqlite/test_wake.py",),
        "beside_the_claim",
    ),
    Mutant(
        "nobody listens before the first sleep",
        "storage/sqlite/__init__.py",
        '            ear = self._ear("due")\n            if ear is None:\n',
        '            ear = self._ears.get("due")\n            if ear is None:\n',
        ("tests/sqlite/test_wake.py",),
        "between_the_claim",
    ),
    Mutant(
        "nobody in another process is woken",
        ENGINE,
        "            self.beside.ring(tuple(kinds))\n",
        "",
        ("tests/sqlite/test_wake.py",),
        "another_process",
    ),
    Mutant(
        "a listing of sleepers is trusted within its tick",
        BESIDE,
        "FOLDER_TICK_NS: Final = 100_000_000",
        "FOLDER_TICK_NS: Final = 0",
        ("tests/sqlite/test_wake.py",),
        "tick",
    ),
    Mutant(
        "sockets in deep folders have no short name",
        BESIDE,
        "MAX_SOCKET_PATH: Final = 100",
        "MAX_SOCKET_PATH: Final = 10_000",
        ("tests/sqlite/test_wake.py",),
        "deep",
    ),
    Mutant(
        "a turn is waited for without end",
        BESIDE,
        "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(fd, fcntl.LOCK_EX)",
        ("tests/sqlite/test_turns.py",),
        "for_ever",
    ),
    Mutant(
        "a commit does not wait for the disk",
        ENGINE,
        "{'FULL' if self.durability == 'fsync' else 'NORMAL'}",
        "{'NORMAL' if self.durability == 'fsync' else 'NORMAL'}",
        ("tests/faults/test_power.py",),
        "acknowledged",
    ),
    Mutant(
        "every job has a commit of its own",
        ENGINE,
        "if self._writes.empty() or len(batch) == MAX_JOBS_PER_COMMIT:",
        "if batch:",
        ("tests/sqlite/test_commits.py",),
        "share",
    ),
    Mutant(
        "the log is moved without the write lock",
        ENGINE,
        '        self._writer.execute("BEGIN IMMEDIATE")\n        try:\n            self._checkpointer',
        '        self._writer.execute("BEGIN")\n        try:\n            self._checkpointer',
        ("tests/sqlite/test_checkpoint.py",),
        "under_the_write_lock",
    ),
    Mutant(
        "an existing database is opened and closed by hand",
        ENGINE,
        "os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW",
        ("tests/sqlite/test_locks.py",),
    ),
    Mutant(
        "everybody may read the file",
        ENGINE,
        "os.O_NOFOLLOW, 0o600)",
        "os.O_NOFOLLOW, 0o644)",
        ("tests/sqlite/test_file.py",),
        "umask",
    ),
    Mutant(
        "a failed job is committed as far as it got",
        ENGINE,
        '            self._writer.execute("ROLLBACK TO omniq_job")\n',
        "            pass\n",
        ("tests/sqlite/test_commits.py",),
        "half_done",
    ),
    Mutant(
        "a failed job alone is committed as far as it got",
        ENGINE,
        '            self._writer.execute("ROLLBACK")\n            self._writer.execute("BEGIN")\n',
        "            pass\n",
        ("tests/sqlite/test_commits.py",),
        "half_done",
    ),
]

# --- what is done: those that the fault and security tests notice; tests/mutants/workers.py has more ---

DONE = [
    Mutant(
        "a report is not sent",
        "worker.py",
        "        self._outbox.append(settlement)\n        self._bell.set()\n",
        "        if settlement.status.final:\n            self._outbox.append(settlement)\n        self._bell.set()\n",
        ("tests/worker/test_timeouts.py",),
        "retried",
    ),
    Mutant(
        "a report whose answer was lost is not repeated",
        "worker.py",
        "                    if await self._exchange(settlements, claim):\n",
        "                    if await self._exchange(settlements, claim) or True:\n",
        ("tests/worker/test_outage.py",),
        "lost_answer",
    ),
    Mutant(
        "a slot is free before its body has ended",
        "crew.py",
        "return self._slots - len(self._flights) - len(self._strays)",
        "return self._slots - len(self._flights) // 2 - len(self._strays)",
        ("tests/worker/test_slots.py",),
    ),
    Mutant(
        "after an outage everybody is taken for dead",
        "upkeep.py",
        "if since is None or self._clock.monotonic() - since < self._lease_s:",
        "if since is None:",
        ("tests/worker/test_outage.py",),
    ),
    Mutant(
        "a worker that cannot renew goes on",
        "upkeep.py",
        "            self._answering_since = None\n            self._lose_what_is_over()\n",
        "            self._answering_since = None\n",
        ("tests/worker/test_outage.py",),
        "cannot_renew",
    ),
    Mutant(
        "a worker holds its first task before it is known to live",
        "worker.py",
        "            await self.storage.beat(self.info())\n",
        "",
        ("tests/faults/test_killed.py",),
        "runs_again and claimed",
    ),
    Mutant(
        "what may be imported is not asked",
        "registry.py",
        "return any(fnmatchcase(path, pattern) for pattern in self._allow or ())",
        "return True",
        ("tests/security/test_imports.py",),
        "allowed or registered",
    ),
    Mutant(
        "what is only imported there may be run from there",
        "registry.py",
        "return inspect.isroutine(func) and self._allowed(home)",
        "return True",
        ("tests/security/test_imports.py",),
        "allowed",
    ),
    Mutant(
        "a path in the payload is stronger than the task's own",
        "crew.py",
        "function = carried if callable(carried) else task.func_path or carried",
        "function = carried or task.func_path",
        ("tests/security/test_imports.py",),
        "path_inside",
    ),
    Mutant(
        "what the payload carries is run unasked",
        "crew.py",
        "function = carried if callable(carried) else task.func_path or carried",
        "function = self._serializer.load_call(task.payload)[0] if carried else task.func_path",
        ("tests/security/test_imports.py",),
        "path_inside",
    ),
    Mutant(
        "a payload over the limit is opened",
        "crew.py",
        "if limit is not None and len(task.payload) > limit:",
        "if limit is None and len(task.payload) > 0:",
        ("tests/security/test_sizes.py",),
        "opened",
    ),
]

MUTANTS = [*DECIDED, *REMEMBERED, *DONE]
