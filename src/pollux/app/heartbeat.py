"""Who tells somebody outside that all is well?  The leader calls a URL now and then, as long as health is good.

What watches the URL raises the alarm when the calls stop: when every node is dead, nobody leads, the network is cut, or
health is bad.  None of that can be told by a node that is not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pollux.clock import Clock
from pollux.errors import PolluxError
from pollux.events import Events
from pollux.runtime.loop import Loop, Rest

TIMEOUT_SECONDS = 10.0


class HeartbeatFailed(PolluxError):
    """The call did not get through; its URL is a secret and in no message."""


class Heartbeat(Loop):
    """Call `url` every so often, from the leader, while `is_well`."""

    def __init__(
        self,
        url: str,
        every_ms: int,
        *,
        leads: Callable[[], bool],
        is_well: Callable[[], Awaitable[bool]],
        clock: Clock,
        events: Events,
    ) -> None:
        least = min(5_000, every_ms)
        super().__init__("heartbeat", clock=clock, events=events, rest_max_ms=every_ms, backoff_ms=(least, every_ms))
        self.url, self.every_ms, self.leads, self.is_well = url, every_ms, leads, is_well
        self.calls = 0  # that got through

    async def turn(self) -> Rest:
        if self.leads() and await self.is_well():
            await call(self.url)
            self.calls += 1
        return Rest(self.every_ms)


async def call(url: str) -> None:
    """GET it; anything but a success within the time is `HeartbeatFailed`."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            status = response.status
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        raise HeartbeatFailed(f"the heartbeat URL cannot be called: {type(error).__name__}") from None
    if not 200 <= status < 300:
        raise HeartbeatFailed(f"the heartbeat URL answered {status}")
