"""Bugs to plant in the rules for retries, in hooks, in unique calls and in the test kit."""

from tests.mutants.mutants import Mutant

RULES = "tests/logic/test_rules.py"
HOOKS = "tests/policies/test_hooks.py"
WORKER_RULES = "tests/policies/test_rules.py"
KIT = "tests/kit/test_kit.py"

POLICIES = [
    Mutant(
        "give_up_on is not asked",
        "logic/retry.py",
        "        return not self.give_up_on.isdisjoint(kinds) or (",
        "        return False or (",
        (RULES,),
    ),
    Mutant(
        "retry_on is not asked",
        "logic/retry.py",
        "            self.retry_on is not None and self.retry_on.isdisjoint(kinds)",
        "            self.retry_on is not None and False",
        (RULES,),
    ),
    Mutant(
        "the rules count before what a body asks for",
        "logic/retry.py",
        "        if failed.delay_s is not None or self.delay is None:",
        "        if self.delay is None:",
        (RULES,),
    ),
    Mutant(
        "the last hook is outermost",
        "hooks.py",
        "    for hook in reversed(hooks):",
        "    for hook in hooks:",
        (HOOKS,),
        "outermost",
    ),
    Mutant(
        "a thread under a hook frees its slot at its timeout",
        "executors.py",
        "        if self.occupied and not self.in_thread:",
        "        if self.occupied:",
        (HOOKS,),
        "slot",
    ),
    Mutant(
        "a call with other arguments has the same key",
        "calls.py",
        "        return [(name, bound.arguments[name]) for name in names]",
        "        return [(name, None) for name in names]",
        (WORKER_RULES,),
        "unique or equal",
    ),
    Mutant(
        "a key has a set in the order of this process",
        "serializer/packing.py",
        "        return self.tag(type(value).__name__, sorted(packed, key=self.sort_key))",
        "        return self.tag(type(value).__name__, packed)",
        (WORKER_RULES,),
        "sets",
    ),
    Mutant(
        "virtual time fires no schedules",
        "testing/draining.py",
        "        moments += ticks\n",
        "",
        (KIT,),
        "schedules",
    ),
]
