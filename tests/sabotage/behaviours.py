"""Behaviours of the conformance suite under mutants, on the memory store, in forked processes.

The process that asks has imported all but the store; each child imports the store with one change in it and runs the
behaviours it is given.  How a behaviour fails matters: by its own claim, by a refusal of the store or a wait that never
ends, or by a crash.  A program that crashes was noticed by luck; a crash counts for nothing here.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple, TypeVar

import pytest

from pollux.errors import PolluxError
from pollux.testing.conformance import StoreContract, builders, waits
from tests.sabotage.mutants import SOURCE, Found, broken, files, module_of

SUITE = Path(builders.__file__).parent
CLAIM, REFUSAL, CRASH = "claim", "refusal", "crash"
HANGS_S = 2.0  # of the processor: no behaviour needs a tenth of it
SEARCH_S = 1.0  # patience with a wait while searching,
LATE_S = 5.0  # and with what was found; the suite's own is for servers on a busy machine
WAITS = len(waits.PAUSES_S) + 1  # in one behaviour, one after the other
CHILD_MAX_S = 90.0
T = TypeVar("T")
SLOW_S = 0.03  # those that wait by the real clock wait side by side


def _cases(name: str) -> dict[str, dict[str, Any]]:
    """A behaviour, or as many as it has parameters: what it is called, and what it is given."""
    marks = [mark for mark in getattr(getattr(StoreContract, name), "pytestmark", ()) if mark.name == "parametrize"]
    cases: dict[str, dict[str, Any]] = {name: {}}
    for argument, values in (mark.args for mark in marks):
        cases = {f"{case}[{value!r}]": {**given, argument: value} for case, given in cases.items() for value in values}
    return cases


_GIVEN = {
    case: given for name in dir(StoreContract) if name.startswith("test_") for case, given in _cases(name).items()
}
BEHAVIOURS = tuple(sorted(_GIVEN))


class Looked(NamedTuple):
    """What the unbroken store showed: the lines each behaviour passes through, and those that take their time."""

    lines: dict[str, set[tuple[str, int]]]
    slow: frozenset[str]


class Hang(BaseException):
    pass


# in the parent


def look() -> Looked:
    """Run everything once on the unbroken store; red behaviours are an error here."""
    said = _child(None, BEHAVIOURS, frozenset(), _traced)
    red = {name: row["how"] for name, row in said.items() if row["how"]}
    if red or len(said) != len(BEHAVIOURS):
        raise RuntimeError(f"red before anything is broken: {red or set(BEHAVIOURS) - set(said)}")
    lines = {name: {(file, line) for file, line in row["lines"]} for name, row in said.items()}
    return Looked(lines, frozenset(name for name, row in said.items() if row["seconds"] > SLOW_S))


def touched_by(found: Found, looked: Looked) -> list[str]:
    """The behaviours that pass through what is changed."""
    if not found.lines:
        return list(BEHAVIOURS)
    lines = {(found.mutant.file, line) for line in found.lines}
    return [name for name in BEHAVIOURS if lines & looked.lines[name]]


def killed_by(found: Found, names: Sequence[str], slow: frozenset[str]) -> dict[str, str]:
    """Which of these behaviours go red under the mutant, and how."""
    said = _child(found, names, slow, _plain)
    return {name: row["how"] for name, row in said.items() if row["how"]}


def _child(found: Found | None, names: Iterable[str], slow: frozenset[str], how: Callable[..., None]) -> dict[str, Any]:
    """Fork, break, run; a line of JSON for each behaviour that ended."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            with os.fdopen(write, "w") as out:
                _as_child(found, names, slow, how, out)
            code = 0
        except BaseException:  # noqa: BLE001  a child that cannot even import its store says nothing
            if found is None:
                traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    try:
        said = _listen(read)
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {row["name"]: row for row in map(json.loads, said.decode().split("\n")[:-1])}


def _listen(read: int) -> bytes:
    said = b""
    until = time.monotonic() + CHILD_MAX_S
    while (left := until - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            data = os.read(read, 1 << 16)
            if not data:
                break
            said += data
    return said


# in the child


def _as_child(
    found: Found | None, names: Iterable[str], slow: frozenset[str], how: Callable[..., None], out: Any
) -> None:
    os.close(1), os.close(2)
    os.open(os.devnull, os.O_WRONLY), os.dup(1)
    _forget_the_store()
    if found is not None:
        program = compile(broken(found.mutant.file, found), str(SOURCE / found.mutant.file), "exec")
        sys.meta_path.insert(0, _Instead(module_of(found.mutant.file), program))
    store_class = importlib.import_module("pollux.store.memory").MemoryStore
    how(store_class, list(names), slow, out)


def _forget_the_store() -> None:
    for file in files():
        sys.modules.pop(module_of(file), None)


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module another program."""

    def __init__(self, module: str, program: CodeType) -> None:
        self._module, self._program = module, program

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=name.endswith("memory"))

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None and module.__spec__.submodule_search_locations is not None:
            module.__path__ = [str(SOURCE / "store" / "memory")]
        exec(self._program, module.__dict__)


async def _behave(store_class: Any, name: str, patience_s: float) -> str:
    """How it went red; empty if it did not."""
    test = getattr(StoreContract(), name.partition("[")[0])
    given = {**_GIVEN[name], **({"t0": builders.T0} if "t0" in test.__annotations__ else {})}
    limit = asyncio.timeout(patience_s)
    try:
        async with limit:
            store = store_class()
            await store.open()
            try:
                await test(store, **given)
            finally:
                await store.close()
    except (Exception, pytest.fail.Exception, Hang) as error:  # noqa: BLE001  whatever a broken store does
        return CRASH if limit.expired() else told(error)
    return ""


def told(error: BaseException) -> str:
    """By what did it go red?  By what the suite itself did last, or by what the store did."""
    places = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    last = next((place for place in reversed(places) if place.is_relative_to(SOURCE)), None)
    if isinstance(error, Hang) or last is None:
        return CRASH
    if last.is_relative_to(SUITE) and last.name != "builders.py":
        return CLAIM
    return REFUSAL if isinstance(error, AssertionError | PolluxError | TimeoutError) else CRASH


def _plain(store_class: Any, names: list[str], slow: frozenset[str], out: Any) -> None:
    signal.signal(signal.SIGVTALRM, _hang)
    together = [name for name in names if name in slow]
    waits.SOON_S = SEARCH_S if together else LATE_S
    for name in names:
        if name not in slow:
            _say(out, name=name, how=_alone(store_class, name, _patience_s(SEARCH_S if together else LATE_S)))
    if together:
        signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
        _finish(_side_by_side(store_class, together, out))


def _patience_s(soon_s: float) -> float:
    """With a behaviour all of whose waits never end."""
    return WAITS * soon_s + sum(waits.PAUSES_S)


def _alone(store_class: Any, name: str, patience_s: float) -> str:
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
    try:
        return _finish(_behave(store_class, name, patience_s))
    except Hang:
        return CRASH
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


async def _side_by_side(store_class: Any, names: list[str], out: Any) -> None:
    async def one(name: str) -> None:
        _say(out, name=name, how=await _behave(store_class, name, _patience_s(SEARCH_S)))

    await asyncio.gather(*map(one, names))


def _finish(program: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but threads that still wait in a broken store are left behind."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(program)
    finally:
        loop.close()


def _traced(store_class: Any, names: list[str], _: frozenset[str], out: Any) -> None:
    """One after the other, with every line of the store that is passed."""
    places = {str(SOURCE / file): file for file in files()}
    for name in names:
        lines: set[tuple[str, int]] = set()

        def note(frame: FrameType, event: str, _: Any, lines: set[tuple[str, int]] = lines) -> Any:
            file = places.get(frame.f_code.co_filename)
            if file is None:
                return None
            if event == "line":
                lines.add((file, frame.f_lineno))
            return note

        began = time.monotonic()
        sys.settrace(note)
        try:
            how = _finish(_behave(store_class, name, _patience_s(LATE_S)))
        finally:
            sys.settrace(None)
        _say(out, name=name, how=how, seconds=time.monotonic() - began, lines=sorted(lines))


def _say(out: Any, **row: Any) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def _hang(*_: Any) -> None:
    raise Hang
