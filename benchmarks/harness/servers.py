"""The servers that systems run on: what the runner asks of one, whichever it is.

Each sample has a place of its own on it, empty at the beginning and gone at the end. A child learns from a
file in its folder where to connect. Only the runner imports this.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path


class NoServer(Exception):
    """No such server can be had here; what needs one is named and left out."""


class Server(ABC):
    @abstractmethod
    def start(self) -> None:
        """Called for each system that needs it. Raises `NoServer`."""

    @abstractmethod
    def stop(self) -> None:
        """Everything is gone, places that were to last as well."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """An empty place, known in `folder`."""

    @abstractmethod
    def remove(self, folder: Path) -> None: ...

    @abstractmethod
    def requests(self, folder: Path) -> int:
        """How many transactions or commands there were so far in that folder's place."""

    @contextlib.contextmanager
    def place(self, folder: Path) -> Iterator[None]:
        self.make(folder)
        try:
            yield
        finally:
            self.remove(folder)
