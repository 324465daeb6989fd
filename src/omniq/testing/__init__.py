"""For tests of your own: time that moves when you say so, and the suite that any store must pass.

`omniq.testing.conformance` needs pytest and is imported only when it is asked for.
"""

from omniq.testing.clock import VirtualClock

__all__ = ["VirtualClock"]
