# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in the process pool: one per rule of its locking model; `mutants.py` says how to read this."""

from tests.mutants.mutants import Mutant

RULES = "tests/pool/test_rules.py"
SEED = "tests/requirements/test_s004.py"
GROWTH = "tests/pool/test_growth.py"
REGISTRY = "pool/registry.py"
DISPATCHER = "pool/dispatcher.py"
AUTOSCALER = "pool/autoscaler.py"
SCALING = "logic/scaling.py"

LOCKS = [
    Mutant(
        "two worker locks at once",
        REGISTRY,
        "            async with worker.lock:\n                found += holds(worker)\n",
        "            await worker.lock.acquire()\n            found += holds(worker)\n        for worker in (await self.snapshot()).values():\n            if worker.lock.locked():\n                worker.lock.release()\n",
        (RULES,),
    ),
    Mutant(
        "the registry lock under a worker lock",
        AUTOSCALER,
        "            async with worker.lock:\n                does = self._looked_after(worker, now)\n",
        "            async with worker.lock:\n                await self._workers.snapshot()\n                does = self._looked_after(worker, now)\n",
        (RULES,),
    ),
    Mutant(
        "a worker lock under the registry lock",
        REGISTRY,
        "        async with self.management_lock:\n            return dict(self.workers)\n",
        "        async with self.management_lock:\n            for worker in self.workers.values():\n                async with worker.lock:\n                    pass\n            return dict(self.workers)\n",
        (RULES,),
    ),
    Mutant(
        "the registry is changed without its lock",
        REGISTRY,
        "        async with self.management_lock:\n            self.workers.pop(worker_id, None)\n            self._published = tuple(self.workers.values())\n",
        "        self.workers.pop(worker_id, None)\n        self._published = tuple(self.workers.values())\n",
        (SEED,),
        "s004_2",
    ),
    Mutant(
        "busy is counted without the workers' locks",
        REGISTRY,
        "            async with worker.lock:\n                found += holds(worker)\n",
        "            found += holds(worker)\n",
        (RULES,),
    ),
    Mutant(
        "outcomes are noted without the worker's lock",
        DISPATCHER,
        "        async with worker.lock:\n            message = worker.current_task\n            if isinstance(message, Message):\n                message.report(first_id, outcomes)\n",
        "        message = worker.current_task\n        if isinstance(message, Message):\n            message.report(first_id, outcomes)\n",
        (RULES,),
    ),
    Mutant(
        "a note is read without the worker's lock",
        DISPATCHER,
        "        async with worker.lock:\n            message = worker.current_task\n            # A thread",
        "        if True:\n            message = worker.current_task\n            # A thread",
        (SEED,),
        "s004_6",
    ),
    Mutant(
        "a worker is free again without its lock",
        DISPATCHER,
        "        await lock.acquire()  # a little quicker than `async with`, which counts here\n",
        "        lock = asyncio.Lock()\n        await lock.acquire()\n",
        (RULES,),
    ),
    Mutant(
        "an end is marked without the worker's lock",
        DISPATCHER,
        '        async with worker.lock:\n            if worker.status not in GONE:\n                worker.enter("exited")\n',
        '        if worker.status not in GONE:\n            worker.status = "exited"\n',
        (RULES, SEED),
    ),
]

QUEUE = [
    Mutant(
        "ready twice is two turns",
        DISPATCHER,
        "            if worker.status not in COMING:\n                return\n",
        "",
        (SEED,),
        "s004_11",
    ),
    Mutant(
        "a late done is another turn",
        DISPATCHER,
        '            if not isinstance(message, Message) or message.id != message_id:\n                return\n            if outcomes:\n                message.report(first_id, outcomes)\n            assert not message.left, "done comes after the last outcome"\n            worker.finish_task(message.encoded.count)\n',
        "            worker.finish_task(1)\n            if not isinstance(message, Message):\n                self.workers.line_up(worker)\n                return\n",
        (SEED,),
        "s004_11",
    ),
    Mutant(
        "readiness is not checked again under the lock",
        REGISTRY,
        "                if worker.is_idle:\n                    worker.start_task(message)\n                    return worker\n",
        '                worker.current_task = None\n                worker.status = "ready"\n                worker.start_task(message)\n                return worker\n',
        (RULES, SEED),
    ),
    Mutant(
        "a turn is lost with a cancelled reservation",
        REGISTRY,
        "                self._eager.begin(self._return_turn(worker))\n                raise\n",
        "                raise\n",
        (SEED, RULES),
    ),
    Mutant(
        "a turn comes back twice with a cancelled reservation",
        REGISTRY,
        "                self._eager.begin(self._return_turn(worker))\n                raise\n",
        "                self._eager.begin(self._return_turn(worker))\n                self._eager.begin(self._return_turn(worker))\n                raise\n",
        (SEED, RULES),
    ),
    Mutant(
        "the last who became ready goes first",
        REGISTRY,
        "self.workers.get(self.ready_queue.popleft())",
        "self.workers.get(self.ready_queue.pop())",
        (SEED,),
        "s004_16",
    ),
    Mutant(
        "the first stale entry ends the search",
        REGISTRY,
        "            if worker is None:\n                continue\n",
        "            if worker is None:\n                return None\n",
        (SEED,),
        "s004_13",
    ),
    Mutant(
        "a free worker is searched for among all",
        REGISTRY,
        "        while self.ready_queue:\n",
        "        for one in list(self.workers.values()):\n            async with one.lock:\n                pass\n        while self.ready_queue:\n",
        (SEED,),
        "s004_15",
    ),
]

WORKFLOW = [
    Mutant(
        "done of a stopping worker brings it back",
        DISPATCHER,
        '            if worker.status == "ready":\n                self._go_on(worker)\n',
        '            worker.status = "ready"\n            self._go_on(worker)\n',
        (SEED, RULES),
    ),
    Mutant(
        "a busy worker is asked to stop",
        AUTOSCALER,
        "                if worker.is_idle:\n                    worker.ask_to_stop(reason)\n                    stopped += 1\n",
        "                worker.ask_to_stop(reason)\n                stopped += 1\n",
        (GROWTH,),
    ),
    Mutant(
        "one that stops already is asked to stop",
        AUTOSCALER,
        "                if worker.is_idle:\n                    worker.ask_to_stop(reason)\n                    stopped += 1\n",
        "                if worker.current_task is None:\n                    worker.ask_to_stop(reason)\n                    stopped += 1\n",
        (SEED,),
        "s004_23",
    ),
    Mutant(
        "two at a time give out what waits",
        DISPATCHER,
        "        if self._draining:\n            return",
        "        if False:\n            return",
        (SEED,),
        "s004_19",
    ),
    Mutant(
        "nobody is told that a call waits",
        DISPATCHER,
        "                if worker is None:\n                    self.nudge()\n                    break\n",
        "                if worker is None:\n                    break\n",
        (SEED,),
        "s004_17",
    ),
    Mutant(
        "a worker that becomes ready does not look for what waits",
        DISPATCHER,
        "        self._starts.came_to_life()\n        await self._drain()\n",
        "        self._starts.came_to_life()\n",
        (SEED,),
        "s004_17 or s004_26",
    ),
    Mutant(
        "a wake-up is lost between looking and queueing",
        DISPATCHER,
        "        self.messages[message.id] = message\n        self.backlog.append(message)\n        self.begin_drain()\n",
        "        self.messages[message.id] = message\n        self.begin_drain()\n        asyncio.get_running_loop().call_soon(self.backlog.append, message)\n",
        (SEED, RULES),
    ),
    Mutant(
        "what waits is served last come first",
        DISPATCHER,
        "        self.backlog.append(message)\n        self.begin_drain()\n",
        "        self.backlog.put_back(message)\n        self.begin_drain()\n",
        (SEED,),
        "s004_19",
    ),
    Mutant(
        "a result is there before its worker is free",
        DISPATCHER,
        '            worker.finish_task(message.encoded.count)\n            if worker.status == "ready":\n                self._go_on(worker)\n        finally:\n            lock.release()\n',
        '        finally:\n            lock.release()\n        self.conclude(message)\n        await asyncio.sleep(0)\n        await asyncio.sleep(0)\n        async with worker.lock:\n            worker.finish_task(message.encoded.count)\n            if worker.status == "ready":\n                self._go_on(worker)\n',
        (SEED,),
        "s004_18",
    ),
    Mutant(
        "a call of a dead worker is forgotten",
        DISPATCHER,
        "        if isinstance(message, Message):\n            self._lost(message, running, cause)\n",
        "",
        (SEED,),
        "s004_27",
    ),
    Mutant(
        "calls of a batch that never began are lost as well",
        "pool/message.py",
        "        while self.left and self.was_sent and self.head <= running:\n",
        "        while self.left and self.was_sent:\n",
        (GROWTH,),
        "one_by_one",
    ),
    Mutant(
        "calls of a batch that have ended run again",
        "pool/message.py",
        "rest = self.encoded.after(len(self.outcomes)) if self.outcomes else self.encoded",
        "rest = self.encoded",
        (GROWTH,),
        "one_by_one",
    ),
    Mutant(
        "a withdrawn call is sent all the same",
        "pool/message.py",
        "        if self.withdrawn:\n            return\n",
        "",
        (GROWTH, RULES),
    ),
    Mutant(
        "those who are gone stay in the registry",
        AUTOSCALER,
        "            await self._workers.remove(worker_id)\n",
        "            pass\n",
        (SEED,),
        "s004_22",
    ),
]

GROWING = [
    Mutant(
        "starting workers do not count",
        SCALING,
        "return self.busy + self.idle + self.starting",
        "return self.busy + self.idle",
        (GROWTH,),
    ),
    Mutant(
        "a moment without need is enough to shrink",
        SCALING,
        "surplus = 0 if load.waiting else min(load.spare, load.idle, have - limits.min_workers)",
        "surplus = 0 if load.waiting else min(load.idle, have - limits.min_workers)",
        ("tests/logic/test_scaling.py",),
    ),
    Mutant(
        "those who leave are not counted",
        SCALING,
        "room = limits.max_workers - have - load.leaving",
        "room = limits.max_workers - have",
        ("tests/logic/test_scaling.py",),
    ),
    Mutant(
        "busy moments between two looks are not seen",
        DISPATCHER,
        "        self.fewest_idle = min(self.fewest_idle, len(self.workers.ready_queue))\n",
        "",
        (GROWTH,),
    ),
    Mutant(
        "workers that keep dying are replaced at once",
        SCALING,
        "    if load.held_s > 0:\n",
        "    if load.held_s > 99:\n",
        (GROWTH,),
    ),
    Mutant(
        "a lowered limit is not for workers that start",
        DISPATCHER,
        "            self._line_up_or_leave(worker)  # also where it is worn out: it must do something first",
        "            self.workers.line_up(worker)",
        (GROWTH,),
    ),
    Mutant(
        "a lowered limit is for idle workers only",
        AUTOSCALER,
        "self._dispatcher.excess = max(0, over - stopped)",
        "self._dispatcher.excess = 0",
        (GROWTH,),
    ),
]

NOTES = [
    Mutant(
        "a late note is the next call's, in the parent",
        DISPATCHER,
        " or call_id not in message.unreported:",
        ":",
        ("tests/pool/test_pool.py",),
        "note",
    ),
]

COPIES = [
    Mutant(
        "a copy of a process answers calls",
        "pool/lines.py",
        "        if copies.is_copy():\n            copies.leave()\n",
        "",
        ("tests/pool/test_child.py",),
        "copy",
    ),
    Mutant(
        "a copy of a process runs the rest of a range",
        "pool/ranges.py",
        "        self._flush_at = 0.0\n\n    def _skip",
        "\n    def _skip",
        ("tests/pool/test_child.py",),
        "copy",
    ),
    Mutant(
        "a copy of a process writes to the page of the worker",
        "pool/copies.py",
        "        libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)\n",
        "",
        ("tests/pool/test_child.py",),
        "copy",
    ),
]

STARTING = [
    Mutant(
        "a start is over with its last step, whoever was cancelled then",
        "pool/starting.py",
        "        await self._taken.wait()\n",
        "",
        (GROWTH,),
        "every_moment",
    ),
    Mutant(
        "a start is undone though another one has it",
        "pool/starting.py",
        "            if not self._waiting and not self._taken.is_set():\n",
        "            if not self._taken.is_set():\n",
        ("tests/pool/test_pool_faults.py",),
        "one_who_gives_up",
    ),
    Mutant(
        "a dead worker is busy for ever",
        DISPATCHER,
        '            message = worker.finish_task(0)\n            worker.enter("retired"',
        '            message = worker.current_task\n            worker.enter("retired"',
        (SEED,),
        "s004_27",
    ),
    Mutant(
        "a moment of readiness is hope",
        "pool/starts.py",
        "        self._stillborn = 0\n\n",
        "        self._stillborn = self.fruitless = 0\n\n",
        (GROWTH,),
        "no_hope",
    ),
    Mutant(
        "workers that never were ready are tried as often as a call may be",
        "pool/starts.py",
        "        if self._stillborn >= MAX_FAILED_STARTS:\n            return True\n",
        "",
        (GROWTH,),
        "no_hope",
    ),
    Mutant(
        "failed starts end what a living worker would have come to",
        DISPATCHER,
        "            return  # those who live will come to what waits\n",
        "            pass\n",
        (GROWTH,),
        "somebody_lives",
    ),
    Mutant(
        "five kills before it begins end a call that may be retried",
        "pool/message.py",
        "max(MAX_FALSE_STARTS, self.options.retries + 1)",
        "MAX_FALSE_STARTS",
        (GROWTH,),
        "for_ever",
    ),
    Mutant(
        "a worker that hangs as it leaves keeps its place",
        AUTOSCALER,
        "            if worker.current_task is None and now - worker.since >= STOP_GRACE_S:\n",
        "            if False:\n",
        (GROWTH,),
        "hangs_as_it_leaves",
    ),
    Mutant(
        "the time limit of a start belongs to the autoscaler",
        "pool/pool.py",
        "        self._spawning.begin_as_task(",
        "        self._spawning.begin(",
        (GROWTH,),
        "takes_too_long",
    ),
]

POOL = [*LOCKS, *QUEUE, *WORKFLOW, *GROWING, *NOTES, *COPIES, *STARTING]
