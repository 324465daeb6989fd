# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in the data pool; `mutants.py` says how to read this."""

from tests.mutants.mutants import Mutant

SEED = "tests/requirements/test_s003.py"
POOL = "tests/data/test_worker_pool.py"
FAULTS = "tests/data/test_faults.py"
PARTS = "tests/data/test_parts.py"
STREAM = "data/stream.py"
ENGINE = "data/engine.py"
WORKER = "data/worker.py"
LINES = "pool/lines.py"
PEER = "pool/peer.py"
RESERVED = "pool/reserved.py"

DATA = [
    Mutant(
        "results as they come although order was asked for",
        STREAM,
        "            found = self._results.pop(self._next, None)\n            if found is None:\n                return None\n",
        "            found = self._results.pop(next(iter(self._results), -1), None)\n            if found is None:\n                return None\n",
        (SEED, PARTS),
        "s003_13 or whatever_ends_first",
    ),
    Mutant(
        "a skipped failure holds up what follows",
        STREAM,
        "        while self._results.get(self._next) is SKIPPED:\n            del self._results[self._next]\n            self._next += 1\n",
        "        return\n",
        (PARTS,),
    ),
    Mutant(
        "a reader waits for ever for what was left out",
        STREAM,
        "                if not self.unfinished and self._left_out:\n",
        "                if False:\n",
        (PARTS,),
        "whatever_ends_first",
    ),
    Mutant(
        "a reader is told too early that nothing is left",
        STREAM,
        "                if not self.unfinished and self._left_out:\n",
        "                if self._left_out:\n",
        (PARTS,),
        "too_early",
    ),
    Mutant(
        "stop leaves readers waiting",
        STREAM,
        "            for stream in tuple(self._streams):\n                stream.readable.notify_all()\n",
        "",
        (SEED,),
        "s003_16",
    ),
    Mutant(
        "None is looked at before the state",
        "data/worker_pool.py",
        "        crew = self._running_crew()\n        if isinstance(priority, bool)",
        "        fns = [_function(fn) for fn in fns]\n        crew = self._running_crew()\n        if isinstance(priority, bool)",
        (SEED,),
        "s003_8",
    ),
    Mutant(
        "priority is forgotten",
        "data/waiting.py",
        "(-item.priority, item.number, item))",
        "(0, item.number, item))",
        (PARTS, SEED),
        "urgent or s003_35",
    ),
    Mutant(
        "what was given beforehand does not make way",
        ENGINE,
        "            self._make_way()\n",
        "",
        (SEED,),
        "s003_35",
    ),
    Mutant(
        "nobody takes what waits behind a stuck call",
        ENGINE,
        "            elif item is not None or not self._take_from_busy():\n",
        "            else:\n",
        (FAULTS,),
        "d17_without_order",
    ),
    Mutant(
        "a lost item is not done again",
        ENGINE,
        "        if item.left:\n            self.put_back(item)\n",
        "        if item.left and not was_running:\n            self.put_back(item)\n",
        (FAULTS,),
        "d2_exactly",
    ),
    Mutant(
        "a lost item is done again for ever",
        ENGINE,
        "            if item.losses > self._max_losses:\n",
        "            if False:\n",
        (FAULTS,),
        "d2_only",
    ),
    Mutant(
        "what has ended is done again after a death",
        "data/crew.py",
        "        self._send(hand, call.after(done) if done else call)\n",
        "        self._send(hand, call)\n",
        (FAULTS,),
        "d2_of_a_chunk",
    ),
    Mutant(
        "workers run ahead of the reader without a bound",
        ENGINE,
        "            if first is None or enough:\n",
        "            if True:\n",
        (FAULTS,),
        "d22",
    ),
    Mutant(
        "a full arena waits for what it keeps from running",
        ENGINE,
        "            return self._waiting.first_needed(self._may_run)\n",
        "            return None\n",
        (FAULTS,),
        "d22 or d15",
    ),
    Mutant(
        "reading does not wake those who wait for room",
        STREAM,
        "        if self.is_narrow:\n            self._wake_once()\n",
        "",
        (FAULTS,),
        "d22_workers",
    ),
    Mutant(
        "results can be written to",
        PEER,
        "            buffers = [buffer.toreadonly() for buffer in buffers]\n",
        "            pass\n",
        (SEED,),
        "s003_34",
    ),
    Mutant(
        "the memory of a sent result is free in the worker",
        LINES,
        "        if not room.is_sent:\n            self._freed.append(room.where)\n",
        "        self._freed.append(room.where)\n",
        (POOL,),
        "arrives_whole or several",
    ),
    Mutant(
        "memory that was sent is sent again",
        LINES,
        "                    if room.is_sent:\n",
        "                    if False:\n",
        (POOL,),
        "returned_twice",
    ),
    Mutant(
        "an array made in place is copied all the same",
        LINES,
        "        if self._rooms:\n",
        "        if False:\n",
        (POOL,),
        "returned_twice",
    ),
    Mutant(
        "a slot is recycled under a view",
        "pool/arena.py",
        "        return export(self.map, self.size, self.free, self._start)\n",
        "        self.free()\n        return export(self.map, self.size, lambda: None, self._start)\n",
        (FAULTS,),
        "d18",
    ),
    Mutant(
        "memory that was cut anew overlaps",
        RESERVED,
        "                rest = [(offset + size, length - size)] if length > size else []\n",
        "                rest = [(offset + size - 1, length - size + 1)] if length > size else []\n",
        (PARTS,),
        "ranges",
    ),
    Mutant(
        "others may read the arena",
        "pool/arena.py",
        "        os.fchmod(fd, 0o600)\n",
        "",
        (FAULTS,),
        "d6",
    ),
    Mutant(
        "threads see the loop's last index",
        "data/threads.py",
        "        return ThreadCall(0, captured(fn), None)\n",
        "        return ThreadCall(0, fn, None)\n",
        (POOL,),
        "closures",
    ),
    Mutant(
        "init is not run in a replacement",
        WORKER,
        "        self._crew.prepare(child, self._prepare_id)\n",
        "        self._crew.prepare(child, self._prepare_id) if self.number == 1 else self._prepared(Returned(None))\n",
        (POOL,),
        "replacement",
    ),
    Mutant(
        "a stuck item is never stopped",
        ENGINE,
        "        elif now - worker.watched_at >= timeout_s * (1 - 1 / LOOKS_PER_TIMEOUT):\n",
        "        elif False:\n",
        (FAULTS,),
        "d17_a_stuck",
    ),
]
