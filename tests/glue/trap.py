"""Nobody may import this."""

raise AssertionError("a row had this imported")
