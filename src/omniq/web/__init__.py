"""The dashboard: an ASGI application over the storage contract. Needs `pip install 'omniq-tasks[web]'`."""

from __future__ import annotations

from omniq.web.application import Dashboard, Settings

__all__ = ["Dashboard", "Settings"]
