"""How many requests go to one target at the same time?  A few, each target in a lane of its own.

Who finds its lane full waits in line, in a seat of the pool.  A line that moves is worth waiting in; one where nobody
got through for `STILL_S` is not, and whoever comes then is sent away at once.  So a target that never answers holds its
few requests and what came within that time, not the whole pool.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pollux.handlers.http.faults import TargetBusy
from pollux.units import counted

STILL_S = 5.0
KEEP_S = 15.0  # a connection is worth keeping if the lane is used again within this time
LANES_MAX = 20_000

Key = tuple[str, int]


class Lane:
    __slots__ = ("active", "line", "moved_at", "used_at")

    def __init__(self) -> None:
        self.active = 0
        self.line: deque[asyncio.Future[None]] = deque()
        self.moved_at = 0.0  # when somebody got through, or the first came in
        self.used_at = float("-inf")

    @property
    def is_lively(self) -> bool:
        """Is it used often enough for its connections to be kept?"""
        return asyncio.get_running_loop().time() - self.used_at < KEEP_S

    @property
    def is_empty(self) -> bool:
        return not self.active and not self.line


class Lanes:
    """Lanes by host and port: `try_enter`, else `wait`, before the request; `leave` after it, always."""

    def __init__(self, *, per_target: int) -> None:
        self.per_target = per_target
        self._lanes: dict[Key, Lane] = {}

    def of(self, key: Key) -> Lane:
        lane = self._lanes.get(key)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._forget()
            lane = self._lanes[key] = Lane()
        return lane

    def try_enter(self, lane: Lane) -> bool:
        """Take a place if there is one."""
        if lane.active >= self.per_target or lane.line:
            return False
        if not lane.active:
            lane.moved_at = asyncio.get_running_loop().time()
        lane.active += 1
        return True

    def leave(self, lane: Lane) -> None:
        lane.moved_at = lane.used_at = asyncio.get_running_loop().time()
        while lane.line:
            turn = lane.line.popleft()
            if not turn.done():
                turn.set_result(None)  # the place is theirs
                return
        lane.active -= 1

    async def wait(self, lane: Lane, target: str, *, patience_s: float) -> None:
        """Take a place when it is our turn; `TargetBusy` if the line does not move, or not soon enough."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        lane.line.append(turn)
        end_at = loop.time() + patience_s
        try:
            while not turn.done():
                rest = min(lane.moved_at + STILL_S, end_at) - loop.time()
                if rest <= 0:
                    many = counted(lane.active, "request")
                    raise TargetBusy(f"{many} to {target} under way, and our turn did not come")
                await asyncio.wait([turn], timeout=rest)
        except BaseException:
            if turn.done():
                self.leave(lane)  # it came as we gave up
            else:
                lane.line.remove(turn)
            raise

    def _forget(self) -> None:
        """Lanes that nobody uses, the longest unused first."""
        empty = sorted((lane.used_at, key) for key, lane in self._lanes.items() if lane.is_empty)
        for _, key in empty[: LANES_MAX // 4]:
            del self._lanes[key]
