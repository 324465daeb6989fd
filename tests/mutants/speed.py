"""Bugs to plant where bodies share a task or wake each other's threads, and where slots fall in step."""

from tests.mutants.mutants import Mutant

SHARED = "tests/worker/test_shared_runner.py"
IN_STEP = "tests/worker/test_in_step.py"
COROUTINES = "coroutines.py"

SPEED = [
    Mutant(
        "whoever waits keeps those behind it waiting",
        COROUTINES,
        "            runner.add_done_callback(flight.body_gone)\n            self._hand_over()\n",
        "            runner.add_done_callback(flight.body_gone)\n",
        (SHARED,),
    ),
    Mutant(
        "a body that cancels its own task cancels the next",
        COROUTINES,
        "                if _marks_on(runner) == untouched:\n                    continue\n",
        "                if True:\n                    continue\n",
        (SHARED,),
    ),
    Mutant(
        "a body that somebody can still reach by its task shares it",
        COROUTINES,
        "        sys.getrefcount(task),  # such as a key of a dict, or a timer that is to cancel it\n",
        "",
        (SHARED,),
    ),
    Mutant(
        "what was stopped before a thread took it runs",
        "executors.py",
        "        if not flight.is_over:  #",
        "        if True:  #",
        (IN_STEP,),
    ),
    Mutant(
        "a worker whose loop was cancelled tells nobody what ended",
        "worker.py",
        "            await self.storage.settle(self._outbox.settlements)\n",
        "            pass\n",
        ("tests/worker/test_odd_bodies.py",),
    ),
    Mutant(
        "bodies share their context variables",
        COROUTINES,
        "                waits_for = context.run(body.send, None)\n",
        "                waits_for = body.send(None)\n",
        (SHARED,),
    ),
    Mutant(
        "a cancelled runner forgets its flights",
        COROUTINES,
        "                flight.end(flight.interrupted())\n",
        "                pass\n",
        (SHARED,),
    ),
    Mutant(
        "what was interrupted before its first step runs",
        COROUTINES,
        "            if flight.ended:  # interrupted before its first step\n                continue\n",
        "",
        (SHARED,),
    ),
    Mutant(
        "a thread that leaves flights behind calls nobody",
        "executors.py",
        "            if self._work:\n                self._call_next()\n            self._tell_loop()\n",
        "            self._tell_loop()\n",
        (IN_STEP,),
    ),
    Mutant(
        "a thread that begins a body does not tell what has ended",
        "executors.py",
        "                self._call_next()\n            self._tell_loop()\n",
        "                self._call_next()\n",
        (IN_STEP,),
    ),
    Mutant(
        "a thread without work does not tell what has ended",
        "executors.py",
        "                self._serve_next()\n            self._tell_loop()\n",
        "                self._serve_next()\n",
        (IN_STEP,),
    ),
    Mutant(
        "a function that was quick once is trusted for ever",
        "executors.py",
        "            self._quick.clear()\n",
        "",
        (IN_STEP,),
    ),
    Mutant(
        "nobody is called to what waits behind a trusted body",
        "executors.py",
        "            self._called = False  # whoever was called may be the one who is held up\n"
        "            self._call_next()\n",
        "",
        (IN_STEP,),
    ),
    Mutant(
        "what ended before a trusted body that blocks is left untold",
        "executors.py",
        "        if self._ended:\n            self._drain()\n        if self._work or moved_on:",
        "        if self._work or moved_on:",
        (IN_STEP,),
    ),
    Mutant(
        "slots that fell out of step stay so",
        "exchanges.py",
        "        if settling and self._falls_in:\n",
        "        if False:\n",
        (IN_STEP,),
    ),
    Mutant(
        "chores of an idle worker wake it one by one",
        "upkeep.py",
        "if now + look_every_s * NEARLY >= self._next.get(name, 0.0):",
        "if now >= self._next.get(name, 0.0):",
        ("tests/worker/test_waking.py",),
        "together",
    ),
    Mutant(
        "a claim has the options of the one before it",
        "storage/sqlite/records.py",
        "if task is not None and own_options == options and one.func_path == path:",
        "if task is not None and one.func_path == path:",
        ("tests/sqlite/test_records.py",),
    ),
    Mutant(
        "a claim has the function of the one before it",
        "storage/sqlite/records.py",
        "if task is not None and own_options == options and one.func_path == path:",
        "if task is not None and own_options == options:",
        ("tests/sqlite/test_records.py",),
    ),
    Mutant(
        "calls of an application are not weighed",
        "storage/batched.py",
        "            for task in tasks:\n                self._check_size(task)\n",
        "",
        ("tests/app/test_tasks.py",),
        "refused",
    ),
    Mutant(
        "headers may change after they were checked",
        "calls.py",
        '        fields["headers"] = dict(fields["headers"])',
        '        fields["headers"] = fields["headers"]',
        ("tests/app/test_tasks.py",),
        "headers",
    ),
]
