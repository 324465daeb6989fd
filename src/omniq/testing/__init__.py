"""For tests of your own: time that moves when you say so, tasks that run when you say so, a suite for stores.

`omniq.testing.conformance` and `omniq.testing.fixtures` need pytest and are imported only when asked for.
"""

from omniq.testing.clock import VirtualClock
from omniq.testing.draining import adrain, drain
from omniq.testing.kit import Kit, inline

__all__ = ["Kit", "VirtualClock", "adrain", "drain", "inline"]
