# The whole workshop: `make help`.  Needs Python 3.11 or newer with pip; everything else goes into .venv.
# Pass more arguments to a program with ARGS, as in `make test ARGS="-k claim"`.

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

# What `make run` starts.
DEMO := serve -c examples/demo.yaml --watch

# Two test processes more than a small machine has cores, since many tests wait for real processes most of their time, and
# one more where few do; tests that share a thing name a group and stay in one process.
PYTEST := $(BIN)/python -m pytest
SPREAD := --dist loadgroup -n 4
QUICK := tests/test_architecture.py tests/unit tests/runtime tests/conformance/test_memory.py tests/conformance/test_sqlite.py

# Made by make, and therefore removed by `make clean`; also every __pycache__ below these folders.
DEMO_FILES := $(addprefix pollux-demo.db,-wal -shm .lock .bell .ballast .token .sock .versions)
MADE := $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis build dist pollux-demo.db $(DEMO_FILES)
CODE := src tests benchmarks docs examples

# The locks are complete and hold hashes, so pip installs them without resolving: a package that is released tomorrow
# changes nothing.  `pip check` then names whatever is missing.  The machine's pip, whichever it is, installs the locked
# one, which does the rest: no ensurepip is needed, and old pips take twice as long.
INSTALL := install -qq --disable-pip-version-check --no-deps --no-compile
PIP := $(BIN)/python -m pip
CHECK := report=$$($(PIP) check) || { \
	echo "$$report" >&2; echo "make: a lock misses that package; cure: make lock" >&2; exit 1; }

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --no-annotate --no-header --upgrade
FOR_RUN := pyproject.toml --extra tui --group build
FOR_TEST := pyproject.toml --all-extras --group build --group dev -c requirements/run.lock
FOR_IMAGE := pyproject.toml $(addprefix --extra ,redis postgres otel fast) -c requirements/run.lock -c requirements/test.lock
ALREADY := sed -n 's/^\([A-Za-z0-9._-]*\)==.*/--no-emit-package \1/p'

.DEFAULT_GOAL := help
.PHONY: help run test test-quick check bench sabotage worlds docs lock clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## start the demo: a scheduler with a few jobs, watched in the terminal
	@$(BIN)/pollux $(DEMO) $(ARGS)

test: $(VENV)/.test ## run every test; a skipped test fails the run
	@# Where Python may keep nothing, hundreds of processes would compile everything anew.
	@$(BIN)/python -m compileall -q -j 2 -x '/(test_[^/]*|conftest)\.py$$' src tests
	@$(BIN)/python -m tests.beforehand
	@POLLUX_NO_SKIP=1 $(PYTEST) $(SPREAD) $(ARGS)

test-quick: $(VENV)/.test ## unit, runtime, and the conformance of memory and SQLite, for work in between
	@POLLUX_NO_SKIP=1 $(PYTEST) -q $(SPREAD) -n 3 $(QUICK) $(ARGS)

check: $(VENV)/.test ## format, lint, types, architecture and unit tests: under a minute
	@$(BIN)/ruff format --check --quiet . || { echo "make: not formatted; cure: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@POLLUX_NO_SKIP=1 $(PYTEST) -q tests/test_architecture.py tests/unit

bench: $(VENV)/.bench ## measure, next to peers in the same run
	@$(BIN)/python -m benchmarks $(ARGS)

sabotage: $(VENV)/.test ## break each promise on purpose and see the tests go red
	@$(BIN)/python -m tests.sabotage $(ARGS)

worlds: $(VENV)/.test ## run the whole engine in virtual time under seeded faults
	@$(BIN)/python -m pollux.testing.world --corpus tests/simulation/corpus.json $(ARGS)

docs: $(VENV)/.test ## write the generated parts of the documentation anew
	@$(BIN)/python -m docs.build $(ARGS)

# Each lock holds what the ones before it do not; that of the image, what `test` adds to `run` for its extras alone.
lock: ## resolve the dependencies anew into requirements/*.lock (needs uv)
	@command -v $(UV) >/dev/null || { echo "make: uv is not installed; cure: $(PYTHON) -m pip install uv" >&2; exit 1; }
	@echo "resolving dependencies into requirements/*.lock ..."
	@echo 'pip>=26.0' | $(COMPILE) - -o requirements/pip.lock
	@$(COMPILE) $(FOR_RUN) -o requirements/run.lock
	@$(COMPILE) $(FOR_TEST) $$($(ALREADY) requirements/run.lock) -o requirements/test.lock
	@$(COMPILE) $(FOR_TEST) -c requirements/test.lock --group bench \
		$$($(ALREADY) requirements/run.lock requirements/test.lock) -o requirements/bench.lock
	@$(COMPILE) $(FOR_IMAGE) $$($(ALREADY) requirements/run.lock) -o requirements/image.lock

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

# What running needs; a change of its lock makes a fresh .venv, a change of pyproject.toml costs a second.
$(VENV)/.locked: requirements/pip.lock requirements/run.lock
	@$(REFUSE_UNFIT_PYTHON)
	@echo "setting up $(VENV) from requirements/run.lock (a quarter of a minute, once) ..."
	@$(PYTHON) -m venv --clear --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(VENV) $(INSTALL) --require-hashes -r requirements/pip.lock
	@$(PIP) $(INSTALL) --require-hashes -r requirements/run.lock
	@touch $@

$(VENV)/.run: $(VENV)/.locked pyproject.toml
	@$(PIP) $(INSTALL) --no-build-isolation -e .
	@$(CHECK)
	@touch $@

# What tests and benchmarks add.  Tests start hundreds of processes: everything is compiled once, beforehand.
$(VENV)/.test: $(VENV)/.run requirements/test.lock
	@echo "adding what tests need (half a minute, once) ..."
	@$(PIP) $(INSTALL) --require-hashes -r requirements/test.lock
	@$(CHECK)
	@$(BIN)/python -m compileall -q -j 2 $(VENV)/lib
	@touch $@

$(VENV)/.bench: $(VENV)/.test requirements/bench.lock
	@echo "adding the peers that benchmarks measure against ..."
	@$(PIP) $(INSTALL) --require-hashes -r requirements/bench.lock
	@$(CHECK)
	@touch $@
