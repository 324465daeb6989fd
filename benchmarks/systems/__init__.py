"""One file for each system that can be measured: `huey_sqlite.py` brings the system `huey-sqlite`."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.systems.base import System


def load(name: str) -> System:
    """The system of that name; nothing of any other is imported."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    [system] = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, System) and kind.__dict__.get("name") == name
    ]
    return system()


def load_all() -> dict[str, System]:
    """Every system: OmniQ first, then the limits, then the peers."""
    files = [file.name for file in pkgutil.iter_modules(__path__) if not file.ispkg and file.name != "base"]
    systems = [load(name.replace("_", "-")) for name in files]
    order = ("omniq", "limit", "peer")
    return {s.name: s for s in sorted(systems, key=lambda s: (order.index(s.role), s.name))}
