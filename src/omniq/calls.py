"""From a function and its options to a task that can be stored: names, checks, encoding."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypedDict, TypeVar

import msgspec
from msgspec import Struct

from omniq.errors import InvalidOption
from omniq.serializer import Serializer
from omniq.task import (
    Duration,
    OnConflict,
    OnFailure,
    StoredTask,
    Task,
    func_path,
    moment,
    new_id,
    refuse_unknown,
    seconds,
    shown,
)

T_co = TypeVar("T_co", covariant=True)


class TaskCall(Generic[T_co]):
    """A call as a value, made by `send.call(...)`."""

    __slots__ = ("task",)

    def __init__(self, task: StoredTask) -> None:
        self.task = task

    def __repr__(self) -> str:
        return f"<call of {self.task.func_path}>"


class OptionsDict(TypedDict, total=False):
    """The options by name, for type checkers; `TaskOptions` checks them."""

    queue: str
    priority: int
    delay: Duration | None
    eta: datetime | None
    expires: Duration | datetime | None
    interval: Duration | None
    on_failure: OnFailure
    timeout: Duration | None
    max_retries: int
    max_losses: int
    unique_key: str | None
    on_conflict: OnConflict
    headers: dict[str, str]
    result_ttl: Duration | None
    id: str | None
    conn: Any


class TaskOptions(Struct, frozen=True, kw_only=True):
    """How to treat a task. Given to `@q.task(...)`, and changed by `.options(...)`."""

    queue: str = "default"
    priority: int = 0
    delay: Duration | None = None
    eta: datetime | None = None
    expires: Duration | datetime | None = None
    interval: Duration | None = None
    on_failure: OnFailure = "stop"
    timeout: Duration | None = None
    max_retries: int = 3
    max_losses: int = 3
    unique_key: str | None = None
    on_conflict: OnConflict = "skip"
    headers: dict[str, str] = {}
    result_ttl: Duration | None = None
    id: str | None = None
    conn: Any = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TaskOptions:
        return cls().with_changes(options)

    def with_changes(self, changes: Mapping[str, Any]) -> TaskOptions:
        refuse_unknown(changes, self.__struct_fields__, "a task")
        changed = msgspec.structs.replace(self, **changes)
        changed.check()
        return changed

    def check(self) -> None:
        """Refuse now what would be refused at every enqueue."""
        if self.delay is not None and self.eta is not None:
            raise InvalidOption("give either delay (seconds from now) or eta (a moment), not both")
        if self.on_conflict not in ("skip", "raise", "replace"):
            raise InvalidOption(
                f"on_conflict must be 'skip', 'raise' or 'replace', not {shown(self.on_conflict)}"
            )
        self.fields()

    def fields(self) -> dict[str, Any]:
        """The fields of a stored task, checked; durations that count from the enqueue stay durations."""
        expires_in_s, expires_at = None, None
        if isinstance(self.expires, datetime):
            expires_at = moment(self.expires, "expires")
        elif self.expires is not None:
            expires_in_s = seconds(self.expires, "expires")
        delay_s = None if self.delay is None else max(0.0, seconds(self.delay, "delay"))
        checked = Task(
            "checked.only",
            id=self.id or "checked-only",
            **{name: getattr(self, name) for name in _PASSED_ON},  # pyright: ignore[reportArgumentType]
        )
        fields = {name: getattr(checked, name) for name in _PASSED_ON}
        return fields | {"expires_at": expires_at, "expires_in_s": expires_in_s, "delay_s": delay_s}

    def maker(
        self, name: str, func: Callable[..., Any], context_parameter: str | None, serializer: Serializer
    ) -> CallMaker:
        return CallMaker(self, name, Shape(func, context_parameter, name), serializer)


_PASSED_ON: Final = (
    "queue", "priority", "eta", "interval", "on_failure", "timeout", "max_retries", "max_losses",
    "unique_key", "headers", "result_ttl",
)  # fmt: skip


class CallMaker:
    """Makes stored tasks of one function with one set of options, as fast as it can."""

    def __init__(self, options: TaskOptions, name: str, shape: Shape, serializer: Serializer) -> None:
        self._name = name
        self._shape = shape
        self._dump_call = serializer.dump_call
        self._id = options.id
        self._fields = options.fields()

    def make(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StoredTask:
        self._shape.check(args, kwargs)
        payload = self._dump_call(None, args, kwargs)
        return StoredTask(self._name, payload, id=self._id or new_id(), **self._fields)


class Shape:
    """Which calls fit a function. The usual ones are recognised without binding them."""

    def __init__(self, func: Callable[..., Any], context_parameter: str | None, name: str) -> None:
        self._name = name
        try:
            signature = inspect.signature(func)
        except (TypeError, ValueError):
            self._signature = None
            return
        parameters = [p for p in signature.parameters.values() if p.name != context_parameter]
        self._signature = signature.replace(parameters=parameters)
        plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
        self._names = tuple(p.name for p in parameters) if plain else None
        self._required = sum(p.default is p.empty for p in parameters)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._signature is None:
            return
        names = self._names
        if names is not None and not kwargs and self._required <= len(args) <= len(names):
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise InvalidOption(f"{self._name}{self._signature} cannot be called like this: {exc}") from None


def task_name(func: Callable[..., Any]) -> str:
    """The name under which a function is stored: where a worker can import it."""
    qualname = getattr(func, "__qualname__", "")
    module = main_module() if func.__module__ == "__main__" else func.__module__
    name = f"{module}.{qualname}"
    if "<" in qualname:
        raise InvalidOption(
            f"{name} is made inside a function, where no worker can find it; "
            "define it at the top of a module, or give name='...'"
        )
    return func_path(name)


def main_module() -> str:
    """What the script that runs as `__main__` is called when somebody imports it."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name: str = spec.name
        return name
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"
