"""May this process go in?  A handle is of the process that opened it: a child of a fork opens its own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

from pollux.errors import InvalidInput, StoreError
from pollux.model import ALL_VERSIONS, VERSION_MAX, Answer, Job, Run
from pollux.store.contract import Claimed


def shut(name: str, pid: int, *, is_open: bool) -> StoreError:
    """Why a call on the store `name` cannot be made here; `pid`: who opened it."""
    if not is_open:
        return StoreError(f"the store {name} is not open; open it first")
    return StoreError(
        f"the store {name} was opened by process {pid} and cannot be used in its child {os.getpid()}; "
        "open another one after the fork"
    )


TOKENS_MAX = 100  # claims of one handle that can be repeated


def handle_version(number: int) -> int:
    """A version that a handle can serve."""
    if isinstance(number, bool) or not ALL_VERSIONS <= number <= VERSION_MAX:
        raise InvalidInput(
            f"{number} is no version",
            where="scheduler_version",
            cure=f"use a number from 1 to {VERSION_MAX}, or {ALL_VERSIONS} for a worker of all",
        )
    return number


def one_version(number: int, verb: str) -> int:
    """The version of the handle, for what concerns one alone."""
    if number == ALL_VERSIONS:
        raise InvalidInput(
            f"{verb} is of one version, and this handle is of all",
            where="scheduler_version",
            cure="use `of_version(n)`",
        )
    return number


def other_version(stored: int, own: int) -> str:
    """What stands against a put: the job is elsewhere."""
    return f"it is in version {stored}, not {own}; move it: pollux jobs move ID --to-version {own}"


class VersionRotation:
    """Claims from several versions, one after the other, beginning each time with another one.

    The same claim again asks those first that it may have got something from: its answer was lost, and nothing that it
    leased is to be left behind, however few seats are free by now.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._gave: dict[str, set[int]] = {}  # of the latest claims: which versions gave something, or may have

    async def claim(
        self, versions: Sequence[int], token: str, limit: int, one: Callable[[int, str, int], Awaitable[Claimed]]
    ) -> Claimed | None:
        """What `one(version, token, limit)` gives for all of them together; None if there is no version."""
        gave = self._of(token)
        owed = frozenset(gave)
        first = self._turn % len(versions) if versions else 0
        order = (*versions[first:], *versions[:first])
        claims: list[Claimed] = []
        for version in sorted(order, key=lambda each: each not in owed):
            left = limit - sum(len(claimed.runs) for claimed in claims)
            if left <= 0 and version not in owed:
                break
            gave.add(version)
            claims.append(await one(version, f"{token}/{version}", max(1, left)))
            if not claims[-1].runs:
                gave.discard(version)
        return _together(claims) if claims else None

    def _of(self, token: str) -> set[int]:
        if token not in self._gave:
            self._turn += 1
            self._gave[token] = set()
            if len(self._gave) > TOKENS_MAX:
                del self._gave[next(iter(self._gave))]
        return self._gave[token]


def _together(claims: Sequence[Claimed]) -> Claimed:
    runs: list[Run] = [run for claimed in claims for run in claimed.runs]
    jobs: dict[str, Job] = {}
    for claimed in claims:
        jobs |= claimed.jobs
    is_full = not runs and all(claimed.answer is Answer.FULL for claimed in claims)
    times = [claimed.look_again_ms for claimed in claims if claimed.look_again_ms is not None]
    return Claimed(
        Answer.FULL if is_full else Answer.OK,
        tuple(runs),
        jobs,
        claims[-1].stops_revision,
        min(times, default=None) if not runs else None,
        claims[-1].now_ms,
    )
