"""Lazy imports: help is quick, and a command imports only what it needs."""

import json
import resource
import subprocess
import sys

import pytest

HEAVY = {
    "apsw", "asyncio", "click", "cronsim", "msgspec", "pydantic", "rich", "yaml",
    "pollux.app", "pollux.config", "pollux.model", "pollux.plan", "pollux.runtime", "pollux.schedule", "pollux.store",
}  # fmt: skip
HELP_COST_MAX = 5.0  # times a Python that does nothing
ROUNDS = 7

WATCHED = """
import json, sys
try:
    {code}
except SystemExit:
    pass
sys.stdout.write("\\n" + json.dumps(sorted(sys.modules)))
"""


def modules_after(code: str) -> set[str]:
    run = subprocess.run([sys.executable, "-c", WATCHED.format(code=code)], capture_output=True, text=True, check=True)
    return set(json.loads(run.stdout.splitlines()[-1]))


def call(*arguments: str) -> str:
    return f"from pollux.cli import main; main({list(arguments)!r})"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_imports_nothing_heavy(arguments):
    assert modules_after(call(*arguments)) & HEAVY == set()


def test_the_front_door_imports_nothing_heavy():
    assert modules_after("import pollux; pollux.__version__; pollux.__all__") & HEAVY == set()


@pytest.mark.parametrize("command", ["serve", "worker", "check", "jobs", "runs", "dead", "why", "store"])
def test_the_help_of_a_command_brings_no_engine(command):
    unused = {"apsw", "rich", "pydantic", "pollux.app", "pollux.runtime", "pollux.plan"}
    assert modules_after(call(command, "--help")) & unused == set()


STARTED = """
import asyncio, sys
from pollux import Pollux
from pollux.events import NodeStarted
from pollux.server import ServerOptions, served


async def main():
    app, there = Pollux("memory://"), set()
    app.events.listen(NodeStarted, lambda _: there.update(sys.modules))
    async with served(app, ServerOptions(port=0, is_port_given=True), stop=asyncio.Event()):
        late = sorted({name.partition(".")[0] for name in set(sys.modules) - there})
    print(*late)


asyncio.run(main())
"""


def test_nothing_big_is_imported_while_the_engine_runs_already():
    """Its loops would stand still meanwhile, for seconds on a busy machine."""
    said = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True).stdout.split()
    assert set(said) & {"fastapi", "starlette", "pydantic", "uvicorn", "httptools", "uvloop"} == set(), said


def test_only_the_live_table_draws():
    assert "rich" not in modules_after("import pollux.app, pollux.config")


def test_help_costs_little_more_than_python_itself():
    """In time of the processor, the best of several rounds: what else the machine does costs neither of them any."""
    best = {"pass": float("inf"), "help": float("inf")}
    for _ in range(ROUNDS):
        for name, arguments in (("pass", ["-c", "pass"]), ("help", ["-m", "pollux", "--help"])):
            before = processor_s()
            subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
            best[name] = min(best[name], processor_s() - before)
    assert best["help"] <= HELP_COST_MAX * best["pass"], best


def processor_s() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
