"""The files in deploy/ say what the command really takes."""

import configparser
import json
import re
import shlex
from typing import Any

import yaml

from omniq.cli import main
from tests.docs.pages import ROOT

DEPLOY = ROOT / "deploy"


def parses(words: list[str]) -> None:
    name, *arguments = words
    main.commands[name].make_context(name, list(arguments))  # raises what click has to say


def test_the_unit_starts_a_command_that_exists() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((DEPLOY / "omniq-worker.service").read_text())
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program.endswith("/omniq")
    parses(words)
    grace = float(words[words.index("--grace") + 1])
    assert float(service["TimeoutStopSec"]) >= grace + 5, "systemd must wait longer than omniq worker does"
    assert service["RestartPreventExitStatus"] == "2"


def test_the_image_runs_commands_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    parses(json.loads(re.findall(r"HEALTHCHECK .* CMD (\[.*\])", text)[0])[1:])
    shell = json.loads(re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)[0])[2]
    assert shell.startswith("exec omniq "), "a signal must reach omniq, not a shell"
    parses(shlex.split(shell.replace("$OMNIQ_APP", "myapp.tasks:q"))[2:])
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)
    # Extras of ours are none of the project that is copied into the image: pip would pass over them.
    assert "RUN pip install --no-cache-dir .\n" in text
    assert "omniq-tasks[postgres]" in text


def test_compose_starts_workers_after_the_schema_is_there() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    parses(services["migrate"]["command"][1:])
    assert services["worker"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["worker"]["stop_grace_period"] == "35s"
    environment = services["worker"]["environment"]
    assert environment["OMNIQ_URL"] == "postgresql://omniq@database/omniq"
    # A password with a slash or an @ would make another address of it.
    assert environment["PGPASSWORD"] == services["database"]["environment"]["POSTGRES_PASSWORD"]


def test_what_the_image_is_not_given() -> None:
    """Docker reads the list that is named like the file it builds from."""
    left_out = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {".git", ".venv", "**/.env", ".omniq", "**/*.db"} <= set(left_out)
