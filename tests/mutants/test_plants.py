"""Every bug can still be planted: a line that has changed since would let its mutant rest unseen."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutants import Mutant
from tests.mutants.run import ALL

SOURCES = Path(__file__).parents[2] / "src" / "omniq"


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_its_line_stands_once_in_its_file(mutant: Mutant) -> None:
    assert (SOURCES / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_no_two_have_one_name() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in ALL).items() if count > 1] == []
