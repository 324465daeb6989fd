"""What applications call: `OmniQ`, `@q.task`, and handles to what was enqueued.

q = OmniQ()                          send.enqueue("ann") ──> TaskHandle ──> .result(timeout=10)
@q.task                              await send.aenqueue("ann")
def send(to: str) -> int: ...        send("ann") just calls it
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Never,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)
from urllib.parse import quote

from loguru import logger

from omniq.calls import Exceptions, OptionsDict, TaskCall, TaskOptions, retry_rules, task_name
from omniq.config import configured_url, default_file
from omniq.errors import (
    InvalidOption,
    StoreUnavailable,
    UnserializableArgument,
    Unsupported,
)
from omniq.handles import Completed, TaskHandle, checked, gathered
from omniq.logic.retry import RetryRules
from omniq.loopthread import LoopThread, forbid_running_loop
from omniq.registry import Executor, Resolver, Runnable, runnable_of
from omniq.running import Context
from omniq.schedules import Scheduling
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.storage.base import BaseStorage
from omniq.storage.batched import DAY_S, MAX_PAYLOAD_BYTES, BatchedStorage
from omniq.storage.url import open_storage, safe_url
from omniq.task import (
    Duration,
    Enqueued,
    OnConflict,
    StoredTask,
    count,
    func_path,
    refuse_unknown,
    seconds,
    shown,
)

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from omniq.hooks import Hook
    from omniq.tracing import Tracing
    from omniq.web import Dashboard
    from omniq.worker import AsyncWorkerPool, WorkerOptions, WorkerPool

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound="Hook")
V = TypeVar("V")
DEFAULT_CONCURRENCY: Final = 100
_OPTIONS: Final = ("url_or_storage", "serializer", "allow", "result_ttl", "failed_ttl", "max_payload")

_apps: weakref.WeakSet[OmniQ] = weakref.WeakSet()


class OmniQ(Scheduling):
    """A queue as an application sees it. It connects when it is first used."""

    def __init__(
        self,
        url_or_storage: str | BaseStorage | None = None,
        *,
        serializer: Serializer | None = None,
        allow: Sequence[str] = (),
        result_ttl: Duration = DAY_S,
        failed_ttl: Duration = 30 * DAY_S,
        max_payload: int = MAX_PAYLOAD_BYTES,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, _OPTIONS, "OmniQ")
        if not isinstance(url_or_storage, str | BaseStorage | None):
            raise InvalidOption(f"OmniQ takes a URL or a storage, not {shown(url_or_storage)}")
        self.serializer = serializer or MsgpackSerializer()
        self._where = url_or_storage
        self._allow = _patterns(allow)
        self._ttl_s = (seconds(result_ttl, "result_ttl"), seconds(failed_ttl, "failed_ttl"))
        self._max_payload = count(max_payload, "max_payload", least=1)
        self.tasks: dict[str, TaskFunction[..., Any, Any]] = {}  # what @q.task has made, by name
        self._tasks: dict[str, Runnable] = {}
        self._hooks: list[Hook] = []
        self._tracing: Tracing | None = None
        self._process_queues: set[str] = set()  # where tasks wait that run in processes
        self._shared_queues: set[str] = set()  # where others wait
        self._storage: BaseStorage | None = None
        self._after_enqueue: Callable[[], Coroutine[Any, Any, object]] | None = None
        self._forget()
        _apps.add(self)

    def _forget(self) -> None:
        """Start without connections; also in a forked child, whose parent's are not ours to use."""
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._blocking: BaseStorage | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, BaseStorage] = {}

    # --- tasks -----------------------------------------------------------------------------------

    # A context in front is filled in by the worker, so callers do not pass it.
    @overload
    def task(
        self, func: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def task(self, func: Callable[Concatenate[Context, P], R], /) -> TaskFunction[P, R, R]: ...

    @overload
    def task(
        self, func: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def task(self, func: Callable[P, R], /) -> TaskFunction[P, R, R]: ...

    @overload
    def task(
        self,
        func: None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        executor: Executor = "auto",
        retry_on: Exceptions | None = None,
        give_up_on: Exceptions | None = None,
        retry_delay: Duration | Callable[..., Duration] | None = None,
        **options: Unpack[OptionsDict],
    ) -> TaskDecorator: ...

    def task(
        self,
        func: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        executor: Executor = "auto",
        retry_on: Exceptions | None = None,
        give_up_on: Exceptions | None = None,
        retry_delay: Duration | Callable[..., Duration] | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a task. It stays an ordinary function, and can be enqueued."""
        if isinstance(aliases, str):
            raise InvalidOption(f"aliases must be a list of names, such as [{aliases!r}], not a str")
        rules = retry_rules(retry_on, give_up_on, retry_delay)
        decorator = TaskDecorator(self, name, tuple(aliases), executor, rules, TaskOptions.of(options))
        return decorator if func is None else decorator(func)

    def around(self, hook: H) -> H:
        """Run `hook(context, call)` around every run of this application's tasks; the first is outermost.

        `await call()` runs the task and gives its value; what the hook returns is the task's result.
        """
        if not inspect.iscoroutinefunction(hook):
            raise InvalidOption(
                f"@q.around decorates `async def hook(context, call): return await call()`, not {shown(hook)}"
            )
        self._hooks.append(hook)
        return cast("H", hook)

    def trace(self, tracer_provider: TracerProvider | None = None) -> None:
        """Make OpenTelemetry spans of enqueues and runs, by default with the global provider."""
        try:
            from omniq.tracing import Tracing
        except ImportError:
            raise Unsupported("traces need pip install 'omniq-tasks[metrics]'") from None
        if self._tracing is not None:
            raise InvalidOption("q.trace() was called already; once is enough")
        self._tracing = Tracing(tracer_provider)
        self._hooks.insert(0, self._tracing.around)

    @property
    def served(self) -> Collection[str]:
        """The names that workers of this application run."""
        return self._tasks.keys()

    def register(self, name: str, runnable: Runnable, queue: str = "default") -> None:
        """Let this application's workers run `runnable` under `name`; most of it will wait in `queue`."""
        known = self._tasks.get(name)
        if known is not None and not _same_function(known.func, runnable.func):
            raise InvalidOption(f"two tasks are called {name!r}; give one of them name='...'")
        self._tasks[name] = runnable
        (self._process_queues if runnable.kind == "process" else self._shared_queues).add(queue)

    # --- enqueueing ------------------------------------------------------------------------------

    def enqueue_many(
        self, calls: Iterable[TaskCall[Any]], *, conn: Any = None, on_conflict: OnConflict = "skip"
    ) -> list[TaskHandle[Any]]:
        """All of `calls`, made with `send.call(...)`, or none of them."""
        tasks = _stored(calls)
        enqueued = self.store_here(tasks, conn, on_conflict, "await q.aenqueue_many(...)")
        return [TaskHandle(self, one, created=one.created) for one in enqueued]

    def store_here(
        self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict, twin: str
    ) -> list[Enqueued]:
        """What every blocking enqueue comes to."""
        if self._tracing is not None:
            with self._tracing.sending(tasks) as traced:
                return self._store_here(traced, conn, on_conflict, twin)
        return self._store_here(tasks, conn, on_conflict, twin)

    def _store_here(
        self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict, twin: str
    ) -> list[Enqueued]:
        enqueued = self._enqueue(tasks, conn, on_conflict, twin)
        if self._after_enqueue is not None and conn is None:
            with LoopThread("omniq-inline") as thread:
                thread.run(self._after_enqueue())
        return enqueued

    async def store(self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict) -> list[Enqueued]:
        """What every enqueue inside a loop comes to."""
        if self._tracing is not None:
            with self._tracing.sending(tasks) as traced:
                return await self._store(traced, conn, on_conflict)
        return await self._store(tasks, conn, on_conflict)

    async def _store(self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict) -> list[Enqueued]:
        storage = await self.astorage()
        enqueued = await storage.enqueue_many(tasks, conn=conn, on_conflict=on_conflict)
        if self._after_enqueue is not None and conn is None:
            await self._after_enqueue()
        return enqueued

    def _enqueue(
        self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict, twin: str
    ) -> list[Enqueued]:
        thread, storage = self._blocking_face()
        if conn is None and storage.capabilities.here:
            # No hop to another thread and back: on a fast disk those cost as much as the commit.
            forbid_running_loop(f"write `{twin}` here")
            if not storage.is_open:
                thread.run(storage.open())
            return storage.enqueue_here(tasks, on_conflict=on_conflict)
        enqueued = self._run(
            lambda storage: storage.enqueue_many(tasks, conn=conn, on_conflict=on_conflict),
            twin,
            inline=conn is not None,
        )
        if conn is not None:
            with contextlib.suppress(StoreUnavailable):  # it is enqueued; this only wakes a worker sooner
                thread.submit(storage.announce([str(one) for one in enqueued]))
        return enqueued

    async def aenqueue_many(
        self, calls: Iterable[TaskCall[Any]], *, conn: Any = None, on_conflict: OnConflict = "skip"
    ) -> list[TaskHandle[Any]]:
        enqueued = await self.store(_stored(calls), conn, on_conflict)
        return [TaskHandle(self, one, created=one.created) for one in enqueued]

    # --- many handles ----------------------------------------------------------------------------

    def gather(
        self,
        handles: Iterable[TaskHandle[T]],
        *,
        timeout: Duration | None = None,
        return_exceptions: bool = False,
    ) -> list[T]:
        """The results of all `handles`, in their order.

        The first failure is raised as soon as it is known, and the others go on; with `return_exceptions`
        failures stand in the list.
        """
        wanted, timeout_s = checked(handles), _timeout_s(timeout)
        return self.run(
            lambda storage: gathered(storage, wanted, timeout_s, return_exceptions),
            "await q.agather(...)",
        )

    async def agather(
        self,
        handles: Iterable[TaskHandle[T]],
        *,
        timeout: Duration | None = None,
        return_exceptions: bool = False,
    ) -> list[T]:
        wanted, timeout_s = checked(handles), _timeout_s(timeout)
        return await gathered(await self.astorage(), wanted, timeout_s, return_exceptions)

    def as_completed(
        self, handles: Iterable[TaskHandle[T]], *, timeout: Duration | None = None
    ) -> Completed[T]:
        """The handles as their tasks end, whichever is first: with `for`, or with `async for`."""
        return Completed(self, handles, _timeout_s(timeout))

    def handle(self, task_id: str) -> TaskHandle[Any]:
        """A handle to a task that somebody else enqueued."""
        return TaskHandle(self, task_id, created=False)

    # --- looking ---------------------------------------------------------------------------------

    def asgi_app(
        self,
        *,
        token: str | None = None,
        hosts: Sequence[str] = (),
        allow_actions: bool = False,
        show_args: bool = False,
    ) -> Dashboard:
        """The dashboard, to mount in any ASGI application. Needs `pip install 'omniq-tasks[web]'`.

        It answers to the names of this machine only; name others in `hosts`, and guard them by a `token`, or
        by what the application around it does. Nothing can be changed, and no arguments show, unless allowed.
        """
        try:
            from omniq.web import Dashboard, Settings
        except ImportError:
            raise Unsupported("the dashboard needs pip install 'omniq-tasks[web]'") from None
        settings = Settings(token=token, hosts=tuple(hosts), allow_actions=allow_actions, show_args=show_args)
        return Dashboard(self.storage(), settings)

    # --- workers ---------------------------------------------------------------------------------

    def worker(self, **options: Unpack[WorkerOptions]) -> WorkerPool:
        """A pool in this process that runs this application's tasks; start it, or use `with`."""
        options.setdefault("concurrency", DEFAULT_CONCURRENCY)
        from omniq.worker import WorkerPool  # an application that only enqueues does without

        return WorkerPool.of(self.async_worker(**options))

    def async_worker(self, **options: Unpack[WorkerOptions]) -> AsyncWorkerPool:
        """The same on a running loop: `async with q.async_worker(): ...`."""
        from omniq.worker import AsyncWorkerPool

        allow = _patterns(options.pop("allow", None) or ())
        options.setdefault("concurrency", DEFAULT_CONCURRENCY)
        options.setdefault("serializer", self.serializer)
        # What else a dict may hold when it runs is refused there, by name.
        pool = AsyncWorkerPool(self.storage().clone(), **options)  # pyright: ignore[reportArgumentType]
        return pool.serve(
            Resolver(self._tasks, self._allow + allow),
            self._process_queues - self._shared_queues,
            self._hooks,
        )

    # --- connections -----------------------------------------------------------------------------

    def storage(self) -> BaseStorage:
        """The storage that this application was given or configured with. Clone it to use it."""
        with self._lock:
            if self._storage is None:
                self._storage = self._find_storage()
                if isinstance(self._storage, BatchedStorage):
                    self._storage.keep_results(*self._ttl_s)
                    self._storage.max_payload = self._max_payload
                    self._storage.serializer = self.serializer
            return self._storage

    def _find_storage(self) -> BaseStorage:
        if isinstance(self._where, BaseStorage):
            return self._where
        url = self._where or configured_url()
        if url is not None:
            return open_storage(url)
        file = default_file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        logger.info("no store configured (OMNIQ_URL, [tool.omniq] url): using {}", file)
        return open_storage(_url_of(file))

    def use(self, url_or_storage: str | BaseStorage) -> None:
        """Work on another store from now on. Only before the first use."""
        with self._lock:
            if self._storage is not None:
                raise InvalidOption("q.use(...) comes too late: the application has used its store already")
            self._where = url_or_storage

    @contextlib.contextmanager
    def on(
        self,
        storage: BaseStorage,
        after_enqueue: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> Generator[None]:
        """Work on another store inside the block, whatever was used before; for tests (`omniq.testing`)."""
        with self._lock:
            before = self._where, self._storage, self._thread, self._blocking, self._by_loop
            self._where, self._storage, self._thread, self._blocking, self._by_loop = (
                storage, None, None, None, {},
            )  # fmt: skip
            self._after_enqueue = after_enqueue
        try:
            yield
        finally:
            with self._lock:
                thread, blocking, by_loop = self._thread, self._blocking, self._by_loop
                self._where, self._storage, self._thread, self._blocking, self._by_loop = before
                self._after_enqueue = None
            for one in by_loop.values():
                one.abandon()
            if thread is not None and blocking is not None:
                thread.stop(blocking.close)

    @property
    def url(self) -> str:
        """Where the tasks are, for people to read: without a password."""
        if isinstance(self._where, BaseStorage):
            return repr(self._where)
        return safe_url(self._where or configured_url() or _url_of(default_file()))

    async def astorage(self) -> BaseStorage:
        """The storage of the running loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            storage = self._by_loop.get(loop)
            if storage is None:
                self._drop_closed_loops()
                storage = self._by_loop[loop] = self.storage().clone()
        await storage.open()
        return storage

    def _drop_closed_loops(self) -> None:
        for loop in [loop for loop in self._by_loop if loop.is_closed()]:
            self._by_loop.pop(loop).abandon()

    def run(self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]], twin: str) -> V:
        """Do `work` with a storage and wait for it; `twin` is what to await instead inside a loop."""
        return self._run(work, twin)

    def _run(
        self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]], twin: str, *, inline: bool = False
    ) -> V:
        advice = f"write `{twin}` here"
        thread, storage = self._blocking_face()
        if inline:
            # The caller's own connection belongs to the caller's thread, so the work must stay there.
            return _run_here(self._with_own_storage(work), advice)
        return thread.run(work(storage), advice)

    def _blocking_face(self) -> tuple[LoopThread, BaseStorage]:
        with self._lock:
            if self._thread is None or self._blocking is None:
                self._blocking = self.storage().clone()
                self._thread = LoopThread("omniq-app").start()
            return self._thread, self._blocking

    async def _with_own_storage(self, work: Callable[[BaseStorage], Coroutine[Any, Any, V]]) -> V:
        async with self.storage().clone() as storage:
            return await work(storage)

    def close(self) -> None:
        """Give back what the blocking faces use. The application can be used again afterwards."""
        forbid_running_loop("write `await q.aclose()` here")
        with self._lock:
            thread, storage = self._thread, self._blocking
            self._thread = self._blocking = None
        if thread is not None and storage is not None:
            try:
                thread.run(storage.close(), "await q.aclose()")
            finally:
                # Again at the end: an enqueue in another thread may have opened it in between.
                thread.stop(storage.close)

    async def aclose(self) -> None:
        """Give back what this loop uses."""
        storage = self._by_loop.pop(asyncio.get_running_loop(), None)
        if storage is not None:
            await storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __reduce__(self) -> tuple[Any, ...]:
        """For a function that travels to a process by value: the same store, without its connections."""
        where = self._where.url if isinstance(self._where, BaseStorage) else self._where
        if where is None and isinstance(self._where, BaseStorage):
            raise UnserializableArgument(
                f"{self._where!r} has no address under which another process finds the same tasks"
            )
        return _restored, (where, self.serializer, self._allow, self._ttl_s, self._max_payload)

    def __repr__(self) -> str:
        return f"OmniQ({self.url!r}, {len(self._tasks)} tasks)"


def _restored(
    where: str | None,
    serializer: Serializer,
    allow: tuple[str, ...],
    ttl_s: tuple[float, float],
    max_payload: int,
) -> OmniQ:
    result_ttl_s, failed_ttl_s = ttl_s
    return OmniQ(
        where,
        serializer=serializer,
        allow=allow,
        result_ttl=result_ttl_s,
        failed_ttl=failed_ttl_s,
        max_payload=max_payload,
    )


class TaskDecorator:
    """`@q.task(...)` with its options, waiting for the function."""

    def __init__(
        self,
        app: OmniQ,
        name: str | None,
        aliases: tuple[str, ...],
        executor: Executor,
        rules: RetryRules,
        options: TaskOptions,
    ) -> None:
        if executor not in ("auto", "thread", "process"):
            raise InvalidOption(f"executor must be 'auto', 'thread' or 'process', not {shown(executor)}")
        self._app = app
        self._name = name
        self._aliases = aliases
        self._executor: Executor = executor
        self._rules = rules
        self._options = options

    @overload
    def __call__(
        self, func: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]]
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, func: Callable[Concatenate[Context, P], R]) -> TaskFunction[P, R, R]: ...

    @overload
    def __call__(
        self, func: Callable[P, Coroutine[Any, Any, T]]
    ) -> TaskFunction[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, func: Callable[P, R]) -> TaskFunction[P, R, R]: ...

    def __call__(self, func: Callable[..., Any]) -> Any:
        if not callable(func):
            raise InvalidOption(f"@q.task decorates a function, not {shown(func)}")
        name = func_path(self._name or task_name(func))
        runnable = runnable_of(func, self._executor, self._rules)
        task: TaskFunction[..., Any, Any] = TaskFunction(self._app, func, name, runnable, self._options)
        for path in (name, *self._aliases):
            self._app.register(func_path(path), runnable, self._options.queue)
        self._app.tasks[name] = task
        return task


class TaskFunction(Generic[P, R, T]):
    """A function that can also be enqueued."""

    def __init__(
        self, app: OmniQ, func: Callable[P, R], name: str, runnable: Runnable, options: TaskOptions
    ) -> None:
        self.__omniq_function__ = func
        self.__wrapped__ = func
        self.__doc__ = func.__doc__
        self.__name__ = getattr(func, "__name__", name)
        self.__qualname__ = getattr(func, "__qualname__", name)
        self.__module__ = func.__module__
        self.name = name
        self._app = app
        self._runnable = runnable
        self._options = options
        self._maker = options.maker(name, func, runnable.context_parameter, app.serializer)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """An ordinary call, here and now."""
        return self.__omniq_function__(*args, **kwargs)

    def options(self, **options: Unpack[OptionsDict]) -> TaskFunction[P, R, T]:
        """The same task with other options: `send.options(delay=60, priority=5).enqueue(...)`."""
        merged = self._options.with_changes(dict(options))
        return TaskFunction(self._app, self.__omniq_function__, self.name, self._runnable, merged)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[T]:
        """The call as a value, for `q.enqueue_many([...])`."""
        return TaskCall(self._maker.make(args, kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Store the call. When this returns, it is durable."""
        task, options = self._maker.make(args, kwargs), self._options
        twin = f"await {self.__name__}.aenqueue(...)"
        [enqueued] = self._app.store_here([task], options.conn, options.on_conflict, twin)
        return TaskHandle(self._app, enqueued, created=enqueued.created)

    delay = enqueue

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Store the call. When this returns, it is durable."""
        task, options = self._maker.make(args, kwargs), self._options
        [enqueued] = await self._app.store([task], options.conn, options.on_conflict)
        return TaskHandle(self._app, enqueued, created=enqueued.created)

    adelay = aenqueue

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _timeout_s(timeout: Duration | None) -> float | None:
    return None if timeout is None else max(0.0, seconds(timeout, "timeout"))


def _url_of(file: Path) -> str:
    return f"sqlite:///{quote(str(file))}"


def _patterns(allow: Sequence[str]) -> tuple[str, ...]:
    if isinstance(allow, str):
        raise InvalidOption(f"allow must be a list of patterns, such as [{allow!r}], not a str")
    return tuple(allow)


def _stored(calls: Iterable[TaskCall[Any]]) -> list[StoredTask]:
    tasks: list[StoredTask] = []
    for call in calls:
        if not isinstance(call, TaskCall):
            raise UnserializableArgument(
                f"enqueue_many takes calls made by task.call(...), not {shown(call)}"
            )
        tasks.append(call.task)
    return tasks


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """A module that is imported twice, or reloaded, defines its tasks anew; that is no clash."""
    places = [(getattr(f, "__module__", None), getattr(f, "__qualname__", None)) for f in (one, other)]
    return one is other or (None not in places[0] and places[0] == places[1])


def _run_here(work: Coroutine[Any, Any, V], advice: str) -> V:
    try:
        forbid_running_loop(advice)
    except BaseException:
        work.close()
        raise
    return asyncio.run(work)


def _forget_in_child() -> None:
    for app in list(_apps):
        app._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

__all__ = ["Enqueued", "OmniQ", "TaskFunction", "TaskHandle"]
