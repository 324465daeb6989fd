"""Bugs to plant in what people look at and steer with: pages, why, health, metrics, traces, `omniq top`."""

from tests.mutants.mutants import Mutant

GUARD = "web/guarding.py"
SAFE = ("tests/web/test_guard.py",)
METRICS = ("tests/cli/test_metrics.py",)
SPANS = ("tests/tracing",)

OPERATING = [
    Mutant(
        "read-only in name",
        GUARD,
        "        if not self._allow_actions:\n",
        "        if False:\n",
        SAFE,
        "without_leave",
    ),
    Mutant(
        "any site may act",
        GUARD,
        "        if not self._same_origin(headers):\n",
        "        if False:\n",
        SAFE,
        "another_site",
    ),
    Mutant(
        "any name is served",
        GUARD,
        "        if host_of(headers) not in self._hosts:\n",
        "        if False:\n",
        SAFE,
        "bent_here or another_site",
    ),
    Mutant(
        "a schedule shows its arguments",
        "web/shapes.py",
        '        "func": one.call.func_path,\n        "queue": one.call.queue,\n        "every"',
        '        "func": repr(one.call),\n        "queue": one.call.queue,\n        "every"',
        SAFE,
        "schedules",
    ),
    Mutant(
        "resume pauses",
        "web/application.py",
        "                await self._storage.resume_schedule(name)\n",
        "                await self._storage.pause_schedule(name)\n",
        SAFE,
        "schedules",
    ),
    Mutant(
        "a secret by its name is shown",
        "web/redacting.py",
        "HIDDEN if SECRET_NAME.search(name) else value(one, depth + 1)",
        "value(one, depth + 1)",
        SAFE,
        "secrets",
    ),
    Mutant(
        "why does not know of pauses",
        "logic/why.py",
        "    if task.queue in facts.paused:\n",
        "    if False:\n",
        ("tests/logic/test_why.py",),
    ),
    Mutant(
        "a queue that nobody serves is well",
        "logic/health.py",
        "        elif not serving:\n",
        "        elif False:\n",
        ("tests/logic/test_health.py",),
    ),
    Mutant(
        "every end counts as a success",
        "metrics.py",
        "        status = LOST if settlement is None else STATUSES[settlement.action]\n",
        '        status = "success"\n',
        METRICS,
        "counts_and_times",
    ),
    Mutant(
        "lapses are not counted",
        "upkeep.py",
        "                self.lapses += ended\n",
        "",
        METRICS,
        "lapsed",
    ),
    Mutant(
        "every process listens on the first socket",
        "cli/supervisor.py",
        "self._metrics[place] if self._metrics else None",
        "self._metrics[0] if self._metrics else None",
        METRICS,
        "its_own",
    ),
    Mutant(
        "runs begin a trace of their own",
        "tracing.py",
        "        sender = _HEADERS.extract(call.headers)\n",
        "        sender = _HEADERS.extract({})\n",
        SPANS,
    ),
    Mutant(
        "a trace tells messages",
        "tracing.py",
        "                span.set_status(Status(StatusCode.ERROR, kind_of_error))\n",
        "                span.set_status(Status(StatusCode.ERROR, str(exc)))\n",
        SPANS,
        "type_alone",
    ),
    Mutant(
        "what repeats makes its trace longer for ever",
        "tracing.py",
        "    if task.repeats or not carried:\n",
        "    if not carried:\n",
        SPANS,
        "repeats",
    ),
    Mutant(
        "one key is enough to cancel",
        "cli/terminal.py",
        "        if self._to_cancel != task_id:\n",
        "        if False:\n",
        ("tests/cli/test_top.py",),
        "keys",
    ),
]
