# ruff: noqa: E501 - the text of a source line is quoted as it is
"""Bugs to plant in schedules, limits and moves; `mutants.py` says how to read this."""

from tests.mutants.mutants import Mutant

STORES = "tests/conformance/test_stores.py"
LOGIC = "tests/logic/test_schedule.py"
DECIDES = "logic/schedule.py"
ROWS = "storage/rows.py"
OVER_ROWS = "storage/scheduling.py"
MOVING = "storage/moving.py"
APP = "tests/app/test_schedules.py"

SCHEDULES = [
    Mutant(
        "a repeated time fires twice",
        DECIDES,
        "        if tick > latest:\n            latest = tick\n            yield tick\n",
        "        yield tick\n",
        (LOGIC,),
        "f20",
    ),
    Mutant(
        "the offset of the beginning holds for ever",
        DECIDES,
        "            changed = _first_change(zone, after, tick)\n",
        "            changed = None\n",
        (LOGIC,),
        "f20",
    ),
    Mutant(
        "no tick at the very moment of a change",
        DECIDES,
        "            if wall.replace(tzinfo=UTC) - found == changed:\n                yield changed\n",
        "",
        (LOGIC,),
        "f20",
    ),
    Mutant(
        "the latest is all",
        DECIDES,
        'enough = MAX_CATCH_UP if schedule.catch_up == "all" else 1',
        "enough = MAX_CATCH_UP",
        (LOGIC,),
        "caught_up",
    ),
    Mutant(
        "skip catches up",
        DECIDES,
        "        passed = [tick for tick in passed if now - tick <= LATE]\n",
        "        pass\n",
        (LOGIC, STORES),
        "skip",
    ),
    Mutant(
        "saving again moves the ticks",
        DECIDES,
        "    if (new.every, new.cron, new.tz) != (known.every, known.cron, known.tz):\n",
        "    if True:\n",
        (LOGIC, STORES),
        "again or another_call",
    ),
    Mutant(
        "saving again wakes who is paused",
        DECIDES,
        "        paused=known.paused,\n",
        "        paused=False,\n",
        (STORES,),
        "paused",
    ),
    Mutant(
        "the next tick is not moved on",
        DECIDES,
        "        next_at=next_after(schedule, now),\n        revision=schedule.revision + 1,\n",
        "        revision=schedule.revision + 1,\n",
        (LOGIC, STORES),
        "tick",
    ),
    Mutant(
        "overlap is allowed",
        DECIDES,
        '    if key is None and schedule.overlap == "skip":\n',
        "    if False:\n",
        (STORES,),
        "overlap",
    ),
    Mutant(
        "a known tick is inserted again",
        OVER_ROWS,
        "    if rows.get(task.id) is not None or rows.remembered(task.id) is not None:\n        return False\n",
        "",
        (STORES,),
        "id_is_known",
    ),
    Mutant(
        "workers do not fire",
        "upkeep.py",
        '        if self._storage.overrides("fire_due"):\n            chores.append(("fire", FIRE_EVERY_S, self._fire))\n',
        "",
        (APP,),
    ),
    Mutant(
        "workers do not sleep until the tick",
        "upkeep.py",
        '            self._next["fire"] = min(self._next["fire"], self._clock.monotonic() + fired.next_in_s)\n',
        "            pass\n",
        (APP,),
        "moment",
    ),
    Mutant(
        "a full queue takes one more",
        ROWS,
        "self.depth(queue, most) + more > most",
        "self.depth(queue, most) + more > most + 1",
        (STORES,),
        "full or limit",
    ),
    Mutant(
        "the fast way into a queue knows no limit",
        "storage/sqlite/rows.py",
        "        if limits and not self.limits().keys().isdisjoint(task.queue for task in tasks):\n            return False\n",
        "",
        (STORES,),
        "full",
    ),
    Mutant(
        "a parcel is taken in twice",
        MOVING,
        "    if rows.has_receipt(parcel.id):\n        return TakenIn()\n",
        "",
        (STORES, "tests/faults/test_moves.py"),
        "once or killed",
    ),
    Mutant(
        "a second parcel is made before the first is gone",
        MOVING,
        "    if known is not None:\n        return unpack(known)\n",
        "",
        (STORES,),
        "same_parcel",
    ),
    Mutant(
        "a moved task forgets its history",
        MOVING,
        "        rows.add_run(kept, run)\n",
        "        pass\n",
        (STORES,),
        "as_it_was",
    ),
    Mutant(
        "the source forgets before the target has it",
        "moving.py",
        "        try:\n            taken = await target.take_in(parcel)\n",
        "        try:\n            await source.drop_parcel(parcel.id)\n            taken = await target.take_in(parcel)\n",
        ("tests/faults/test_moves.py",),
    ),
]
