"""`python -m omniq` is the command `omniq`."""

from __future__ import annotations

from omniq.cli import main

if __name__ == "__main__":
    main(prog_name="omniq")
