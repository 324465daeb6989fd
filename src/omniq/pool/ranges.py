"""Many calls of one function, in the child: results are kept in the page, and go to the parent together.

    packed    numbers and nothing, stored as they are while they are all of one type
    pickled   everything else, and whatever comes after it in the same range

Either way a result is in the page before the next call begins, so that it outlives a process that dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from omniq.pool import copies, packed, pickles, wire
from omniq.pool.attempt import INTERRUPTED, Attempts, Ended, failed, returned
from omniq.pool.control import FIRST, POSTED, STATE, ControlPage
from omniq.pool.packed import NOTHING, SLOTS, Kind, Odd, Run
from omniq.pool.pickles import CallInterrupted

# While calls go on, no result waits longer than this, or than the calls of one block.
FLUSH_EVERY_S: Final = 0.001
MAX_GATHERED_BYTES: Final = 4096
# So many calls are run between two looks at the clock, as long as they take less than QUICK_S.
MAX_BLOCK: Final = 128
QUICK_S: Final = FLUSH_EVERY_S / 4
# A range whose results change their type more often is pickled.
MAX_CHANGES: Final = 2


class Report(Protocol):
    """Sends how one call ended."""

    def __call__(self, call_id: int, ended: Ended, *, is_last: bool) -> None: ...


SendRange = Callable[[int, bytes, int], None]  # first id, body, flags


class Ranges:
    def __init__(
        self,
        page: ControlPage,
        journal: pickles.Journal,
        run: Run,
        attempts: Attempts,
        report: Report,
        send: SendRange,
    ) -> None:
        self._words = page.words
        self._journal = journal
        self._run = run
        self._attempts = attempts
        self._report = report
        self._send = send
        self._gathered: pickles.Gathered = []
        self._flush_at = 0.0
        # Of the latest range, and most likely of the next one as well:
        self._func: pickles.Function | None = None
        self._kind = NOTHING
        self._block_size = 1

    def work_off(self, stop_id: int, func: pickles.Function, items: list[Any], *, is_last: bool) -> None:
        """Run `func` with each of `items`; the last of these calls is the one before `stop_id`."""
        items.reverse()  # so that an item is let go as soon as it has run
        if func is not self._func:
            self._func, self._block_size = func, 1
        self._attempts.stop_id = stop_id
        self._flush_at = time.monotonic() + FLUSH_EVERY_S
        changes = 0
        while items:
            if self._words[POSTED] and self._skip_unwanted(stop_id, items, is_last=is_last):
                continue
            if changes <= MAX_CHANGES:
                alone, changed = self._run_packed(stop_id, func, items)
                changes += changed
            else:
                if self._run.kind is not None:
                    self._flush()
                alone = self._run_pickled(stop_id - len(items), func, items)
            if alone is not None:
                self._flush()
                self._report(stop_id - len(items) - 1, alone, is_last=is_last and not items)
        self._flush(wire.LAST if is_last else 0)

    def end_soon(self) -> None:
        """Let no further call begin before something is sent."""
        if self._attempts.block is not None:
            self._attempts.block.clear()
        self._flush_at = 0.0

    def _skip_unwanted(self, stop_id: int, items: list[Any], *, is_last: bool) -> bool:
        """Report in one frame that the next calls do not run; False if the next one does."""
        call_id = stop_id - len(items)
        count = min(self._attempts.unwanted_from(call_id), len(items))
        if not count:
            return False
        self._flush()
        self._words[STATE] = 2 * (call_id + count)
        del items[len(items) - count :]
        last = wire.LAST if is_last and not items else 0
        self._send(call_id, wire.NUMBER.pack(count), last | wire.SKIPPED)
        return True

    def _flush(self, flags: int = 0) -> None:
        """Send what is gathered, and let the page forget it."""
        self._flush_at = time.monotonic() + FLUSH_EVERY_S
        first = self._words[FIRST]
        if self._gathered:
            self._send(first, pickles.dump_gathered(self._gathered), flags | wire.RANGE)
            self._gathered.clear()
            self._words[FIRST] = 0
            self._journal.erase()
        elif self._run.kind is not None:
            if count := (self._words[STATE] >> 1) - first:
                self._send(first, self._run.frame_body(count), flags | wire.RANGE | wire.PACKED)
            self._run.end()

    # --- packed ----------------------------------------------------------------------------------

    def _run_packed(self, stop_id: int, func: pickles.Function, items: list[Any]) -> tuple[Ended | None, int]:
        """Fill a run block by block, up to and including a call that the run cannot hold.

        How that one ended, where it has to be reported by itself; and by how much the type has changed.
        """
        run, words, now = self._run, self._words, time.monotonic
        call_id, began_at = stop_id - len(items), now()
        while items:
            if copies.is_copy():
                copies.leave()
            kind = run.kind or run.begin(self._kind, call_id, min(len(items), SLOTS))
            size = min(self._block_size, run.stop_id - call_id)
            odd, alone = self._run_block(call_id, func, items, size, kind)
            done = run.done(call_id, size, kind)
            del items[len(items) - done :]
            call_id += done
            words[STATE] = 2 * call_id + (odd is not None or alone is not None)
            if alone is not None:
                items.pop()
                return alone, 0
            if odd is not None:
                items.pop()
                return self._take_odd(call_id, odd[0], len(items))
            ended_at = now()
            self._block_size = 1 if ended_at - began_at > QUICK_S else min(4 * size, MAX_BLOCK)
            began_at = ended_at
            if items and (began_at > self._flush_at or call_id == run.stop_id):
                self._flush()
        return None, 0

    def _run_block(
        self, call_id: int, func: pickles.Function, items: list[Any], size: int, kind: Kind
    ) -> tuple[Odd, Ended | None]:
        """Run the next `size` calls, or fewer: what they return is in the run, except what is told here."""
        attempts, words = self._attempts, self._words
        slots, at = self._run.views[kind.format], call_id - words[FIRST]
        block = items[: -size - 1 : -1]
        try:
            try:
                attempts.block = block
                words[STATE] = 2 * call_id + 1
                # Only now: a signal that comes later finds the block, one that came before has left a post.
                if words[POSTED] and attempts.any_unwanted(call_id):
                    if attempts.must_not_begin(call_id):
                        raise CallInterrupted
                    del block[1:]
                if kind is NOTHING:
                    return packed.fill_nothing(func, block, slots, at), None
                return packed.fill_numbers(func, block, slots, at, kind), None
            except CallInterrupted:
                raise
            except BaseException as exc:
                return None, failed(exc)
            finally:
                attempts.block = None
        except CallInterrupted:
            return None, INTERRUPTED

    def _take_odd(self, call_id: int, value: Any, left: int) -> tuple[Ended | None, int]:
        """A result of another type begins another run; with one that no run can hold, pickling begins."""
        words, run = self._words, self._run
        was_filled = words[FIRST] != call_id
        self._flush()
        kind = packed.kind_of(value)
        if kind is not None:
            run.begin(kind, call_id, min(left + 1, SLOTS))
            run.views[kind.format][0] = 1 if kind is NOTHING else value
            self._kind = kind
            words[STATE] = 2 * (call_id + 1)
            return None, was_filled
        ended = self._attempts.ended(call_id, lambda: value, ())
        return None if self._gather(call_id, ended) else ended, MAX_CHANGES + 1

    # --- pickled ---------------------------------------------------------------------------------

    def _run_pickled(self, call_id: int, func: pickles.Function, items: list[Any]) -> Ended | None:
        """Run calls and gather their results, up to and including one that has to be reported by itself."""
        attempts, words, pop, now = self._attempts, self._words, items.pop, time.monotonic
        atoms, gather, record = pickles.ATOMS, self._gathered.append, self._journal.record_atom
        try:
            try:
                while items:
                    if now() > self._flush_at:
                        words[STATE] = 2 * call_id
                        self._flush()
                    words[STATE] = 2 * call_id + 1
                    attempts.running = call_id
                    item = pop()
                    if words[POSTED] and attempts.must_not_begin(call_id):
                        raise CallInterrupted
                    value = func(item)
                    if type(value) in atoms:
                        attempts.running = 0
                        try:
                            record(value)
                        except ValueError:  # the journal is full: the flush that follows makes room
                            return returned(value)
                        gather(value)
                        if not words[FIRST]:
                            words[FIRST] = call_id
                    else:
                        del item
                        ended = returned(value)
                        attempts.running = 0
                        if not self._gather(call_id, ended):
                            return ended
                    call_id += 1
            except CallInterrupted:
                raise
            except BaseException as exc:
                return failed(exc)
            finally:
                attempts.running = 0
        except CallInterrupted:
            return INTERRUPTED
        words[STATE] = 2 * call_id
        return None

    def _gather(self, call_id: int, ended: Ended) -> bool:
        """Put a small result with the others."""
        if ended.kind != wire.RETURNED or ended.buffers or len(ended.body) > MAX_GATHERED_BYTES:
            return False
        if self._journal.free_bytes < len(ended.body):
            self._flush()
        self._journal.record(ended.body)
        self._gathered.append((ended.body,))
        if not self._words[FIRST]:
            self._words[FIRST] = call_id
        self._words[STATE] = 2 * (call_id + 1)
        return True
