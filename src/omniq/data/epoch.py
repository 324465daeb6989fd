"""What a consumer iterates over: batches, one line of progress, and how far it has come."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from loguru import logger

from omniq.data.loader_pool import LoaderPool
from omniq.data.position import Position
from omniq.data.producers import Producer
from omniq.data.sealed import sealed
from omniq.data.source import MAX_TOLD_CHARS, Loaded
from omniq.data.statistics import Statistics
from omniq.errors import PoolNotRunning
from omniq.pool.pickles import told

PROGRESS_EVERY_S: Final = 0.5


class Cursor:
    """How far an epoch has come. The loader looks at it, also when its iterator is gone."""

    def __init__(self, begin: Position, num_workers: int) -> None:
        self.position = begin
        self.left_out = 0
        self.restarts = 0
        self._begin = begin
        self._num_workers = num_workers
        self._began_at = self._seen_at = time.perf_counter()
        self._waited_s = 0.0
        self._first_s = 0.0

    def waited(self, since: float) -> None:
        """The consumer has waited since then, for a batch or to hear that there is none."""
        self._seen_at = time.perf_counter()
        self._waited_s += self._seen_at - since

    def reached(self, position: Position) -> None:
        if self.position.batches == self._begin.batches:
            self._first_s = self._seen_at - self._began_at
            self._waited_s = self._first_s
        self.position = position

    def statistics_at(self, position: Position) -> Statistics:
        return Statistics(
            epoch=self._begin.epoch,
            batches=position.batches - self._begin.batches,
            samples=position.samples - self._begin.samples,
            elapsed_s=self._seen_at - self._began_at,
            waited_s=self._waited_s,
            first_s=self._first_s,
            num_workers=self._num_workers,
            left_out=self.left_out,
            restarts=self.restarts,
        )

    @property
    def statistics(self) -> Statistics:
        return self._final if self._final is not None else self.statistics_at(self.position)

    _final: Statistics | None = None

    def end(self) -> None:
        self._final = self.statistics_at(self.position)
        self.position = self.position.next_epoch()


class Epoch(Iterator[Any]):
    """After an exception, the next batch follows: nothing but the batch that failed is lost."""

    def __init__(
        self,
        producer: Producer,
        cursor: Cursor,
        *,
        convert: Callable[[Any], Any] | None,
        skips_errors: bool,
        shows_progress: bool,
        pool: LoaderPool | None,
        closes_pool: bool,
        ahead: int,
    ) -> None:
        self._producer = producer
        self._cursor = cursor
        self._convert = convert
        self._skips_errors = skips_errors
        self._shows_progress = shows_progress
        self._shown_at = 0.0
        self._pool = pool
        self._restarts_before = 0 if pool is None else pool.restarts
        self._closes_pool = closes_pool
        self._ahead = ahead
        self._has_room = pool is None
        self._is_over = False
        self._reached, self._left_out = producer.position, 0  # when the consumer asked for the next batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        self._reached, self._left_out = self._producer.position, self._cursor.left_out
        try:
            return self._batch()
        except Exception:
            raise
        except BaseException:  # a Ctrl-C: nobody knows how far the batch had come
            if not self._is_over:
                self._cursor.position, self._cursor.left_out = self._reached, self._left_out
                self._producer.go_back(self._reached)
            raise

    def _batch(self) -> Any:
        began_at = time.perf_counter()
        try:
            loaded = self._loaded()
        except StopIteration:
            self._cursor.waited(began_at)
            self._end()
            raise
        except Exception:
            self._note(began_at)
            raise
        self._note(began_at)
        if not self._has_room and self._pool is not None:
            self._has_room = True
            self._pool.make_room(sealed(loaded.batch)[1], self._ahead)
        return loaded.batch if self._convert is None else self._convert(loaded.batch)

    def _loaded(self) -> Loaded:
        """The next batch that has samples; with "skip", what failed is told and passed over."""
        while True:
            try:
                loaded = next(self._producer)
            except (StopIteration, PoolNotRunning):
                raise
            except Exception as exc:
                if not self._skips_errors:
                    raise
                self._cursor.left_out += self._producer.position.samples - self._cursor.position.samples
                logger.error("a batch failed and is left out: {error}", error=_told(exc))
            else:
                for sample in loaded.left_out:
                    self._cursor.left_out += 1
                    logger.error("left out of its batch: {sample}", sample=sample)
                if not loaded.is_empty:
                    return loaded
            self._cursor.reached(self._producer.position)
            self._reached, self._left_out = self._producer.position, self._cursor.left_out

    def _note(self, began_at: float) -> None:
        self._cursor.waited(began_at)
        self._cursor.reached(self._producer.position)
        if self._pool is not None:
            self._cursor.restarts = self._pool.restarts - self._restarts_before
        if self._shows_progress and time.perf_counter() - self._shown_at > PROGRESS_EVERY_S:
            self._shown_at = time.perf_counter()
            _show(self._cursor.statistics, is_over=False)

    def _end(self) -> None:
        self._cursor.end()
        self.close()
        if self._shows_progress:
            _show(self._cursor.statistics, is_over=True)

    def close(self) -> None:
        """Drop what is ahead."""
        if self._is_over:
            return
        self._is_over = True
        self._producer.close()
        if self._closes_pool and self._pool is not None:
            self._pool.close()
        self._pool = None


def _told(exc: Exception) -> str:
    notes = "; ".join(map(str, getattr(exc, "__notes__", ())))
    text = f"{told(exc):.{MAX_TOLD_CHARS}}"
    return f"{text} ({notes:.{MAX_TOLD_CHARS}})" if notes else text


def _show(statistics: Statistics, *, is_over: bool) -> None:
    """A line that is written over on a terminal; elsewhere only the last one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{statistics}" + ("\n" if is_over else ""))
    elif is_over:
        sys.stderr.write(f"{statistics}\n")
    sys.stderr.flush()
