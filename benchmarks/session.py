"""How is it measured?  In rounds: every system has its turn, in a process of its own, in a folder that vanishes."""

from __future__ import annotations

import json
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.child import ANSWER, READY
from benchmarks.report import Bound, Figure

REPOSITORY = Path(__file__).parents[1]
TIMEOUT_S = 300
END_S = 30  # a child that was asked to end has this long
OURS = "pollux"  # how the names of our own systems begin
MORE_IS_BETTER = {"rate"}  # of all other figures less is
SLACK = 0.05  # "no slower than before", as the median of the pairs
Rounds = dict[str, list[dict[str, float]]]


def stolen_s() -> float:
    """Seconds of the processors that other machines on the same host took from us, since the start of this one."""
    with suppress(OSError, IndexError), Path("/proc/stat").open() as stat:
        return float(stat.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def python_of(root: Path) -> str:
    """The interpreter of a checkout; this one's is the running one."""
    return sys.executable if root == REPOSITORY else str(root / ".venv" / "bin" / "python")


class ChildBroke(Exception):
    """A process of the bench ended badly or not at all."""


class Child:
    """One function in a process of its own; it is always waited for, or killed by its pid, or dies with this one.

    To the system it is a child of the thread that made it, and dies with that: make it in one that stays.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Mapping[str, Any], *, timeout_s: float, root: Path = REPOSITORY
    ) -> None:
        self.name = f"{function.__module__}:{function.__qualname__}"
        self._deadline = time.monotonic() + timeout_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the child
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = subprocess.Popen(
            [python_of(root), "-m", "benchmarks.child", str(os.getpid()), self.name, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=root,
            env={key: value for key, value in os.environ.items() if not key.startswith("POLLUX_")},
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> Any:
        """What the child says once it is ready."""
        return self._expect(READY)

    def answer(self) -> Any:
        """Ask the child to end (close its stdin) and take its answer."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        answer = self._expect(ANSWER)
        self._process.wait(END_S)
        return answer

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _expect(self, mark: str) -> Any:
        while True:
            try:
                line = self._lines.get(timeout=max(self._deadline - time.monotonic(), 0))
            except queue.Empty:
                raise ChildBroke(f"{self.name} did not answer in time; it said: {self._said()}") from None
            if line is None:
                raise ChildBroke(f"{self.name} ended without an answer; it said: {self._said()}")
            if line.startswith(mark):
                return json.loads(line.removeprefix(mark))

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:].strip() or "nothing"


class Session:
    """What every bench is handed: its options, a place to measure in, and where to put what it found.

    With `before`, an earlier checkout, our systems are measured in pairs: here and there, one after the other.
    """

    def __init__(
        self, *, quick: bool, rounds: int, folder: Path | None, minutes: float = 20, before: Path | None = None
    ) -> None:
        self.quick, self.rounds, self.folder, self.minutes = quick, rounds, folder, minutes
        self.before, self.root = before, REPOSITORY
        self.bench = ""
        self.figures: list[Figure] = []
        self.bounds: list[Bound] = []
        self.settings: list[str] = []

    def publish(self, setting: str) -> None:
        """How something was set, for the report; told once."""
        line = f"{self.bench}: {setting}"
        if line not in self.settings:
            self.settings.append(line)

    def say(self, text: str) -> None:
        print(f"  {self.bench}: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the disk that is measured; gone afterwards."""
        path = Path(tempfile.mkdtemp(prefix="pollux-bench-", dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def child(self, function: Callable[..., Any], *, timeout_s: float = TIMEOUT_S, **arguments: Any) -> Iterator[Child]:
        child = Child(function, arguments, timeout_s=timeout_s, root=self.root)
        try:
            yield child
        finally:
            child.end()

    def alone(self, function: Callable[..., Any], *, timeout_s: float = TIMEOUT_S, **arguments: Any) -> Any:
        """Run a function in a process of its own; its answer."""
        with self.child(function, timeout_s=timeout_s, **arguments) as child:
            return child.answer()

    def interleave(self, systems: Mapping[str, Callable[[], dict[str, float]]], *, rounds: int | None = None) -> Rounds:
        """Every system once, then every system again, ...: what disturbs the machine disturbs them all.

        With an earlier checkout peers run once, and each of our systems in both checkouts, in alternating order.
        """
        found: Rounds = {name: [] for name in systems}
        count = self.rounds if rounds is None else rounds
        for number in range(1, count + 1):
            for name, measure in systems.items():
                is_ours = name.startswith(OURS)
                if self.before is None or (number == 1 and not is_ours):
                    found[name].append(self._round(measure, f"round {number} of {count}, {name}"))
                elif is_ours:
                    pair = {REPOSITORY: name, self.before: f"{name}, before"}
                    for root in sorted(pair, reverse=number % 2 == 0, key=lambda root: root != REPOSITORY):
                        self.root = root
                        seen = self._round(measure, f"round {number} of {count}, {pair[root]}")
                        found.setdefault(pair[root], []).append(seen)
                    self.root = REPOSITORY
        self._compare(found)
        return found

    def _round(self, measure: Callable[[], dict[str, float]], name: str) -> dict[str, float]:
        began, stolen = time.monotonic(), stolen_s()
        seen = measure()
        taken = (stolen_s() - stolen) / (time.monotonic() - began)
        shown = ", ".join(f"{what} {value:,.4g}" for what, value in seen.items())
        self.say(f"{name}: {shown} (stolen {taken:.1%} of a core)")
        return seen

    def _compare(self, found: Rounds) -> None:
        """Bounds on what the change costs: the median ratio of the pairs."""
        for name, earlier in [(name, found[f"{name}, before"]) for name in found if f"{name}, before" in found]:
            for key in earlier[0]:
                ratios = [now[key] / old[key] for now, old in zip(found[name], earlier, strict=True) if old[key]]
                if not ratios:
                    continue
                what, note = f"{name}: {key} / before", f"pairs {min(ratios):.2f} to {max(ratios):.2f} ({len(ratios)})"
                bound = self.at_least if key in MORE_IS_BETTER else self.at_most
                slack = -SLACK if key in MORE_IS_BETTER else SLACK
                bound(what, statistics.median(ratios), 1 + slack, note=note)

    def figure(self, system: str, what: str, values: list[float], unit: str) -> float:
        """Put an absolute figure into the table; answers its median."""
        self.figures.append(Figure(self.bench, system, what, values, unit))
        return statistics.median(values)

    def take(self, found: Rounds, key: str, what: str, unit: str) -> dict[str, float]:
        """The figures of all systems that have `key`; their medians."""
        return {
            name: self.figure(name, what, [each[key] for each in rounds], unit)
            for name, rounds in found.items()
            if rounds and key in rounds[0]
        }

    def at_least(self, what: str, measured: float, limit: float, unit: str = "x", *, note: str = "") -> None:
        self.bounds.append(Bound(self.bench, what, measured, limit, unit, is_floor=True, note=note))

    def at_most(self, what: str, measured: float, limit: float, unit: str = "x", *, note: str = "") -> None:
        self.bounds.append(Bound(self.bench, what, measured, limit, unit, is_floor=False, note=note))
