"""Plants one bug after the other in a copy of the sources, and expects the tests to turn red.

python -m tests.mutants.run               all of them, two at a time
python -m tests.mutants.run epoch jitter  those whose name has one of these words

First the selected tests must be green without a bug. Exits non-zero if a bug survived or cannot be planted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.data import DATA
from tests.mutants.guard import SOURCE
from tests.mutants.loader import LOADER
from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.operating import OPERATING
from tests.mutants.policies import POLICIES
from tests.mutants.pool import POOL
from tests.mutants.postgres import POSTGRES
from tests.mutants.processes import PROCESSES
from tests.mutants.redis import REDIS
from tests.mutants.schedules import SCHEDULES
from tests.mutants.speed import SPEED
from tests.mutants.workers import WORKERS

ALL: Final = (
    *(*MUTANTS, *WORKERS, *SPEED, *POLICIES, *SCHEDULES, *POOL, *PROCESSES, *DATA, *LOADER),
    *(*POSTGRES, *REDIS, *OPERATING),
)
ROOT: Final = Path(__file__).parents[2]
AT_ONCE: Final = 2
PATIENCE_S: Final = 180.0  # a bug that makes a test hang is noticed, too
GREEN, RED, NOTHING_SELECTED = 0, 1, 5
# What a run of tests needs; a copy of anything else would only take time.
COPIED: Final = ("src", "tests", "docs", "examples", "pyproject.toml", "README.md")
LEFT_OUT: Final = shutil.ignore_patterns("__pycache__", "*.pyc", ".pytest_cache", ".hypothesis")


class Verdict(NamedTuple):
    mutant: Mutant
    word: str
    seconds: float
    output: str = ""

    @property
    def is_good(self) -> bool:
        return self.word in ("red", "red, it hung")


@contextmanager
def copied() -> Iterator[Path]:
    """The repository in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="omniq-mutant-") as folder:
        for name in COPIED:
            place = Path(folder) / name
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, place, ignore=LEFT_OUT)
            else:
                shutil.copy(ROOT / name, place)
        yield Path(folder)


def tested(folder: Path, tests: tuple[str, ...], only: str) -> tuple[int | None, str]:
    """Run these tests on that copy; the exit code (None when it hung) and what pytest said."""
    paths = [str(folder / "src"), str(folder)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), SOURCE: str(folder / "src")}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutants.guard",
    ]
    # A group of its own, so that what a hanging test has started ends with it.
    process = subprocess.Popen(
        [*command, "--no-header", *tests, "-k", only],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return None, output
    return process.returncode, output


def planted(mutant: Mutant) -> Verdict:
    begin = time.monotonic()

    def verdict(word: str, output: str = "") -> Verdict:
        return Verdict(mutant, word, time.monotonic() - begin, output)

    with copied() as folder:
        file = folder / "src" / "omniq" / mutant.file
        source = file.read_text() if file.exists() else ""
        if source.count(mutant.old) != 1:
            return verdict(
                "NOT FOUND", f"{mutant.old!r} stands {source.count(mutant.old)} times in {mutant.file}"
            )
        file.write_text(source.replace(mutant.old, mutant.new))
        code, output = tested(folder, mutant.tests, mutant.only)
    match code:
        case None:
            return verdict("red, it hung")
        case _ if code == RED:
            return verdict("red")
        case _ if code == GREEN:
            return verdict("SURVIVED", output)
        case _:
            return verdict("BROKEN", output)  # the tests could not even be collected


def green_without_a_bug(mutants: list[Mutant]) -> bool:
    """A test that is red by itself notices nothing."""
    chosen: dict[tuple[str, ...], set[str]] = {}
    for mutant in mutants:
        chosen.setdefault(mutant.tests, set()).add(mutant.only)
    # All that is chosen from one file in one run: starting pytest takes longer than most of the tests.
    runs = [(tests, "" if "" in names else any_of(names)) for tests, names in chosen.items()]
    print(f"{len(runs)} runs of tests without a bug ...", flush=True)
    with copied() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        ended = list(pool.map(lambda run: (run[0], *tested(folder, *run)), runs))
    for tests, code, output in ended:
        if code != GREEN:
            what = "select nothing" if code == NOTHING_SELECTED else "are not green"
            print(f"{' '.join(tests)} {what} without a bug:\n{output}")
    return all(code == GREEN for _, code, _ in ended)


def any_of(names: set[str]) -> str:
    return " or ".join(f"({name})" for name in sorted(names))


def show(verdict: Verdict, number: int, total: int) -> None:
    mutant = verdict.mutant
    place = f"{number:3}/{total}"
    print(f"{place}  {verdict.word:12} {verdict.seconds:6.1f} s  {mutant.file:26} {mutant.name}", flush=True)
    if not verdict.is_good:
        print(verdict.output, flush=True)


def main(words: list[str]) -> int:
    mutants = [one for one in ALL if not words or any(word in one.name for word in words)]
    if not mutants:
        print(f"no mutant is called like {' or '.join(words)}")
        return 2
    begin = time.monotonic()
    if not green_without_a_bug(mutants):
        return 1
    verdicts: list[Verdict] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, future in enumerate(as_completed([pool.submit(planted, one) for one in mutants]), 1):
            verdicts.append(future.result())
            show(verdicts[-1], number, len(mutants))
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    took_s = time.monotonic() - begin
    print(f"{len(verdicts) - len(bad)} of {len(verdicts)} bugs were noticed, in {took_s:.0f} s")
    for verdict in bad:
        print(f"  {verdict.word}: {verdict.mutant.name} ({verdict.mutant.file})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
