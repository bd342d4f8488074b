"""A real browser without a window: Debian's Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from tests import guard
from tests.servers.debian import CHROMIUM, find_program

PATIENCE_S = 120.0  # with a browser that hangs, not with one that is slow
LOOK_S = 0.05
OPTIONS = (
    *(
        "--headless",
        "--window-size=320,240",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--no-zygote",
        "--disable-dev-shm-usage",
    ),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-breakpad", "--disable-crash-reporter", "--remote-debugging-port=0", "about:blank"),
)


class Page:
    """One tab; `complaints` is what its console has of errors."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line, self._ids = line, itertools.count(1)
        self.complaints: list[str] = []
        self.loads = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self._line.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE_S):
            while True:
                said = await self._line.receive_json()
                if said.get("id") == number:
                    assert "error" not in said, (method, said["error"])
                    answer: dict[str, Any] = said["result"]
                    return answer
                self._hear(said)

    async def go(self, url: str) -> None:
        """Open that address, as if typed; the page is loaded when this returns."""
        loads = self.loads
        said = await self.call("Page.navigate", url=url)
        assert not said.get("errorText"), said
        await self.loaded(loads)

    async def reload(self) -> None:
        loads = self.loads
        await self.call("Page.reload")
        await self.loaded(loads)

    async def loaded(self, before: int) -> None:
        """Another load event has come since `before` of them."""
        async with asyncio.timeout(PATIENCE_S):
            while self.loads == before:
                self._hear(await self._line.receive_json())

    async def run(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        said = await self.call("Runtime.evaluate", expression=script, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, script: str, what: str) -> Any:
        """The value of the expression, once it is one."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := await self.run(script)):
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s; it says {self.complaints}"
            await asyncio.sleep(LOOK_S)
        return value

    async def has(self, selector: str) -> bool:
        return bool(await self.run(f"!!document.querySelector({json.dumps(selector)})"))

    async def until_there(self, selector: str) -> None:
        await self.until(f"!!document.querySelector({json.dumps(selector)})", f"{selector} is there")

    async def click(self, selector: str) -> None:
        """Once it is there."""
        await self.until_there(selector)
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def type(self, selector: str, text: str) -> None:
        await self.until_there(selector)
        await self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    def _hear(self, said: dict[str, Any]) -> None:
        match said.get("method"):
            case "Page.loadEventFired":
                self.loads += 1
            case "Log.entryAdded" if said["params"]["entry"]["level"] == "error":
                self.complaints.append(said["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(said["params"]["exceptionDetails"]))


class Browser:
    """One browser of a profile of its own; every page is a new tab."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self._address, self._session = address, session

    @contextlib.asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        async with self._session.put(f"{self._address}/json/new?about:blank") as answer:
            tab = await answer.json()
        async with self._session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as line:
            page = Page(line)
            for part in ("Page", "Runtime", "Log"):
                await page.call(f"{part}.enable")
            yield page
        async with self._session.get(f"{self._address}/json/close/{tab['id']}"):
            pass


@contextlib.asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """Started, and ended with all its processes."""
    program = await asyncio.to_thread(find_program, CHROMIUM)
    profile = guard.new_folder("chromium")
    process = await asyncio.create_subprocess_exec(
        *(program.binary, f"--user-data-dir={profile}", *OPTIONS),
        env=program.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    guard.watch(process.pid)
    try:
        told, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
        while not (told.exists() and told.read_text().count("\n")):
            assert process.returncode is None, f"Chromium ended ({process.returncode})"
            assert time.monotonic() < deadline, "Chromium does not listen"
            await asyncio.sleep(LOOK_S)
        async with aiohttp.ClientSession() as session:
            yield Browser(f"http://127.0.0.1:{told.read_text().splitlines()[0]}", session)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group that it began, it and its children
        await process.wait()
        shutil.rmtree(profile, ignore_errors=True)
