"""From a function and its options to a task that can be stored: names, checks, encoding."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec import Struct

from omniq.errors import InvalidOption, UnserializableArgument
from omniq.logic.retry import RetryRules
from omniq.names import class_name, main_module
from omniq.serializer import Serializer
from omniq.serializer.data import KeySerializer
from omniq.task import (
    MAX_NAME_CHARS,
    Duration,
    OnConflict,
    OnFailure,
    StoredTask,
    Task,
    TaskError,
    func_path,
    moment,
    name_list,
    new_id,
    refuse_unknown,
    replace,
    seconds,
    shown,
)

T_co = TypeVar("T_co", covariant=True)
Exceptions: TypeAlias = type[BaseException] | Sequence[type[BaseException]]


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
    unique: bool | str | Sequence[str]
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
    unique: bool | str | Sequence[str] = False
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
        for name in _OF_THE_DEFINITION:
            if name in changes:
                raise InvalidOption(
                    f"{name} belongs to @q.task({name}=...): a worker asks the function for it"
                )
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
        if not isinstance(self.unique, bool | str):
            name_list(self.unique, "unique", "'user_id'")
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
            id="checked-only" if self.id is None else self.id,
            **{name: getattr(self, name) for name in _PASSED_ON},  # pyright: ignore[reportArgumentType]
        )
        fields = {name: getattr(checked, name) for name in _PASSED_ON}
        return fields | {"expires_at": expires_at, "expires_in_s": expires_in_s, "delay_s": delay_s}

    def maker(
        self, name: str, func: Callable[..., Any], context_parameter: str | None, serializer: Serializer
    ) -> CallMaker:
        return CallMaker(self, name, Shape(func, context_parameter, name), serializer)


_OF_THE_DEFINITION: Final = ("retry_on", "give_up_on", "retry_delay", "executor", "name", "aliases")
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
        fields = options.fields()
        fields["headers"] = dict(fields["headers"])  # a copy: nobody asks again what is in it
        self._pattern = StoredTask(name, b"", id="", **fields)
        # A key that was given for this very call counts before one that is made of its arguments.
        unique = options.unique if options.unique_key is None else False
        self._unique_by = None if unique is False else shape.key_parameters(unique)

    def make(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StoredTask:
        self._shape.check(args, kwargs)
        payload = self._dump_call(None, args, kwargs)
        task = replace(self._pattern, payload=payload, id=new_id() if self._id is None else self._id)
        if self._unique_by is None:
            return task
        values = self._shape.values(self._unique_by, args, kwargs)
        return replace(task, unique_key=unique_key_of(self._name, values))


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

    # --- what makes a call unique ----------------------------------------------------------------

    def key_parameters(self, unique: bool | str | Sequence[str]) -> tuple[str, ...]:
        """The parameters that `unique=` names; True is all of them."""
        if self._signature is None:
            raise InvalidOption(f"{self._name} does not say what it takes; give unique_key='...' instead")
        names = tuple(self._signature.parameters)
        if unique is True:
            return names
        asked = (unique,) if isinstance(unique, str) else tuple(unique or ())
        missing = [name for name in asked if name not in names]
        if missing or not asked:
            raise InvalidOption(
                f"unique must be True or names of parameters of {self._name}{self._signature}, "
                f"not {shown(unique)}"
            )
        return asked

    def values(
        self, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[str, Any]]:
        """What a call gives each of `names`, defaults included: f(1) and f(x=1) are the same call."""
        assert self._signature is not None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return [(name, bound.arguments[name]) for name in names]


_KEY_SERIALIZER: Final = KeySerializer()


def unique_key_of(name: str, values: Sequence[tuple[str, Any]]) -> str:
    """One key for equal calls, in every process: plain data only."""
    try:
        data = _KEY_SERIALIZER.dumps(values)
    except UnserializableArgument as exc:
        raise InvalidOption(
            f"unique= needs arguments of plain data: {exc}; name others, or give unique_key='...'"
        ) from None
    import hashlib  # brings a library of its own, two milliseconds, and few need it

    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return f"{name[: MAX_NAME_CHARS - len(digest) - 1]}:{digest}"


def retry_rules(
    retry_on: Exceptions | None,
    give_up_on: Exceptions | None,
    retry_delay: Duration | Callable[..., Duration] | None,
) -> RetryRules:
    """The options of `@q.task` that decide about retries, checked."""
    return RetryRules(
        None if retry_on is None else _class_names(retry_on, "retry_on"),
        frozenset() if give_up_on is None else _class_names(give_up_on, "give_up_on"),
        _delay(retry_delay),
    )


def _class_names(kinds: Exceptions, name: str) -> frozenset[str]:
    asked = (kinds,) if isinstance(kinds, type) or not isinstance(kinds, Iterable) else tuple(kinds)
    for kind in asked:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise InvalidOption(
                f"{name} takes exception classes, such as {name}=(ConnectionError, TimeoutError), "
                f"not {shown(kind)}"
            )
    return frozenset(class_name(kind) for kind in asked)


def _delay(
    delay: Duration | Callable[..., Duration] | None,
) -> float | Callable[[int, TaskError], Duration] | None:
    if delay is None:
        return None
    if not callable(delay):
        delay_s = seconds(delay, "retry_delay")
        if delay_s < 0:
            raise InvalidOption(f"retry_delay must not be negative, as {shown(delay)} is")
        return delay_s
    if inspect.iscoroutinefunction(delay):
        raise InvalidOption("retry_delay must be an ordinary function: a worker calls it between two tasks")
    function = delay
    if _wants_error(function):
        return function
    return lambda attempt, _error: function(attempt)


def _wants_error(function: Callable[..., Duration]) -> bool:
    """`retry_delay(attempt)` or `retry_delay(attempt, error)`: both are fine."""
    try:
        inspect.signature(function).bind(1)
    except ValueError:
        return False
    except TypeError:
        try:
            inspect.signature(function).bind(1, None)
        except TypeError:
            raise InvalidOption(
                "retry_delay is called as retry_delay(attempt) or retry_delay(attempt, error); "
                f"{shown(function)} takes neither"
            ) from None
        return True
    return False


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
