"""Output for people: on a terminal it folds instead of hiding, and asks before it destroys."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from pollux import Pollux
from pollux.cli.live_table import footer, freshness_bar, header, jobs_table
from pollux.cli.output import ago, clean, full, span
from pollux.model import Cron, Job
from pollux.store.contract import Renewal
from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, Terminal

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (999, "999ms"), (1_000, "1s"), (61_000, "1m1s"), (120_000, "2m"), (3_600_000, "1h"),
     (3_660_000, "1h1m"), (90_000_000, "1d1h"), (86_400_000 * 400, "400d")],
)  # fmt: skip
def test_a_span_has_two_units_at_most(ms, text):
    assert span(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(None, ""), (NOW, "now"), (NOW - 999, "now"), (NOW - 5_000, "5s ago"), (NOW + 5_000, "in 5s")]
)
def test_a_moment_is_told_from_now(ms, text):
    assert ago(ms, now=NOW) == text


def test_what_would_steer_a_terminal_is_shown_instead():
    assert clean("a\x1b[31mb\nc\u202ed é") == "a\\x1b[31mb\\nc\\u202ed é"


def test_json_has_every_field_also_those_with_defaults():
    plain = full(Job(id="a", handler="h", schedule=Cron("@daily")))
    assert set(plain) == set(Job.__struct_fields__)
    assert plain["schedule"] == {"type": "cron", "line": "@daily", "tz": "UTC"}
    assert (plain["overlap"], plain["tags"], plain["memory"]["failures"]) == ("skip", [], 0)


@pytest.mark.parametrize(
    ("score", "age_ms", "text"),
    [(1.0, 5_000, "██████ 5s"), (0.5, 90_000, "███··· 1m30s"), (0.0, 9_000, "······ 9s"), (0.0, None, "······ never")],
)
def test_freshness_is_a_bar(score, age_ms, text):
    assert freshness_bar(score, age_ms).plain == text


async def drawn(app: Pollux, width: int, *, cut: bool = False) -> str:
    """The live table of an app, as wide as told."""
    overview = await app.operations.status.overview()
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: ASYNC230, PTH123, SIM115
    try:
        for part in (
            header(overview, store="memory://", lateness=""),
            jobs_table(overview, cut=cut),
            footer(overview, "memory://"),
        ):
            console.print(part)
        return console.export_text()
    finally:
        console.file.close()


async def test_the_live_table_shows_jobs_and_what_holds_them():
    app = Pollux("memory://")
    await app.open()
    try:
        assert "there are no jobs yet" in await drawn(app, 100)
        await app.put_jobs([Job(id="home/a", handler="h"), Job(id="b", handler="h", enabled=False)])
        await app.pause("home/a", reason="moving house")
        text = await drawn(app, 140)
    finally:
        await app.close()
    assert "no leader" in text
    assert "jobs 2" in text
    [row] = [line for line in text.splitlines() if "home/a" in line]
    assert "when asked" in row
    assert "moving house" in row
    assert "can be seen from here only" in text


async def test_the_live_table_shows_the_progress_of_handlers_in_other_processes():
    app = Pollux("memory://")
    await app.open()
    try:
        await app.put_jobs([Job(id="poll/a", handler="h")])
        await app.enqueue("poll/a")
        store = app._store
        [run] = (await store.claim(node="elsewhere", token="t", limit=1, lease_ms=9_000)).runs
        await store.renew([Renewal(run.id, run.token, "40% page 3")], lease_ms=9_000)
        text = await drawn(app, 140)
    finally:
        await app.close()
    [row] = [line for line in text.splitlines() if "poll/a" in line]
    assert "40% page 3" in row


async def test_a_job_is_one_line_of_a_live_table_however_narrow(monkeypatch):
    """What is higher than the screen loses its end: the log, and how to look from a second terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    app = Pollux("memory://")
    await app.open()
    try:
        await app.put_jobs([Job(id="home/" + "a" * 90, handler="h", schedule=Cron("0 6 * * *", "Europe/Berlin"))])
        await app.pause("home/" + "a" * 90, reason="moving house, and that takes its time as everybody knows")
        lines = (await drawn(app, 80, cut=True)).splitlines()
        folded = (await drawn(app, 80)).splitlines()
    finally:
        await app.close()
    assert len([line for line in lines if "home/" in line or "aaa" in line]) == 1
    assert len(lines) < len(folded)


@pytest.fixture
async def pollux(tmp_path) -> Terminal:
    """A store with one job and one long id, in a folder."""
    app = Pollux(f"sqlite:///{tmp_path}/p.db")
    await app.open()
    await app.put_jobs([Job(id="a" * 150, handler="h")])
    await app.close()
    return Terminal(tmp_path)


def at_a_terminal(
    pollux: Terminal, *arguments: str, types: str = "", columns: str = "60", interrupt_at: str = ""
) -> tuple[int, str]:
    """Run a command with a terminal for all its streams; SIGINT comes when it has printed `interrupt_at`.

    And again each second: one that comes just before the read begins is seen only after the line, as at any prompt.
    """
    ours, theirs = pty.openpty()
    seen, deadline, interrupt_again = b"", time.monotonic() + PATIENCE_SECONDS, 0.0
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "pollux", *arguments],
            cwd=pollux.folder,
            env=pollux.environ({"COLUMNS": columns, "TERM": "xterm"}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.write(ours, types.encode())
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65_536)
            if interrupt_at and interrupt_at.encode() in seen and time.monotonic() > interrupt_again:
                process.send_signal(signal.SIGINT)
                interrupt_again = time.monotonic() + 1.0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
    return process.returncode, seen.decode()


def test_a_narrow_terminal_hides_nothing(pollux):
    code, seen = at_a_terminal(pollux, "jobs", "--store", "sqlite:///p.db")
    assert code == 0
    assert seen.count("a") >= 150
    assert "…" not in seen


def test_a_pipe_gets_plain_columns(pollux):
    lines = SameProcess(pollux.folder).ok("jobs", "--store", "sqlite:///p.db").out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("a" * 150 + "  when asked")
