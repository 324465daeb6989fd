"""The fixtures that the tests of workers share."""

from tests.worker.fixtures import bodies, builtin, foreign, logs, remote, store, timed

__all__ = ["bodies", "builtin", "foreign", "logs", "remote", "store", "timed"]
