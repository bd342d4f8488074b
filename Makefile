# The whole workshop: `make help`.  Needs Python 3.11 or newer with pip; everything else goes into .venv.
# Pass more arguments to a program with ARGS, as in `make test ARGS="-k claim"`.

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# What `make run` starts.
DEMO := serve -c examples/demo.yaml --watch

# One test process more than a small machine has cores, for a third of the time a test waits for something; tests that
# share a thing name a group and stay in one process.
PYTEST := $(BIN)/python -m pytest
SPREAD := -n 3 --dist loadgroup

# Made by make, and therefore removed by `make clean`; also every __pycache__ below these folders.
DEMO_FILES := $(addprefix pollux-demo.db,-wal -shm .lock .bell .ballast .token .sock .versions)
MADE := $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis build dist pollux-demo.db $(DEMO_FILES)
CODE := src tests benchmarks docs examples

.DEFAULT_GOAL := help
.PHONY: help run test check bench sabotage docs lock clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## start the demo: a scheduler with a few jobs, watched in the terminal
	@$(BIN)/pollux $(DEMO) $(ARGS)

test: $(VENV)/.installed ## run every test; a skipped test fails the run
	@# Where Python may keep nothing, hundreds of processes would compile everything anew.
	@$(BIN)/python -m compileall -q -j 2 -x '/(test_[^/]*|conftest)\.py$$' src tests
	@$(BIN)/python -m tests.beforehand
	@POLLUX_NO_SKIP=1 $(PYTEST) $(SPREAD) $(ARGS)

check: $(VENV)/.installed ## format, lint, types, architecture and unit tests: under a minute
	@$(BIN)/ruff format --check --quiet . || { echo "make: not formatted; cure: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@POLLUX_NO_SKIP=1 $(PYTEST) -q tests/test_architecture.py tests/unit

bench: $(VENV)/.installed ## measure, next to peers in the same run
	@$(BIN)/python -m benchmarks $(ARGS)

sabotage: $(VENV)/.installed ## break each promise on purpose and see the tests go red
	@$(BIN)/python -m tests.sabotage $(ARGS)

docs: $(VENV)/.installed ## write the generated parts of the documentation anew
	@$(BIN)/python -m docs.build $(ARGS)

lock: ## resolve the dependencies anew into requirements.lock (needs uv)
	@command -v $(UV) >/dev/null || { echo "make: uv is not installed; cure: $(PYTHON) -m pip install uv" >&2; exit 1; }
	@echo "resolving dependencies into requirements.lock ..."
	@$(UV) pip compile --quiet --upgrade --universal --generate-hashes --no-annotate --no-header \
		--all-extras --group dev --group bench pyproject.toml -o requirements.lock

clean: ## remove what make made, nothing else
	@rm -rf $(MADE)
	@find $(wildcard $(CODE)) -type d -name __pycache__ -prune -exec rm -rf {} +

# Said before anything is made, each with its cure.
define REFUSE_UNFIT_PYTHON
command -v $(PYTHON) >/dev/null || { \
	echo "make: $(PYTHON) is not installed; cure: install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; \
	exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), Pollux needs 3.11 or newer; cure: make PYTHON=python3.12" >&2; \
	exit 1; }; \
$(PYTHON) -m pip --version >/dev/null 2>&1 || { \
	echo "make: $(PYTHON) has no pip; cure: apt-get install python3-pip (Debian, Ubuntu)," \
		"dnf install python3-pip (Fedora), or $(PYTHON) -m ensurepip" >&2; \
	exit 1; }
endef

# Two steps, so that a change of settings in pyproject.toml costs a second and a change of the lock a fresh .venv.
# No ensurepip and no pip inside: this also works on a Python that the system's package manager owns.
$(VENV)/.locked: requirements.lock
	@$(REFUSE_UNFIT_PYTHON)
	@echo "setting up $(VENV) from requirements.lock (half a minute, once) ..."
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(VENV) install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(PYTHON) -m pip --python $(VENV) install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
