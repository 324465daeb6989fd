"""What `@q.task` makes of a function: it can be called as before, and enqueued.

Knows nothing of stores and connections: a call becomes a value here, and the application stores it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from omniq.calls import OptionsDict, TaskCall, TaskOptions, task_name
from omniq.errors import InvalidOption
from omniq.handles import TaskHandle
from omniq.logic.retry import RetryRules
from omniq.registry import Executor, Runnable, runnable_of
from omniq.running import Context
from omniq.task import Checked, func_path, shown

if TYPE_CHECKING:
    from omniq.app import OmniQ

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise InvalidOption(
                f"{shown(func)} is a generator, which no worker iterates; return a list of what it yields, "
                "or make a task of what one item needs"
            )
        name = func_path(task_name(func) if self._name is None else self._name)
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
        self._twin = f"await {self.__name__}.aenqueue(...)"

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
        tasks = Checked((task,))
        [enqueued] = self._app.store_here(tasks, options.conn, options.on_conflict, self._twin)
        return TaskHandle(self._app, enqueued, created=enqueued.created)

    delay = enqueue

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Store the call. When this returns, it is durable."""
        task, options = self._maker.make(args, kwargs), self._options
        [enqueued] = await self._app.store(Checked((task,)), options.conn, options.on_conflict)
        return TaskHandle(self._app, enqueued, created=enqueued.created)

    adelay = aenqueue

    def __repr__(self) -> str:
        return f"<task {self.name}>"
