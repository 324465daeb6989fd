"""How every test of this repository runs: `async def` tests get a loop of their own, no test may hang.

An async test that outlives its bound is cancelled and fails. A test that cannot be cancelled (a thread that
blocks, a body that swallows its cancellation) ends the whole process a little later, with the stack of every
thread on stderr; under xdist that is one failed test and a new worker.
"""

import asyncio
import faulthandler
import functools
import gc
import inspect
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

DEFAULT_BOUND_S = 60.0
CANCELLATION_GRACE_S = 15.0
# Whoever has a server names it here; tests then start none of that kind, except those they mistreat.
GIVEN = {"postgres": "OMNIQ_TEST_POSTGRES", "redis": "OMNIQ_TEST_REDIS"}

# Where a system keeps files in memory, and what must be free there: the servers of a few tests at a time.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 3 << 30

# Folders whose tests take long, each of them, the longest first.
LONG_FIRST = (
    "benchmarks",
    "types",
    "faults",
    "data",
    "cli",
    "pool",
    "web",
    "examples",
    "docs",
    "demo",
    "model",
)

# Time is measured by the tests marked quiet; an example that met a busy machine is not a counterexample.
hypothesis.settings.register_profile(
    "omniq", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("omniq")

uncaptured_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    # Capturing is suspended at this moment only: later, descriptor 2 is a temporary file that dies with us.
    config.stash[uncaptured_stderr] = os.dup(2)
    # The developer's own settings must not reach a test, nor the processes that it starts.
    kept = ("OMNIQ_REQUIRE", *GIVEN.values())
    for name in [name for name in os.environ if name.startswith("OMNIQ_") and name not in kept]:
        del os.environ[name]
    if "TMPDIR" not in os.environ and (folder := folder_in_memory()) is not None:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    # A shell that starts us in the background has Ctrl-C ignored: what tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def folder_in_memory() -> Path | None:
    """For temporary files, those of servers too: tests ask whether a store syncs, not how fast a disk does.

    A test of a store otherwise waits for little else, and on a busy disk ten times as long. The name is the
    same in every run, so that pytest finds what the last ones left.
    """
    folder = MEMORY / f"tests-{os.getuid()}"
    try:
        system = os.statvfs(MEMORY)
        # Tests write programs there, and run them.
        if system.f_bavail * system.f_frsize < ROOM_BYTES or system.f_flag & os.ST_NOEXEC:
            return None
        folder.mkdir(exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            return None
        folder.chmod(0o711)  # PostgreSQL may run as another user, in a folder of its own
        return folder
    except OSError:
        return None


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[uncaptured_stderr])


def pytest_sessionfinish(session: pytest.Session) -> None:
    factory: pytest.TempPathFactory | None = getattr(session.config, "_tmp_path_factory", None)
    if is_xdist_worker() or factory is None:
        return
    for kind in GIVEN:
        if (factory.getbasetemp() / f"{kind}.json").exists():
            from tests import servers

            servers.stop_shared(kind, factory.getbasetemp())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Ten thousand tests and what they import stay until the end: garbage is not looked for among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long begins first: a long test that begins last leaves all workers but one without work."""
    items.sort(key=lambda item: place_in_line(item.path.parent.name))


def place_in_line(folder: str) -> int:
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)


def is_xdist_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real server; without one the test is skipped."""
    return server_of_the_session("postgres", tmp_path_factory)


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real server; without one the test is skipped."""
    return server_of_the_session("redis", tmp_path_factory)


def server_of_the_session(kind: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests import servers

    if given := os.environ.get(GIVEN[kind]):
        return given
    own = tmp_path_factory.getbasetemp()
    shared, controller = (own.parent, os.getppid()) if is_xdist_worker() else (own, os.getpid())
    try:
        return servers.shared_address(kind, shared, controller)
    except servers.NoServer as why:
        servers.missing(kind, why)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    end_s = bound_of(item) + CANCELLATION_GRACE_S
    faulthandler.dump_traceback_later(end_s, exit=True, file=item.config.stash[uncaptured_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    bound_s = bound_of(pyfuncitem)
    if inspect.iscoroutinefunction(function):
        arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(function).parameters}
        blocking(function, bound_s)(**arguments)
        return True
    # Under @given each example is a run of the inner function, which Hypothesis lets us exchange.
    given = getattr(function, "hypothesis", None)
    if given is not None and inspect.iscoroutinefunction(given.inner_test):
        given.inner_test = blocking(given.inner_test, bound_s)
    return None


def bound_of(item: pytest.Item) -> float:
    marker = item.get_closest_marker("bound")
    return DEFAULT_BOUND_S if marker is None else float(marker.args[0])


def blocking(function: Callable[..., Coroutine[Any, Any, object]], bound_s: float) -> Callable[..., None]:
    """Make an ordinary function of a coroutine function: a fresh loop, and failure after `bound_s`."""

    async def bounded(*args: object, **kwargs: object) -> None:
        limit = asyncio.timeout(bound_s)
        try:
            async with limit:
                await function(*args, **kwargs)
        except TimeoutError:
            if not limit.expired():
                raise  # the test's own
            pytest.fail(f"still running after {bound_s:g} s; where it was waiting is in the traceback above")

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(bounded(*args, **kwargs))

    return run
