"""Regex worker: searches run in a child process, because Python's `re` cannot be interrupted.

A pattern like `(a+)+$` needs years for a few dozen characters, and nothing else in its process runs meanwhile.  So
searches run in a small child that is started at the first use, has `BUDGET_S` for each search, and is ended by its
own alarm after that; such a pattern is refused from then on, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import msgspec

from pollux.handlers.http.errors import Interrupted, NothingExtracted, SlowPattern
from pollux.handlers.http.extract import PATTERN_INPUT_MAX
from pollux.units import format_size

BUDGET_S = 0.5
PATIENCE_S = 10.0  # for a child that neither answers nor dies (the machine is that busy)
GONE_S = 5.0  # until a child whose pipe was closed has exited
SLOW_MAX = 1_000
_CHILD = Path(__file__).with_name("regex_child.py")
_HEAD = 4


class RegexWorker:
    """One child for all patterns of a process; one search at a time."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._slow: dict[str, None] = {}

    async def search(self, pattern: str, text: str, target: str) -> str:
        """Return the first group of the first match (the whole match, if the pattern has no group)."""
        async with self._turn:
            if pattern in self._slow:
                raise _slow_pattern()
            try:
                found = await self._ask(pattern, text[:PATTERN_INPUT_MAX])
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
                patience_s = 0.0 if isinstance(error, TimeoutError) else GONE_S
                if await self._end(patience_s) != -signal.SIGVTALRM:
                    raise Interrupted("the process that searches was ended, or the machine is too busy") from None
                if len(self._slow) >= SLOW_MAX:
                    self._slow.pop(next(iter(self._slow)))
                self._slow[pattern] = None
                raise _slow_pattern() from None
            except BaseException:
                await self._end()  # half an answer may be under way
                raise
        if found is None:
            raise NothingExtracted(f"{target} answered nothing that the regex matches")
        return found

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _ask(self, pattern: str, text: str) -> str | None:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_CHILD), str(BUDGET_S),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        question = msgspec.json.encode([pattern, text])
        stdin.write(len(question).to_bytes(_HEAD, "big") + question)
        async with asyncio.timeout(PATIENCE_S):
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(_HEAD), "big")
            found: str | None = msgspec.json.decode(await stdout.readexactly(size))
        return found

    async def _end(self, patience_s: float = 0.0) -> int | None:
        """End the child and return its exit status, if there was one.

        A child that is dying gets time to do so: a kill at that moment would replace its status.
        """
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        child.stdin.close()
        if patience_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    return await child.wait()
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        return await child.wait()


def _slow_pattern() -> SlowPattern:
    return SlowPattern(
        f"the regex needs more than {BUDGET_S:g} s for an answer of at most {format_size(PATTERN_INPUT_MAX)}; "
        "avoid repeats inside repeats, anchor it, or take a json path"
    )
