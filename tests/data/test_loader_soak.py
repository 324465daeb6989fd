"""The long versions of test_loader_faults.py. Only `make soak` runs them."""

from __future__ import annotations

import pytest

from tests.data.test_loader_faults import STREAMS, flat, one_copy, same_with_kills

pytestmark = pytest.mark.soak


@pytest.mark.bound(400)
def test_d13_five_million_records_four_workers() -> None:
    one_copy(5_000_000, workers=4)


@pytest.mark.bound(600)
@pytest.mark.parametrize("persistent", [True, False])
def test_d14_two_hundred_epochs(persistent: bool) -> None:
    flat(200, 20, persistent=persistent)


@pytest.mark.bound(600)
@pytest.mark.parametrize("kind", list(STREAMS))
def test_d19_a_hundred_kills(kind: str) -> None:
    same_with_kills(kind, kills=100, every_s=0.1)
