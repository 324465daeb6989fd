"""The statements of this store, and how its schema comes to be.

SQL lives in files beside this one. A migration is a numbered file; it names no schema, so it makes everything
in the first one of the search path. Which numbers have been applied is kept in the schema itself.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

from omniq.errors import InvalidOption
from omniq.storage.postgres.records import COLUMNS
from omniq.task import shown

DEFAULT_SCHEMA: Final = "omniq"
OLDEST_SERVER: Final = 13
MAX_NAME_BYTES: Final = 63  # longer ones would be cut by the server, and two of them could become one
_FOLDER: Final = files("omniq.storage.postgres") / "sql"
_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION: Final = re.compile(r"(\d{4})_\w+\.sql")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def check_schema(name: str) -> str:
    try:
        size = len(name.encode())
    except (AttributeError, UnicodeEncodeError):
        raise InvalidOption(f"schema must be a name, such as 'omniq', not {shown(name)}") from None
    if not 0 < size <= MAX_NAME_BYTES or "\x00" in name or name.startswith("pg_"):
        raise InvalidOption(
            f"schema {shown(name)} must be a name of 1 to {MAX_NAME_BYTES} bytes that does not begin with pg_"
        )
    return name


class Statements:
    """Every statement of the store for one schema, by its name in the file."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._texts = {
            name: text.replace("{task}", COLUMNS).replace("{schema}", quoted(schema))
            for name, text in _statements().items()
        }
        # As in the functions: a channel has at most 63 bytes, so the name of the schema goes in as a digest.
        digest = hashlib.md5(schema.encode(), usedforsecurity=False).hexdigest()
        self.due_channel = f"omniq_due_{digest}"
        self.result_channel = f"omniq_result_{digest}"

    def __getitem__(self, name: str) -> str:
        return self._texts[name]


@cache
def _statements() -> dict[str, str]:
    pieces = _NAME.split((_FOLDER / "statements.sql").read_text(encoding="utf-8"))[1:]
    return {name: text.strip() for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


@cache
def migrations() -> dict[int, str]:
    """The files by their numbers, in order."""
    found = {
        int(match[1]): file.read_text(encoding="utf-8")
        for file in _FOLDER.iterdir()
        if (match := _MIGRATION.fullmatch(file.name))
    }
    return dict(sorted(found.items()))


def newest() -> int:
    return max(migrations())


# Whether the schema is there, and whether this role may make what belongs in it, or make the schema itself.
MAY_CREATE: Final = """SELECT n.oid IS NOT NULL, CASE WHEN n.oid IS NULL
    THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(n.oid, 'CREATE') AND has_schema_privilege(n.oid, 'USAGE') END
FROM (SELECT $1::text AS name) w LEFT JOIN pg_namespace n ON n.nspname = w.name"""


def lock(schema: str) -> str:
    """One migration of a schema at a time, until the transaction ends."""
    digest = hashlib.blake2b(b"omniq migrate " + schema.encode(), digest_size=8).digest()
    return f"SELECT pg_advisory_xact_lock({int.from_bytes(digest, signed=True)});\n"


def preamble(schema: str) -> str:
    """What stands before the migrations, once the schema is there."""
    return (
        f"SET LOCAL search_path = {quoted(schema)}, pg_temp;\n"
        "CREATE TABLE IF NOT EXISTS migration "
        "(version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());\n"
    )


def step(version: int) -> str:
    return f"{migrations()[version]}\nINSERT INTO migration (version) VALUES ({version});\n"


def script(schema: str) -> str:
    """All of it, for people who apply it themselves to a database where nothing is yet."""
    steps = "\n".join(f"-- version {version}\n{step(version)}" for version in migrations())
    create = f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};\n"
    return f"BEGIN;\n{lock(schema)}{create}{preamble(schema)}\n{steps}\nCOMMIT;\n"
