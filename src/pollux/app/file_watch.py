"""Watch on a file: its directory, and that of every link on the path to it.

An editor renames a new file over the old one; a release swaps a link to a folder; Kubernetes swaps `..data`.  None of
them touches the old file, so the names are watched: the file's own, and each link's.  The file is also read at
intervals, because a network drive reports no changes of other machines.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

LINKS_MAX = 40
DEBOUNCE_MS = 400  # at most so long are events collected: other files in the folder may change all the time
LOOK_MS = 10_000  # without any event
STEADY_S = 0.1  # a file that is being written is left alone until it has not changed for this long
STEADY_LOOKS_MAX = 50
SOON_S = 1.0
AGAIN_S = 5.0  # after the watching itself went wrong

Signature = tuple[int, int, int, int]


def names_on_the_way(path: str) -> dict[str, str]:
    """Every name that decides what the file holds (a link, or the file itself), and the directory it stands in."""
    names: dict[str, str] = {}
    ahead = list(Path(path).absolute().parts)
    here = Path(ahead.pop(0))
    links = 0
    while ahead:
        part = ahead.pop(0)
        if part == os.pardir:
            here = here.parent
            continue
        found = here / part
        if found.is_symlink() and links < LINKS_MAX:
            links += 1
            names[str(found)] = str(here)
            target = found.readlink()
            if target.is_absolute():
                here = Path(target.anchor)
            ahead = [*target.parts[1 if target.is_absolute() else 0 :], *ahead]
            continue
        if not ahead:
            names[str(found)] = str(here)
        here = found
    return names


def signature(path: str) -> Signature | None:
    """What changes whenever the file does; None while it is not there."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size


async def steady_bytes(path: str, read: Callable[[str], bytes | None]) -> bytes | None:
    """What `read` gets of the file once nothing has written to it for `STEADY_S`: an editor may empty it first."""
    raw = None
    for _ in range(STEADY_LOOKS_MAX):
        before = signature(path)
        raw = await asyncio.to_thread(read, path)
        await asyncio.sleep(STEADY_S)
        if signature(path) == before:
            break
    return raw


def _folders(names: dict[str, str]) -> list[str]:
    return [folder for folder in dict.fromkeys(names.values()) if Path(folder).is_dir()]


class FileWatch:
    """Calls `changed` when the file is another one, from `start` to `stop`."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        self.path, self.changed = path, changed
        self._seen = signature(path)
        self._stop = asyncio.Event()
        self._going: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._going = asyncio.get_running_loop().create_task(self._go(), name="pollux file watch")

    async def stop(self) -> None:
        self._stop.set()
        going, self._going = self._going, None
        if going is not None:
            await asyncio.wait({going}, timeout=2)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)

    async def _go(self) -> None:
        while not self._stop.is_set():
            soon = asyncio.get_running_loop().create_task(self._look_soon())
            try:
                await self._watch(names_on_the_way(self.path))
            except Exception:  # noqa: BLE001  a folder that went away, a machine without watches left: look by hand
                await self._pause(AGAIN_S)
            finally:
                soon.cancel()
            await self._look()

    async def _look_soon(self) -> None:
        """Something may have changed just before the watching began."""
        await self._pause(SOON_S)
        await self._look()

    async def _watch(self, names: dict[str, str]) -> None:
        """Until the way to the file is another one."""
        from watchfiles import Change, awatch

        def is_ours(_: Change, path: str) -> bool:
            return path in names

        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it tells of every change
        folders = _folders(names)
        async for _ in awatch(
            *folders,
            watch_filter=is_ours,
            debounce=DEBOUNCE_MS,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
        ):
            await self._look()
            if names_on_the_way(self.path) != names or _folders(names) != folders:
                return

    async def _look(self) -> None:
        """Tell, once the file is there, is another one, and is not being written; or once it stays away."""
        now = signature(self.path)
        for _ in range(STEADY_LOOKS_MAX):
            if now == self._seen or self._stop.is_set():
                return
            await self._pause(STEADY_S)
            before, now = now, signature(self.path)
            if now is not None and now == before:
                self._seen = now
                self.changed()
                return
        if now is None:  # nobody is replacing it: it is gone, and its next start would fail
            self._seen = None
            self.changed()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
