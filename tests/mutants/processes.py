# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in tasks that run in processes, and in what becomes of suspects."""

from tests.mutants.mutants import LIFECYCLE, MEMORY, ROWS, SQLITE_ROWS, STORES, Mutant

TASKS = "tests/processes/test_tasks.py"
PARENT = "processes.py"

PROCESSES = [
    Mutant(
        "a suspect spends a loss",
        LIFECYCLE,
        "    if task.isolates and task.suspicions < MAX_SUSPICIONS:",
        "    if False:",
        (STORES,),
        "suspect",
    ),
    Mutant(
        "suspicions have no bound",
        LIFECYCLE,
        "    if task.isolates and task.suspicions < MAX_SUSPICIONS:",
        "    if task.isolates:",
        ("tests/logic/test_properties.py",),
    ),
    Mutant(
        "a death alone does not count",
        LIFECYCLE,
        "        return _one_loss_more(task, RunOutcome.DIED, error, now)\n",
        "        return Change(_waiting(task, now, 0.0), _run(task, RunOutcome.DIED, error, now))\n",
        (STORES,),
        "alone",
    ),
    Mutant(
        "a row forgets that its worker isolates",
        SQLITE_ROWS,
        "micros(now), claim.isolates, str(seqs))",
        "micros(now), False, str(seqs))",
        (STORES,),
        "TestSQLite and suspect",
    ),
    Mutant(
        "suspects run beside the others",
        "crew.py",
        "        if self._isolates and task.suspicions and self._in_processes().can_take(runnable):",
        "        if False:",
        (TASKS,),
        "suspect",
    ),
    Mutant(
        "scarce queues are not scarce on SQLite",
        SQLITE_ROWS,
        "        return self.paused().union(claim.scarce)",
        "        return self.paused()",
        (STORES,),
        "TestSQLite and scarce",
    ),
    Mutant(
        "scarce queues are not scarce in memory",
        MEMORY,
        "            scarce_left -= found[task_id].queue in claim.scarce\n",
        "",
        (STORES,),
        "TestMemory and scarce",
    ),
    Mutant(
        "what expired takes a place of the scarce ones",
        ROWS,
        "            if len(running) == len(batch) < wanted:",
        "            if len(batch) < wanted:",
        (STORES,),
        "scarce",
    ),
    Mutant(
        "a worker claims whatever its processes can take",
        "worker.py",
        "            max(0, self._crew.free_processes) if scarce else 0,",
        "            free,",
        (TASKS,),
        "no_more_is_claimed",
    ),
    Mutant(
        "a freed process is not noticed",
        "worker.py",
        "            self._look_at = 0.0  # a process is free again, which the last look may have found wanting\n",
        "            pass\n",
        (TASKS,),
        "no_more_is_claimed",
    ),
    Mutant(
        "a death of a process is an ordinary failure",
        PARENT,
        "            return Died(exc.cause)",
        "            return failure(exc)",
        (TASKS,),
        "killed_process",
    ),
    Mutant(
        "a cancelled body goes on in its process",
        PARENT,
        "            await pool.cancel(id=message.id)  # its end is only its end when the process is free\n",
        "",
        (TASKS,),
        "cancel or timeout",
    ),
    Mutant(
        "progress stays in the process",
        "inchild.py",
        "        running.note((done, total))",
        "        pass",
        (TASKS,),
        "progress",
    ),
    Mutant(
        "an async function is not awaited in a process",
        "inchild.py",
        "        if inspect.isawaitable(value):",
        "        if False:",
        (TASKS,),
        "async_function",
    ),
    Mutant(
        "a pool that was given is closed",
        PARENT,
        "        given = self._given if self._started_given else None\n",
        "        given = self._given\n",
        (TASKS,),
        "stays_open",
    ),
]
