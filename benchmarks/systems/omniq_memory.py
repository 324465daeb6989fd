"""OmniQ without a disk: what the worker itself costs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.systems.shared.omniq_app import OmniqSystem
from omniq.storage import BaseStorage, MemoryStorage


class OmniqMemory(OmniqSystem):
    name = "omniq-memory"
    store = "memory"
    promise = "ended after the run, result kept, everything lost with the process"
    across = False
    processes = (1,)
    delivery = "while it lives"

    def storage(self, folder: Path) -> BaseStorage:
        return MemoryStorage()
