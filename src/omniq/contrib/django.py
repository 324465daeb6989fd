"""A backend for Django's own tasks (`django.tasks`, Django 6, or the package django-tasks before that).

    TASKS = {"default": {"BACKEND": "omniq.contrib.django.OmniQBackend", "OPTIONS": {"url": "sqlite:///jobs.db"}}}

    $ DJANGO_SETTINGS_MODULE=mysite.settings omniq worker omniq.contrib.django:q

A task is stored under its own path. A worker runs what the `tasks` modules of the installed applications
define, and imports nothing because a row says so.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from importlib import import_module
from traceback import format_exception
from typing import Any, Final

from omniq.app import OmniQ
from omniq.errors import GiveUp, Retry, Snooze
from omniq.registry import Runnable
from omniq.running import context
from omniq.storage.base import BaseStorage
from omniq.task import Run, StoredTask, Task, TaskResult, TaskStatus, new_id, refuse_unknown


def _tasks_package() -> str:
    """Where the tasks of this Django live."""
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(name)
        except ModuleNotFoundError as exc:
            if exc.name not in (name, name.partition(".")[0]):
                raise
        else:
            return name
    raise ImportError(
        "omniq.contrib.django needs Django 6, or django-tasks: pip install 'omniq-tasks[django]'"
    )


# Django has no types of its own; what comes from it is Any.
_PACKAGE: Final = _tasks_package()
_base: Any = import_module(f"{_PACKAGE}.base")
_signals: Any = import_module(f"{_PACKAGE}.signals")
_exceptions: Any = import_module(f"{_PACKAGE}.exceptions")
_json: Any = import_module("django.utils.json" if _PACKAGE == "django.tasks" else f"{_PACKAGE}.utils")
_timezone: Any = import_module("django.utils.timezone")
_Backend: Any = import_module(f"{_PACKAGE}.backends.base").BaseTaskBackend

OPTIONS: Final = ("url", "max_retries", "timeout", "modules")
_STATUS: Final = {
    TaskStatus.PENDING: "READY",
    TaskStatus.RUNNING: "RUNNING",
    TaskStatus.SUCCESS: "SUCCESSFUL",
    TaskStatus.FAILED: "FAILED",
    TaskStatus.CANCELLED: "FAILED",
}
# What Django wants to hear again as it was said: ours has fewer priorities, and the store a clock of its own.
_PRIORITY: Final = "django.priority"
_ENQUEUED_AT: Final = "django.enqueued_at"
_RUN_AFTER: Final = "django.run_after"

_apps: dict[str | None, OmniQ] = {}
_lock: Final = threading.Lock()


class OmniQBackend(_Backend):  # type: ignore[misc]
    """`OPTIONS`: `url` (else OMNIQ_URL), `max_retries` (0), `timeout`, `modules` with more tasks."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)  # pyright: ignore[reportUnknownMemberType]
        options: dict[str, Any] = self.options
        refuse_unknown(options, OPTIONS, f"TASKS[{alias!r}]['OPTIONS']")
        self.max_retries: int = options.get("max_retries", 0)
        self.timeout: float | None = options.get("timeout")
        self.modules: Sequence[str] = options.get("modules", ())
        self.app = _app(options.get("url"))

    # --- enqueueing ------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
        result, stored = self._new(task, args, kwargs)
        self.app.store_here([stored], None, "skip", "await task.aenqueue(...)")
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
        result, stored = self._new(task, args, kwargs)
        await self.app.store([stored], None, "skip")
        await _signals.task_enqueued.asend(type(self), task_result=result)
        return result

    def _new(self, task: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[Any, StoredTask]:
        self.validate_task(task)
        task_id = new_id()
        result = _base.TaskResult(
            task=task,
            id=task_id,
            status=_base.TaskResultStatus.READY,
            enqueued_at=_timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        eta = _aware(task.run_after)
        headers = {_PRIORITY: str(task.priority), _ENQUEUED_AT: _aware(result.enqueued_at).isoformat()}
        if eta is not None:
            headers[_RUN_AFTER] = eta.isoformat()
        # Its arguments have been brought into the form of JSON by now.
        plain = Task(
            task.module_path,
            id=task_id,
            queue=task.queue_name,
            priority=omniq_priority(task.priority),
            eta=eta,
            timeout=self.timeout,
            max_retries=self.max_retries,
            headers=headers,
        )
        payload = self.app.serializer.dump_call(None, result.args, result.kwargs)
        fields: dict[str, Any] = {name: getattr(plain, name) for name in _STORED}
        return result, StoredTask(plain.func_path, payload, **fields)

    # --- results ---------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        return self.app.run(lambda storage: self._result(storage, result_id), "await task.aget_result(...)")

    async def aget_result(self, result_id: str) -> Any:
        return await self._result(await self.app.astorage(), result_id)

    async def _result(self, storage: BaseStorage, result_id: str) -> Any:
        row = await storage.get_task(str(result_id))
        task = None if row is None else _found(row.func_path)
        if row is None or task is None:
            raise _exceptions.TaskResultDoesNotExist(result_id)
        ended, history = await storage.get_result(row.id), await storage.history(row.id)
        return self._as_django(task, row, ended, history)

    def _as_django(self, task: Any, row: Task, ended: TaskResult | None, history: list[Run]) -> Any:
        owners = [run.owner or "unknown" for run in history]
        owners += [row.owner or "unknown"] * (row.epoch - len(owners))
        errors = [run.error for run in history if run.error is not None]
        result = _base.TaskResult(
            task=task.using(
                priority=int(row.headers.get(_PRIORITY, 0)),
                queue_name=row.queue,
                run_after=_said(row, _RUN_AFTER),
                backend=self.alias,
            ),
            id=row.id,
            status=_base.TaskResultStatus[_STATUS[row.status]],
            enqueued_at=_said(row, _ENQUEUED_AT) or _moment(row.enqueued_at),
            started_at=_moment(history[0].started_at if history else row.started_at),
            finished_at=_moment(row.finished_at),
            last_attempted_at=_moment(row.started_at),
            args=list(row.args),
            kwargs=dict(row.kwargs),
            backend=self.alias,
            errors=[
                _base.TaskError(
                    exception_class_path=class_path(one.type, one.traceback), traceback=one.traceback
                )
                for one in errors
            ],
            worker_ids=owners,
        )
        if ended is not None and ended.status is TaskStatus.SUCCESS:
            object.__setattr__(result, "_return_value", ended.result)
        return result


_STORED: Final = (
    "id", "queue", "priority", "eta", "timeout", "max_retries", "headers",
)  # fmt: skip


def omniq_priority(priority: int) -> int:
    """From Django's -100 to 100 to our 0 to 9; Django's 0 is in the middle."""
    return (priority + 100) * 9 // 200


def class_path(name: str, traceback: str) -> str:
    """Where the class of an exception can be imported from: a traceback says it in its last line."""
    for line in reversed(traceback.splitlines()):
        path = line.partition(":")[0]
        if path == name or path.endswith(f".{name}"):
            return path if "." in path else f"builtins.{path}"
    return f"builtins.{name}"


def _said(row: Task, header: str) -> Any:
    """A moment as Django said it when it enqueued."""
    said = row.headers.get(header)
    return None if said is None else _moment(datetime.fromisoformat(said))


def _aware(moment: Any) -> Any:
    return _timezone.make_aware(moment) if moment is not None and _timezone.is_naive(moment) else moment


def _moment(moment: Any) -> Any:
    settings: Any = import_module("django.conf").settings
    return moment if moment is None or settings.USE_TZ else _timezone.make_naive(moment)


# --- in the worker -------------------------------------------------------------------------------


class Body:
    """What a worker calls for a Django task: signals, context, connections, and the function itself."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def begin(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
        backend, ctx, now = self.task.get_backend(), context(), _timezone.now()
        result = _base.TaskResult(
            task=self.task,
            id=ctx.task_id,
            status=_base.TaskResultStatus.RUNNING,
            enqueued_at=None,
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=list(args),
            kwargs=dict(kwargs),
            backend=backend.alias,
            errors=[],
            worker_ids=["omniq"] * ctx.attempt,
        )
        _signals.task_started.send(sender=type(backend), task_result=result)
        given = (_base.TaskContext(task_result=result), *args) if self.task.takes_context else args
        return result, given

    def succeeded(self, result: Any, value: Any) -> Any:
        plain = _json.normalize_json(value)
        object.__setattr__(result, "_return_value", plain)
        self._finished(result, "SUCCESSFUL")
        return plain

    def failed(self, result: Any, exc: BaseException) -> None:
        """Only the last failure is the end of a task; what was told to stop is ended by whoever told it."""
        ctx = context()
        last = ctx.attempt > self.task.get_backend().max_retries
        if not ctx.cancelled and (isinstance(exc, GiveUp) or (last and not isinstance(exc, Snooze | Retry))):
            path = f"{type(exc).__module__}.{type(exc).__qualname__}"
            text = "".join(format_exception(exc))
            result.errors.append(_base.TaskError(exception_class_path=path, traceback=text))
            self._finished(result, "FAILED")

    def _finished(self, result: Any, status: str) -> None:
        object.__setattr__(result, "finished_at", _timezone.now())
        object.__setattr__(result, "status", _base.TaskResultStatus[status])
        _signals.task_finished.send(sender=type(self.task.get_backend()), task_result=result)


class ThreadBody(Body):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        close: Any = import_module("django.db").close_old_connections
        close()
        try:
            result, given = self.begin(args, kwargs)
            try:
                return self.succeeded(result, self.task.func(*given, **kwargs))
            except BaseException as exc:
                self.failed(result, exc)
                raise
        finally:
            close()


class AsyncBody(Body):
    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result, given = self.begin(args, kwargs)
        try:
            return self.succeeded(result, await self.task.func(*given, **kwargs))
        except BaseException as exc:
            self.failed(result, exc)
            raise


def _app(url: str | None) -> OmniQ:
    """One for each store: Django makes a backend for every thread."""
    with _lock:
        if url not in _apps:
            _apps[url] = OmniQ(url)
        return _apps[url]


def discover(backend: OmniQBackend) -> OmniQ:
    """Let the workers of this backend's application run every task that the installed applications define."""
    find: Any = import_module("django.utils.module_loading").autodiscover_modules
    find("tasks")
    for name in backend.modules:
        import_module(name)
    for name, module in list(sys.modules.items()):
        if _is_installed(name) or name in backend.modules:
            for value in list(vars(module).values()):
                _register(backend.app, value)
    return backend.app


def _register(app: OmniQ, value: Any) -> None:
    if not isinstance(value, _base.Task) or getattr(value.get_backend(), "app", None) is not app:
        return
    if value.module_path in app.served:
        return
    awaits = inspect.iscoroutinefunction(value.func)
    runnable = Runnable(AsyncBody(value), "async") if awaits else Runnable(ThreadBody(value), "thread")
    app.register(value.module_path, runnable, value.queue_name)


def _found(path: str) -> Any:
    """The task behind a stored path, if it is one of an installed application; nothing else is imported."""
    module, _, name = path.rpartition(".")
    if module not in sys.modules and not _is_installed(module):
        return None
    try:
        found = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return found if isinstance(found, _base.Task) else None


def _is_installed(module: str) -> bool:
    apps: Any = import_module("django.apps").apps
    return any(f"{module}.".startswith(f"{one.name}.") for one in apps.get_app_configs())


def __getattr__(name: str) -> Any:
    """`q` is the application of the backend "default"; any other name is that of the backend so called."""
    if name.startswith("_"):
        raise AttributeError(name)
    import_module("django").setup()
    backends: Any = import_module(_PACKAGE).task_backends
    alias = "default" if name == "q" else name
    if alias not in backends.settings or not isinstance(backends[alias], OmniQBackend):
        raise AttributeError(f"TASKS has no backend {alias!r} that is an OmniQBackend")
    return discover(backends[alias])
