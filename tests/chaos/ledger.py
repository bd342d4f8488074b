"""Ledger of the chaos tests: a file of lines, written by handlers, clients and the test itself.

It is independent of the product.  Every line is one `write(2)` on a file opened with O_APPEND, so they are in the
order in which they were written.  A kill may cut a write where a page of the file ends: that line then lacks the mark
at its end, counts as not written, and leaves the next one alone.

    ask  <run>                                    the client is about to enqueue it
    enq  <run> ok|unknown|err                     the client's answer
    run  <run> <fence> <attempt> <pid> <due> <ns> a handler started
    end  ...                                      ... and reached its end
    fail ...                                      ... and raised on purpose
    cut  ...                                      ... and was asked to stop before its end
    lost <run> <pid>                              the node reported that it lost the lease
    up   <pid>                                    a node runs
    term <number> <pid> <ns>                      it became the leader
    fenced <number> <pid>                         a plan of that term was refused: it came too late
    kill <pid> <in flight> <ns>                   the test killed it while it held so many leases
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

LINE_BYTES_MAX = 4_000  # a longer write may be mixed with others
END = ";"


class Ledger:
    """Append lines; one handle per process, safe from any thread."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, *words: object) -> None:
        line = f"\n{' '.join(map(str, words))}{END}\n".encode()
        assert len(line) <= LINE_BYTES_MAX, f"a ledger line of {len(line)} bytes could be torn"
        assert os.write(self._fd, line) == len(line)

    def handler(self, kind: str, run_id: str, fence: int, attempt: int, due_ms: int) -> None:
        """`run`, `end`, `fail` or `cut` of one delivery."""
        self.write(kind, run_id, fence, attempt, os.getpid(), due_ms, time.monotonic_ns())

    def close(self) -> None:
        os.close(self._fd)


class Step(NamedTuple):
    """A handler started, ended, failed or was cut."""

    run_id: str
    fence: int
    attempt: int
    pid: int
    due_ms: int
    at_ns: int


class Kill(NamedTuple):
    pid: int
    in_flight: int
    at_ns: int


class Won(NamedTuple):
    term: int
    pid: int
    at_ns: int


class Told:
    """A ledger read back."""

    def __init__(self, text: str) -> None:
        self.asked: set[str] = set()
        self.answers: dict[str, set[str]] = defaultdict(set)
        self.runs: list[Step] = []
        self.ends: list[Step] = []
        self.fails: list[Step] = []
        self.cuts: list[Step] = []
        self.lost: list[tuple[str, int]] = []
        self.up: set[int] = set()
        self.terms: list[Won] = []
        self.fenced: list[tuple[int, int]] = []
        self.kills: list[Kill] = []
        for line in text.splitlines():
            self._read(line.split(" "))

    def _read(self, words: list[str]) -> None:
        match words:
            case ["ask", run_id]:
                self.asked.add(run_id)
            case ["enq", run_id, answer]:
                self.answers[run_id].add(answer)
            case ["run" | "end" | "fail" | "cut" as kind, run_id, *numbers]:
                steps = {"run": self.runs, "end": self.ends, "fail": self.fails, "cut": self.cuts}[kind]
                steps.append(Step(run_id, *map(int, numbers)))
            case ["lost", run_id, pid]:
                self.lost.append((run_id, int(pid)))
            case ["up", pid]:
                self.up.add(int(pid))
            case ["term", term, pid, at_ns]:
                self.terms.append(Won(int(term), int(pid), int(at_ns)))
            case ["fenced", term, pid]:
                self.fenced.append((int(term), int(pid)))
            case ["kill", pid, in_flight, at_ns]:
                self.kills.append(Kill(int(pid), int(in_flight), int(at_ns)))
            case _:
                raise ValueError(f"not a line of a ledger: {' '.join(words)!r}")


def read(path: Path) -> Told:
    """What the ledger tells so far, as far as it was written to the end."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Told("\n".join(line.removesuffix(END) for line in lines if line.endswith(END)))
