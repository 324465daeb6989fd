"""What applications call: `OmniQ`, which brings together tasks, handles, workers and the dashboard.

How it reaches its store is in `connections.py`, what `@q.task` makes in `taskfunction.py`, schedules in
`schedules.py`. It decides nothing about a task.

q = OmniQ()                          send.enqueue("ann") ──> TaskHandle ──> .result(timeout=10)
@q.task                              await send.aenqueue("ann")
def send(to: str) -> int: ...        send("ann") just calls it
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Never,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from omniq.calls import Exceptions, OptionsDict, TaskCall, TaskOptions, retry_rules
from omniq.connections import Connected
from omniq.errors import (
    InvalidOption,
    StoreUnavailable,
    UnserializableArgument,
    Unsupported,
)
from omniq.handles import Completed, TaskHandle, checked, gathered
from omniq.loopthread import LoopThread, forbid_running_loop
from omniq.registry import Executor, Resolver, Runnable
from omniq.running import Context
from omniq.schedules import Scheduling
from omniq.serializer import MsgpackSerializer, Serializer
from omniq.storage.base import BaseStorage
from omniq.storage.batched import DAY_S, MAX_PAYLOAD_BYTES
from omniq.task import (
    Checked,
    Duration,
    Enqueued,
    OnConflict,
    StoredTask,
    count,
    name_list,
    refuse_unknown,
    seconds,
    shown,
)
from omniq.taskfunction import TaskDecorator, TaskFunction
from omniq.workeroptions import check_serializer

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from omniq.hooks import Hook
    from omniq.tracing import Tracing
    from omniq.web import Dashboard
    from omniq.worker import AsyncWorkerPool, WorkerPool
    from omniq.workeroptions import WorkerOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H", bound="Hook")
V = TypeVar("V")
DEFAULT_CONCURRENCY: Final = 100
_OPTIONS: Final = ("url_or_storage", "serializer", "allow", "result_ttl", "failed_ttl", "max_payload")


class OmniQ(Connected, Scheduling):
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
        self._allow = _patterns(allow)
        super().__init__(
            url_or_storage,
            check_serializer(serializer) or MsgpackSerializer(),
            (seconds(result_ttl, "result_ttl"), seconds(failed_ttl, "failed_ttl")),
            count(max_payload, "max_payload", least=1),
        )
        self.tasks: dict[str, TaskFunction[..., Any, Any]] = {}  # what @q.task has made, by name
        self._tasks: dict[str, Runnable] = {}
        self._hooks: list[Hook] = []
        self._tracing: Tracing | None = None
        self._process_queues: set[str] = set()  # where tasks wait that run in processes
        self._shared_queues: set[str] = set()  # where others wait

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
        names = name_list(aliases, "aliases", "'myapp.tasks.send'")
        rules = retry_rules(retry_on, give_up_on, retry_delay)
        decorator = TaskDecorator(self, name, names, executor, rules, TaskOptions.of(options))
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
        """Make OpenTelemetry spans of enqueues and runs, by default with the global provider.

        Workers that start after this do.
        """
        try:
            from omniq.tracing import Tracing
        except ImportError:
            raise Unsupported("traces need pip install 'omniq-tasks[metrics]'") from None
        if self._tracing is not None:
            raise InvalidOption("q.trace() was called already; once is enough")
        self._tracing = Tracing(tracer_provider)

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

    def store(self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict) -> Awaitable[list[Enqueued]]:
        """What every enqueue inside a loop comes to."""
        if self._tracing is not None:
            return self._store_traced(self._tracing, tasks, conn, on_conflict)
        return self._store(tasks, conn, on_conflict)

    async def _store_traced(
        self, tracing: Tracing, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict
    ) -> list[Enqueued]:
        with tracing.sending(tasks) as traced:
            return await self._store(traced, conn, on_conflict)

    async def _store(self, tasks: list[StoredTask], conn: Any, on_conflict: OnConflict) -> list[Enqueued]:
        storage = self._at_hand() or await self.astorage()
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
            lambda: self._tracing,
        )

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


def _timeout_s(timeout: Duration | None) -> float | None:
    return None if timeout is None else max(0.0, seconds(timeout, "timeout"))


def _patterns(allow: Sequence[str]) -> tuple[str, ...]:
    return name_list(allow, "allow", "'myapp.tasks.*'")


def _stored(calls: Iterable[TaskCall[Any]]) -> Checked:
    tasks = Checked()
    if not isinstance(calls, Iterable):
        raise InvalidOption(f"enqueue_many takes a list of calls made by task.call(...), not {shown(calls)}")
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


__all__ = ["Enqueued", "OmniQ", "TaskFunction", "TaskHandle"]
