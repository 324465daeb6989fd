"""The suite on a store whose server's clock the tests move."""

from omniq.testing.conformance import StorageConformance


class OnAMovedClock(StorageConformance):
    """Some tests set the wall clock. Leases count by it, so the tests of those keep to the steady count."""

    follows_wall = False

    def test_an_eta_follows_the_wall_clock(self) -> None:
        self.follows_wall = True
        super().test_an_eta_follows_the_wall_clock()

    def test_a_wall_clock_that_is_set_back_fires_nothing_twice(self) -> None:
        self.follows_wall = True
        super().test_a_wall_clock_that_is_set_back_fires_nothing_twice()

    def test_what_is_due_later_again_hides_nobody(self) -> None:
        self.follows_wall = True
        super().test_what_is_due_later_again_hides_nobody()

    def test_a_task_without_an_eta_is_due_whatever_the_clock_says(self) -> None:
        self.follows_wall = True
        super().test_a_task_without_an_eta_is_due_whatever_the_clock_says()
