# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in the PostgreSQL store: in its SQL, its connections, and in transactional completion."""

from tests.mutants.mutants import Mutant

FUNCTIONS = "storage/postgres/sql/0002_functions.sql"
STATEMENTS = "storage/postgres/sql/statements.sql"
CONNECTIONS = "storage/postgres/connections.py"
TRANSACTIONS = "storage/postgres/transactions.py"
SUITE = "tests/conformance/test_postgres.py"
TRANSACTION = "tests/postgres/test_transaction.py"
NETWORK = "tests/postgres/test_network.py"
COST = "tests/postgres/test_cost.py"
FAULTS = "tests/postgres/test_faults.py"
CONN = "tests/postgres/test_conn.py"

POSTGRES = [
    Mutant(
        "PostgreSQL: a settle is not fenced by its epoch",
        FUNCTIONS,
        "FROM said s WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1",
        "FROM said s WHERE t.id = s.id AND t.status + 0 = 1",
        (SUITE,),
        "TestPostgres and (stale or epoch or zombie)",
    ),
    Mutant(
        "PostgreSQL: a success is not fenced by its epoch",
        FUNCTIONS,
        "WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1\n        RETURNING s.n, t.queue),",
        "WHERE t.id = s.id AND t.status + 0 = 1\n        RETURNING s.n, t.queue),",
        (SUITE,),
        "TestPostgres and (stale or epoch or zombie)",
    ),
    Mutant(
        "PostgreSQL: a settle ignores a cancel request",
        FUNCTIONS,
        "SELECT (CASE WHEN action = 0 THEN 2 WHEN cancel_requested THEN 4 WHEN action = 3 THEN 3",
        "SELECT (CASE WHEN action = 0 THEN 2 WHEN action = 3 THEN 3",
        (SUITE,),
        "TestPostgres and cancel",
    ),
    Mutant(
        "PostgreSQL: claimers wait for each other",
        FUNCTIONS,
        "                ORDER BY t.due, t.seq LIMIT wanted FOR UPDATE SKIP LOCKED) l",
        "                ORDER BY t.due, t.seq LIMIT wanted) l",
        (COST,),
        "hand_out",
    ),
    Mutant(
        "PostgreSQL: the names of queues are written in somebody's strict transaction",
        FUNCTIONS,
        "    IF current_setting('transaction_isolation') = 'read committed' THEN\n        IF EXISTS",
        "    IF true THEN\n        IF EXISTS",
        (CONN,),
        "our_own_books",
    ),
    Mutant(
        "PostgreSQL: a repeated claim does not wait for the first",
        FUNCTIONS,
        "    PERFORM pg_advisory_xact_lock(hashtextextended(new_claim_id || ' ' || worker_id, 0));",
        "",
        (FAULTS,),
        "under_way",
    ),
    Mutant(
        "PostgreSQL: a repeated claim takes others",
        FUNCTIONS,
        "    IF known THEN",
        "    IF false THEN",
        (FAULTS,),
        "lost_can_be_repeated",
    ),
    Mutant(
        "PostgreSQL: of two looks the one that answers last decides when to look again",
        "storage/postgres/__init__.py",
        "        if look > self._newest_look:",
        "        if True:",
        ("tests/postgres/test_races.py",),
        "two_looks",
    ),
    Mutant(
        "PostgreSQL: settle goes by the index of what runs",
        FUNCTIONS,
        "FROM said s WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1",
        "FROM said s WHERE t.id || '' = s.id AND t.epoch = s.epoch AND t.status = 1",
        (COST,),
        "plan",
    ),
    Mutant(
        "PostgreSQL: a success goes by the index of what runs",
        FUNCTIONS,
        "WHERE t.id = s.id AND t.epoch = s.epoch AND t.status + 0 = 1\n        RETURNING s.n, t.queue),",
        "WHERE t.id || '' = s.id AND t.epoch = s.epoch AND t.status = 1\n        RETURNING s.n, t.queue),",
        (COST,),
        "plan",
    ),
    Mutant(
        "PostgreSQL: nobody rings",
        FUNCTIONS,
        "        PERFORM pg_notify('omniq_due_' || md5(current_schema()), '');",
        "        NULL;",
        (FAULTS,),
        "wake_ups_come_back",
    ),
    Mutant(
        "PostgreSQL: what has no eta waits for a clock that was set back",
        FUNCTIONS,
        "        places := pick(coalesce(horizon, clock()), names,",
        "        places := pick(clock(), names,",
        (SUITE,),
        "whatever_the_clock_says",
    ),
    Mutant(
        "PostgreSQL: a clock that was set back costs for ever",
        FUNCTIONS,
        "    UPDATE latest SET at = clock() WHERE at > after(60)",
        "    UPDATE latest SET at = clock() WHERE false",
        (COST,),
        "set_back",
    ),
    Mutant(
        "PostgreSQL: silence is waited for",
        CONNECTIONS,
        "        timeout_s = self._patience_s if at_once else ANSWER_TIMEOUT_S",
        "        timeout_s = ANSWER_TIMEOUT_S",
        (NETWORK,),
        "dead_connections",
    ),
    Mutant(
        "a transaction is committed although the lease is stale",
        TRANSACTIONS,
        "                if answer is Answer.HELD:\n                    await self._whole.commit()",
        "                if True:\n                    await self._whole.commit()",
        (TRANSACTION,),
        "stale",
    ),
    Mutant(
        "a transaction is committed without its task",
        TRANSACTIONS,
        "                answer: Answer = await self._settle(self._conn, settlement)",
        "                answer = Answer.HELD",
        (TRANSACTION,),
        "success_commits",
    ),
    Mutant(
        "a body that fails keeps its writes",
        "crew.py",
        "        if not isinstance(outcome, Succeeded) or flight.reason == \"lost\":\n            await transaction.undo()",
        "        if not isinstance(outcome, Succeeded) or flight.reason == \"lost\":\n            await transaction._whole.commit()",
        (TRANSACTION,),
        "exception or snooze",
    ),
    Mutant(
        "a commit that nobody answered is a failure",
        "crew.py",
        "            self._landed(flight, Interrupted())\n        except Exception as exc:",
        "            self._landed(flight, failure(exc))\n        except Exception as exc:",
        (TRANSACTION,),
        "costs_no_attempt",
    ),
    Mutant(
        "what a body left on its connection meets the next",
        TRANSACTIONS,
        "                await conn.execute(CLEAN)",
        "                pass",
        (TRANSACTION,),
        "leaves_on_its_connection",
    ),
    Mutant(
        "a run that was handed out anew goes on beside the next",
        "crew.py",
        "            before.interrupt(\"lost\")  #",
        "            pass  #",
        (TRANSACTION,),
        "lost_while_it_runs",
    ),
    Mutant(
        "a call that was under way while the storage was closed keeps its connection",
        "storage/postgres/connections.py",
        "        if self._closed:\n            del self._pids[conn]",
        "        if False:\n            del self._pids[conn]",
        ("tests/postgres/test_faults.py",),
        "while_the_storage_is_closed",
    ),
    Mutant(
        "connections of a closed loop are in the way of the next",
        "storage/postgres/connections.py",
        "    with suppress(RuntimeError):\n        conn.terminate()",
        "    with suppress(ZeroDivisionError):\n        conn.terminate()",
        ("tests/postgres/test_loops.py",),
    ),
    Mutant(
        "a forked child ends its parent's connections",
        "storage/postgres/__init__.py",
        "        _PARENTS.append((self._connections, self._listening, self._transactions))\n        self._connections = None",
        "        pass",
        ("tests/postgres/test_fork.py",),
    ),
    Mutant(
        "who gives up has their connection back while a thread still uses it",
        "storage/postgres/joining.py",
        "        while not call.done():",
        "        while False:",
        ("tests/postgres/test_conn.py",),
        "gives_up",
    ),
    Mutant(
        "a storage that was abandoned belongs to the loop that closed",
        "storage/onserver.py",
        "            self._forget_parents()\n        super().abandon()",
        "            self._forget_parents()",
        ("tests/postgres/test_loops.py", "tests/redis/test_loops.py"),
        "worker",
    ),
]  # fmt: skip
