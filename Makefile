# What people do in this repository. `make` alone prints the list.
#
# Set-up is part of every target: a virtual environment in .venv with the versions of constraints.txt,
# made once, and again when pyproject.toml or constraints.txt has changed. Nothing is installed elsewhere.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
# Not loadgroup or loadscope: after a crash of one of its workers, pytest-xdist 3.8.0 waits for ever with those.
# Four on two cores: many a test waits for a process, a server or a lease rather than computes.
PARALLEL := -n 4 --dist worksteal
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input

# Compiled modules are kept, whatever the caller's environment says: tests start hundreds of interpreters, and
# each of them, like each worker of pytest, would compile everything anew.
export PYTHONDONTWRITEBYTECODE :=

# Each candidate is started, not only looked up: the shim of a version manager may refuse to run, and a
# distribution may ship Python without venv.
SUITABLE := import sys, venv, ensurepip; assert sys.version_info >= (3, 11)
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	"$$python" -c '$(SUITABLE)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check soak mutants bench bench-quick bench-guard site format clean

help: ## print this table
	@echo "usage: make TARGET   (set-up is automatic; PYTHON=/path/to/python chooses the interpreter)"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## watch a few thousand tasks run and survive a killed worker (20 seconds)
	@$(BIN)/omniq demo

test: $(READY) ## run all tests except the long ones (about five minutes)
	$(PYTEST) $(PARALLEL) -m "not soak and not quiet" tests
	@# Only the files that have such a test are collected again; a file may have soak tests only, hence exit code 5.
	$(PYTEST) -m "quiet and not soak" $$(grep -rl --include='test_*.py' 'pytest\.mark\.quiet' tests) || [ $$? -eq 5 ]

check: $(READY) ## the loop before a commit: format, lint, types, layers, logic, conformance (under a minute)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(PYTEST) -q $(PARALLEL) tests/architecture tests/logic tests/conformance --ignore tests/conformance/test_postgres.py --ignore tests/conformance/test_redis.py

soak: $(READY) ## run the long fault tests
	@# On the disk: tests otherwise keep their files in memory.
	TMPDIR="$${TMPDIR:-/tmp}" $(PYTEST) -m soak tests

mutants: $(READY) ## plant bugs one at a time and expect the tests to turn red
	$(BIN)/python -m tests.mutants.run

bench: $(READY) ## measure OmniQ beside other task queues on all stores (35 minutes)
	$(BIN)/python -m benchmarks.run

bench-quick: $(READY) ## the same on SQLite, in under three minutes, with wider error bars
	$(BIN)/python -m benchmarks.run --quick

bench-guard: $(READY) ## fail where OmniQ is further from the limit of a store than was recorded (two minutes)
	$(BIN)/python -m benchmarks.guard

site: $(READY) ## build the documentation as a site into build/site
	$(BIN)/python -m mkdocs build --strict --quiet

format: $(READY) ## rewrite the sources in the house format and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove the virtual environment and everything that was built or cached
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(BIN)/python -c '$(SUITABLE)' 2>/dev/null || { \
		python="$(PYTHON)"; \
		"$$python" -c '$(SUITABLE)' 2>/dev/null || { \
			echo "make: needs Python 3.11 or newer with the venv module; name one with PYTHON=/path/to/python" >&2; \
			exit 1; \
		}; \
		echo "set-up 1/3: virtual environment in $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv $(VENV); \
	}
	@echo "set-up 2/3: build tools"
	@$(PIP) install --quiet -c constraints.txt hatchling
	@echo "set-up 3/3: omniq and its development packages (about a minute)"
	@# Without isolation the build uses the pinned hatchling from above.
	@$(PIP) install --progress-bar off -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
