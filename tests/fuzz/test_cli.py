"""Fuzzed arguments of `pollux`: an answer or a clear line, one of the documented exit codes, never a traceback.

Most cases use a memory store in place of the file that is named; some hundred open a real one.
"""

import asyncio
import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import click
import pytest

from pollux.app import pollux as home
from pollux.cli import command_table
from pollux.cli.runner import program, run_command
from pollux.model import Cause, Dead, Job, run_of
from pollux.secrets import HIDDEN
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.urls import open_store
from tests.fuzz.draws import SCRAPS, Draws, cases

CODES = {command_table.OK, command_table.FAILED, command_table.USAGE, command_table.UNAVAILABLE}
CASE_SECONDS = 60
ENDLESS = {"--follow", "-f", "--wait", "--watch"}  # they wait for something that does not come here
WORDS = (
    *(
        "home",
        "r1",
        "home@1790000000000",
        "nobody",
        "p.yaml",
        "bad.yaml",
        "no.yaml",
        "sqlite:///p.db",
        "memory://",
        "x://",
    ),
    *(
        "1",
        "0",
        "-1",
        "10s",
        "1h",
        "2030-01-31T09:00:00Z",
        "{}",
        '{"a": 1}',
        "a=b",
        "=",
        "high",
        "json",
        "text",
        "debug",
    ),
    *(
        "bash",
        "UTC",
        "Europe/Berlin",
        "done",
        "dead",
        "a:b",
        "work:app",
        "--",
        "-",
        "db",
        "edge",
        "--json",
        "--help",
        "-h",
    ),
)
THINGS = ("home", "r1", "home", "r2", "nobody")
CONFIG = 'store: sqlite:///p.db\njobs: [{id: home, python: "platform:node", interval: 1h}]\n'
SLOW = {"simulate", "doctor", "store"}  # a few of these are enough


def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command, as the program itself knows them."""
    found: dict[tuple[str, ...], click.Command] = {}

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        found[path] = command
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                below = command.get_command(ctx, name)
                assert below is not None, name
                walk(below, (*path, name))

    walk(program, ())
    return found


COMMANDS = commands()
PATHS = tuple(path for path in COMMANDS if path and path[0] not in SLOW)
STORE_PATHS = tuple(path for path in PATHS if any("--store" in param.opts for param in COMMANDS[path].params))
SLOW_PATHS = tuple(path for path in COMMANDS if path and path[0] in SLOW)


class OneStore(MemoryStore):
    """Outlives whoever opens it, and is not empty."""

    async def open(self) -> None:
        await super().open()
        await fill(self)

    async def close(self) -> None:
        """It stays."""

    def twin(self):
        return self


async def fill(store) -> None:
    job = Job(id="home", handler="platform:node", group="edge", target="db", params={"password": "x"})
    await store.put_jobs([JobPut(job)])
    await store.enqueue([run_of(job, 1, Cause.ENQUEUED, {"a": 1}, id=run_id) for run_id in ("r1", "r2")])
    claimed = await store.claim(node="n", token="t", limit=1, lease_ms=60_000)
    await store.settle([Settlement(run.id, run.token, Dead("it is \x1b[31m dead")) for run in claimed.runs])


async def fill_file(path: str) -> None:
    store = open_store(path)
    await store.open()
    await fill(store)
    await store.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Nothing that is typed here runs for ever, and all of it happens in one folder."""
    path = tmp_path_factory.mktemp("typed")
    for name in ("p.yaml", "pollux.yaml"):
        (path / name).write_text(CONFIG)
    (path / "bad.yaml").write_text("jobs: [{id: home, intervall: 5}]\npool: 7\n")
    (path / "db").write_bytes(b"no database")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")}
    with (
        contextlib.chdir(path),
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch("pollux.app.run_to_end", side_effect=lambda life: life.close()),
        mock.patch("pollux.log_format.write_lines"),
        mock.patch("sys.path", [*sys.path]),
    ):
        asyncio.run(fill_file("sqlite:///real.db"))
        yield path
    HIDDEN.clear()  # a word that was given as a token would be hidden in all that this process says later


def typed(draws: Draws, paths) -> list[str]:
    """A command with what it takes, more or less."""
    path = draws.one(paths)
    command = COMMANDS[path]
    words = list(path)
    arguments = [param for param in command.params if isinstance(param, click.Argument)]
    words += [value_of(draws, param) for param in arguments if draws.number(8) < 7]
    options = [param for param in command.params if isinstance(param, click.Option)]
    for _ in range(draws.number(4) if options else 0):
        words += option_of(draws, draws.one(options))
    if draws.number(3) == 2:
        junk = (draws.one(WORDS), draws.one(SCRAPS), draws.mutated(draws.one(words or WORDS)))
        words.insert(len(words) - draws.number(len(words) + 1), draws.one(junk))
    return [word.replace("\0", "?") for word in words if word not in ENDLESS]  # no argument can hold a NUL


def option_of(draws: Draws, option: click.Option) -> list[str]:
    name = draws.one([*option.opts, *option.secondary_opts])
    return [name] if option.is_flag or draws.number(8) == 7 else [name, value_of(draws, option)]


def value_of(draws: Draws, param: click.Parameter) -> str:
    match draws.number(8):
        case 7:
            return draws.one(SCRAPS)
        case 6:
            return draws.mutated(draws.one(WORDS))
        case 5 | 4:
            return draws.one(WORDS)
    if isinstance(param.type, click.Choice):
        return str(draws.one(list(param.type.choices)))
    if isinstance(param.type, click.IntRange):
        return str(draws.number(20))
    if param.name in {"store", "config", "path"}:
        return "sqlite:///p.db" if param.name == "store" else "p.yaml"
    return draws.one(THINGS) if isinstance(param, click.Argument) else draws.one(WORDS)


def ask(words: list[str]) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True) for _ in range(2))
    stdin = io.TextIOWrapper(io.BytesIO(b""), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch("sys.stdin", stdin):
        signal.alarm(CASE_SECONDS)
        try:
            code = run_command(words)
        finally:
            signal.alarm(0)
    said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert code in CODES, (words, code, complained)
    assert "Traceback" not in said + complained, (words, complained)
    assert "this should not happen" not in complained, (words, complained)
    assert code != command_table.USAGE or complained.strip() or said.strip(), (words, "no word about what is wrong")
    assert "\x1b" not in complained, (words, complained)


def test_every_command_of_the_menu_is_typed():
    assert {path[0] for path in (*PATHS, *SLOW_PATHS)} == set(command_table.ENTRIES)


@cases(9_000, size=48, at_once=10)
def test_whatever_is_typed_ends_with_an_answer_or_a_clear_line(draws, folder):
    store = OneStore()

    def opened(*_, **__):
        return store

    Path("p.db").touch()  # it must seem to be there
    with mock.patch.object(home, "open_store", opened):
        ask(typed(draws, PATHS))


@cases(800, size=48)
def test_whatever_is_typed_is_answered_by_a_real_store_too(draws, folder):
    ask([*typed(draws, STORE_PATHS), "--store", "sqlite:///real.db"])


@cases(200, size=48)
def test_whatever_is_typed_after_a_slow_command_ends_as_well(draws, folder):
    ask(typed(draws, SLOW_PATHS))
