"""How far a loader has come, as a value: what `state_dict` gives and `load_state_dict` takes.

Samples are counted as the consumer got them: what workers hold beforehand is loaded again after a resume.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from omniq.errors import InvalidOption

VERSION: Final = 1
ADVICE: Final = "load what state_dict() of a loader like this one gave"


class Lane(Struct, frozen=True):
    """How far one of the sequences of an iterable dataset has been read."""

    samples: int = 0
    is_over: bool = False


class Position(Struct, frozen=True):
    epoch: int = 0
    samples: int = 0
    batches: int = 0
    lanes: tuple[Lane, ...] = ()
    turn: int = 0  # the lane that is read next

    def after(self, samples: int) -> Position:
        """One batch of so many samples later."""
        return replace(self, samples=self.samples + samples, batches=self.batches + 1)

    def after_lane(self, samples: int, is_over: bool) -> Position:
        """The lane whose turn it was gave so many samples: another one has its turn now."""
        lane = self.lanes[self.turn]
        lanes = list(self.lanes)
        lanes[self.turn] = Lane(lane.samples + samples, is_over)
        passed = self.after(samples) if samples else self
        return replace(passed, lanes=tuple(lanes), turn=_next_turn(lanes, self.turn))

    def next_epoch(self) -> Position:
        return Position(self.epoch + 1)

    @property
    def is_exhausted(self) -> bool:
        return bool(self.lanes) and all(lane.is_over for lane in self.lanes)


class Identity(Struct, frozen=True):
    """What must be the same for a position to mean the same sample."""

    length: int | None
    shuffle: bool
    lanes: int


class State(Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    seed: int
    position: Position
    identity: Identity


def _next_turn(lanes: list[Lane], turn: int) -> int:
    for step in range(1, len(lanes) + 1):
        following = (turn + step) % len(lanes)
        if not lanes[following].is_over:
            return following
    return turn


def to_dict(seed: int, position: Position, identity: Identity) -> dict[str, Any]:
    """Plain dicts, lists and numbers, for any format."""
    found = cast("dict[str, Any]", msgspec.to_builtins(State(VERSION, seed, position, identity)))
    found["position"]["lanes"] = list(found["position"]["lanes"])  # a tuple would not come back from JSON
    return found


def from_dict(found: Any, identity: Identity, seed: int | None) -> tuple[int, Position]:
    """The seed and position in a saved state. `seed` is what the loader was told itself, if it was."""
    try:
        state = msgspec.convert(found, State)
    except msgspec.ValidationError as exc:
        raise InvalidOption(f"this is no state of a DataLoader ({exc}); {ADVICE}") from exc
    if state.version != VERSION:
        raise InvalidOption(f"the state has version {state.version}, and this is {VERSION}; {ADVICE}")
    if seed is not None and seed != state.seed:
        raise InvalidOption(f"the state has seed={state.seed}, and the loader seed={seed}; leave seed out")
    for name in Identity.__struct_fields__:
        was, now = getattr(state.identity, name), getattr(identity, name)
        if was != now:
            raise InvalidOption(f"the state was made with {name}={was}, and here it is {now}; {ADVICE}")
    lanes = len(state.position.lanes)
    if lanes and (lanes != identity.lanes or not 0 <= state.position.turn < lanes):
        raise InvalidOption(f"the state has {lanes} lanes, and the dataset {identity.lanes}; {ADVICE}")
    return state.seed, state.position
