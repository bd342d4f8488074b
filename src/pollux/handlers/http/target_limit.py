"""Places of targets: how many polls go to one target at the same time.

A poll takes a place of its job's target for all of its requests.  If none is free it waits in its seat, for at most
`WAIT_S`, and only in a queue that may advance by then; in a stalled queue one poll waits at a time.  Any other is
sent back (`Postponed`): its run goes back uncharged and comes again, those of one target one after another, about as
fast as its places become free.  So waiting polls hold next to no seats, and cost no more the longer it takes.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pollux.errors import Postponed
from pollux.units import counted

WAIT_S = 0.1
AGAIN_S = (0.2, 10.0)  # delay of a run that was sent back: at least, and at most
STEP_S = 0.005  # between two of them at least
HOLD_S = 0.1  # how long a poll is assumed to keep its place, until one of the target has shown it
TARGETS_MAX = 20_000


class TargetSlots:
    """The places of one target, and the polls that wait for one."""

    __slots__ = ("active", "again_at", "hold_s", "moved_at", "queue", "used_at")

    def __init__(self) -> None:
        self.active = 0
        self.queue: deque[asyncio.Future[None]] = deque()
        self.hold_s = HOLD_S  # smoothed
        self.moved_at = 0.0  # when a place was last taken or freed
        self.again_at = 0.0  # the next run that is sent back comes no sooner
        self.used_at = float("-inf")

    @property
    def is_empty(self) -> bool:
        return not self.active and not self.queue


class TargetLimit:
    """All targets of a process: call `enter` before the first request of a poll, `leave` after its last, always."""

    def __init__(self, *, per_target: int) -> None:
        self.per_target = per_target
        self._targets: dict[str, TargetSlots] = {}

    def of(self, name: str) -> TargetSlots:
        target = self._targets.get(name)
        if target is None:
            if len(self._targets) >= TARGETS_MAX:
                self._forget()
            target = self._targets[name] = TargetSlots()
        return target

    def try_enter(self, target: TargetSlots) -> bool:
        """Take a place if there is one that no earlier poll waits for."""
        if target.active >= self.per_target or target.queue:
            return False
        target.moved_at = asyncio.get_running_loop().time()
        target.active += 1
        return True

    def leave(self, target: TargetSlots, held_s: float) -> None:
        """Give the place to the next in the queue, unless there are fewer places by now."""
        target.hold_s += (held_s - target.hold_s) / 4
        target.moved_at = target.used_at = asyncio.get_running_loop().time()
        while target.queue and target.active <= self.per_target:
            turn = target.queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        target.active -= 1

    async def enter(self, target: TargetSlots, name: str, *, timeout_s: float = WAIT_S) -> None:
        """Take a place; raise `Postponed` if none becomes free in time."""
        if self.try_enter(target):
            return
        loop = asyncio.get_running_loop()
        if target.queue and not self._is_moving(target, loop.time(), timeout_s):
            raise self._postponed(target, name)
        turn: asyncio.Future[None] = loop.create_future()
        target.queue.append(turn)
        try:
            await asyncio.wait([turn], timeout=timeout_s)
        except BaseException:
            self._leave_queue(target, turn)
            raise
        if not turn.done():
            self._leave_queue(target, turn)
            raise self._postponed(target, name)

    def _is_moving(self, target: TargetSlots, now: float, timeout_s: float) -> bool:
        """Whether the queue moved lately, and is short enough to be through in time."""
        through_s = (len(target.queue) + 1) * target.hold_s / self.per_target
        return now - target.moved_at <= timeout_s and through_s <= timeout_s

    def _leave_queue(self, target: TargetSlots, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self.leave(target, target.hold_s)  # the place came as the wait ended
        else:
            target.queue.remove(turn)

    def _postponed(self, target: TargetSlots, name: str) -> Postponed:
        now, (least, most) = asyncio.get_running_loop().time(), AGAIN_S
        at = min(max(now + least, target.again_at), now + most)
        target.again_at = at + max(STEP_S, target.hold_s / self.per_target)
        reason = f"waits for a place: {counted(target.active, 'poll')} of target {name} under way (http.per_target)"
        return Postponed(reason, after_s=at - now)

    def _forget(self) -> None:
        """Drop targets that are not in use, the longest unused first."""
        empty = sorted((target.used_at, name) for name, target in self._targets.items() if target.is_empty)
        for _, name in empty[: TARGETS_MAX // 4]:
            del self._targets[name]
