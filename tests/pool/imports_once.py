"""Takes a while to import, and cannot be imported twice in one process: as many extension modules are."""

import os
import sys
import time
from pathlib import Path

if hasattr(sys, "omniq_test_imported_once"):
    raise ImportError("cannot load module more than once per process")
setattr(sys, "omniq_test_imported_once", True)  # noqa: B010 - a mark that outlives the module
Path(os.environ["OMNIQ_TEST_IMPORTING"]).touch()
time.sleep(0.4)

VALUE = 7
