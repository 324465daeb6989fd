"""Django needs its settings before anything of it is imported."""

from pathlib import Path

import pytest
from django.conf import settings

from tests.cli.site import Site

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["tests.glue.shop"],
        USE_TZ=True,
        TIME_ZONE="UTC",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={
            "default": {
                "BACKEND": "omniq.contrib.django.OmniQBackend",
                "QUEUES": ["default", "mail"],
                "OPTIONS": {"url": "memory://"},
            }
        },
    )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
