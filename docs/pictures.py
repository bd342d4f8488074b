"""How do the pictures come into the documentation?  By a script, from a real run: `make docs` draws them.

A small shop is started on a store of its own: polls that work, one that fails, one that is paused, one that takes its
time.  Then the screen of `pollux top` and the answers of other commands are saved as SVG.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pollux import Pollux, Transient, every
from pollux.cli.top.screen import Top

FOLDER = Path(__file__).parent / "pictures"
RUN_SECONDS = 8.0
COLUMNS, LINES = 118, 27
PLAN = """\
store: memory://
pool: {seats: 10}
jobs:
  - {id: prices, python: "shop:prices", interval: 10m}
  - {id: stock, python: "shop:stock", interval: 5m, spread: false}
  - {id: report, python: "shop:report", cron: "0 2 * * *", tz: Europe/Berlin}
  - {id: invoices, python: "shop:invoices", cron: "*/15 * * * *", tz: Europe/Berlin}
"""
PLAN_WORDS = ("plan", "-c", "shop.yaml", "--at", "2030-03-31T00:00:00+01:00", "--tz", "Europe/Berlin", "--limit", "4")


def draw(folder: Path = FOLDER, *, run_seconds: float = RUN_SECONDS) -> list[Path]:
    """All pictures, anew."""
    folder.mkdir(exist_ok=True)
    made = {"top.svg": asyncio.run(_top(run_seconds)), "plan.svg": _plan()}
    for name, svg in made.items():
        (folder / name).write_text(_small(svg))
    return [folder / name for name in made]


def _shop(url: str) -> Pollux:
    app = Pollux(url, seats=10, grace="200ms")

    @app.job(every("1s"), target="shop")
    async def prices() -> dict[str, int]:
        await asyncio.sleep(0.02)
        return {"apples": 3}

    @app.job(every("2s"))
    async def stock(ctx: object) -> int:
        await asyncio.sleep(0.2)
        return id(ctx) % 7

    @app.job(every("1s"), retry=1)
    async def payments() -> None:
        raise Transient("ConnectionRefusedError: pay.example.com:443")

    @app.job(every("1h"))
    async def report(ctx: object) -> None:
        for page in range(100):
            ctx.progress(page + 1, of=100)  # type: ignore[attr-defined]
            await asyncio.sleep(0.3)

    @app.job(every("30s"), group="edge", target="camera-1")
    async def camera() -> None:
        await asyncio.sleep(0.1)

    @app.job()
    async def mail() -> None: ...

    return app


async def _top(run_seconds: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)  # so that the picture names no path of ours
        try:
            app = _shop("sqlite:///shop.db")
            async with app:
                await app.pause(target="camera-1", reason="the roof is mended")
                await asyncio.sleep(run_seconds)
                await app.enqueue("camera")
                top = Top("sqlite:///shop.db", look_seconds=0.3)
                async with top.run_test(size=(COLUMNS, LINES)) as pilot:
                    for _ in range(100):
                        await asyncio.sleep(0.1)
                        if top.rows and top.looks > 2:
                            break
                    await pilot.press("down")
                    return top.export_screenshot(title="pollux top")
        finally:
            os.chdir(before)


def _plan() -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.yaml").write_text(PLAN)
        environ = {**os.environ, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
        said = subprocess.run(  # noqa: S603  our own program
            [sys.executable, "-m", "pollux", *PLAN_WORDS],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123  thrown away
    console.print(Text.from_ansi(said))
    return console.export_svg(title=f"pollux {' '.join(PLAN_WORDS[:3])}")


def _small(svg: str) -> str:
    """Without fonts from elsewhere, and without an id that changes each time."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"terminal-\d+", "terminal", svg)


if __name__ == "__main__":
    for picture in draw():
        sys.stdout.write(f"{picture.relative_to(FOLDER.parent.parent)}: drawn\n")
