"""From `--url`, or what is configured, to a store that exists; no application is needed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from omniq.cli.errors import CommandFailed, written_wrongly
from omniq.cli.group import debugging

if TYPE_CHECKING:
    from omniq.app import OmniQ
    from omniq.storage.base import BaseStorage

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    return click.option(
        "--url", metavar="URL", help="The store; without it OMNIQ_URL, or what the project configures."
    )(command)


def with_store(url: str | None, work: Callable[[BaseStorage], Coroutine[Any, Any, T]]) -> T:
    """Do `work` with the store behind `url`, and close it again."""
    import asyncio

    from omniq.cli import log

    storage = find_store(url)
    log.configure("warning", debug=debugging())
    return asyncio.run(_work_with(storage, work))


async def _work_with(storage: BaseStorage, work: Callable[[BaseStorage], Coroutine[Any, Any, T]]) -> T:
    async with storage:
        return await work(storage)


def find_store(url: str | None) -> BaseStorage:
    """The store, not opened yet. One that is not there is not made: that would hide a mistyped path."""
    from omniq.config import configured_url, default_file
    from omniq.storage.memory import MemoryStorage
    from omniq.storage.sqlite import SQLiteStorage

    if url is None:
        url = configured_url() or f"sqlite:///{default_file()}"
    storage = storage_at(url)  # also an empty one, such as that of a variable that is not set: it is refused
    if isinstance(storage, MemoryStorage):
        raise CommandFailed("a memory:// store lives inside its application; from here nobody can see it")
    if isinstance(storage, SQLiteStorage) and not storage.path.exists():
        raise CommandFailed(f"there is no store at {storage.path}; name yours with --url, or set OMNIQ_URL")
    return storage


def storage_at(url: str) -> BaseStorage:
    from omniq.storage.url import open_storage

    with _addressed():
        return open_storage(url)


def storage_of(q: OmniQ) -> BaseStorage:
    """The store that an application has, or that OMNIQ_URL names."""
    with _addressed():
        return q.storage()


@contextmanager
def _addressed() -> Generator[None]:
    """An address that means nothing was written wrongly, whatever this machine has.

    A driver that is not installed, a folder that is not there, a server that is away: those words were right.
    """
    from omniq.errors import InvalidOption

    with written_wrongly():
        try:
            yield
        except InvalidOption as exc:
            if isinstance(exc.__cause__, ModuleNotFoundError):
                raise CommandFailed(str(exc)) from exc
            raise
