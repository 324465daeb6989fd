"""Settings: arguments over `OMNIQ_*` variables over `[tool.omniq]` in pyproject.toml over defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from omniq.errors import InvalidOption

_KNOWN = ("url",)


def project_root(start: Path | None = None) -> Path:
    """The nearest folder above with a pyproject.toml or .git, else the working directory itself."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return here


def default_file() -> Path:
    return project_root() / ".omniq" / "omniq.db"


def configured_url(environ: dict[str, str] | None = None) -> str | None:
    """The store's URL from the environment or pyproject.toml; None where neither names one."""
    env = os.environ if environ is None else environ
    if env.get("OMNIQ_URL"):
        return env["OMNIQ_URL"]
    url = _pyproject_settings().get("url")
    if url is not None and not isinstance(url, str):
        raise InvalidOption(f"[tool.omniq] url in pyproject.toml must be a string, not {url!r}")
    return url if url is None else _anchored(url)


def _anchored(url: str) -> str:
    """A relative file in pyproject.toml counts from there: one project, one file."""
    scheme, _, relative = url.partition(":///")
    if scheme.lower() != "sqlite" or relative.startswith(("/", "~")):
        return url
    return f"sqlite:///{quote(str(project_root()))}/{relative}"


def _pyproject_settings() -> dict[str, Any]:
    file = project_root() / "pyproject.toml"
    if not file.is_file():
        return {}
    import tomllib  # only where there is such a file: two milliseconds

    try:
        settings: Any = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("omniq", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise InvalidOption(f"{file} cannot be read: {exc}") from exc
    if not isinstance(settings, dict):
        raise InvalidOption(f"[tool.omniq] in {file} must be a table")
    table = cast("dict[str, Any]", settings)
    unknown = sorted(set(table) - set(_KNOWN))
    if unknown:
        raise InvalidOption(f"[tool.omniq] in {file} knows {', '.join(_KNOWN)}, not {', '.join(unknown)}")
    return table
