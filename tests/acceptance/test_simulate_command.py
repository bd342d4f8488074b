"""`pollux simulate`: a day of a config, at a terminal and for machines."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest

from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

CONFIG = """\
store: sqlite:///p.db
pool: {seats: 4}
jobs:
  - {id: ten, python: "no.such.module:fine", interval: 10m, spread: false}
  - {id: slow, python: "no.such.module:slow", interval: 30s, spread: false, overlap: skip}
  - {id: night, python: "no.such.module:fine", cron: "30 2 * * *", tz: Europe/Berlin}
  - {id: asked, python: "no.such.module:fine"}
"""
NIGHT = ("--from", "2026-03-29T00:00", "--for", "2h")


@pytest.fixture
def pollux(tmp_path) -> SameProcess:
    terminal = SameProcess(tmp_path)
    terminal.write("p.yaml", CONFIG)
    return terminal


def test_a_night_is_told_with_its_firings_seats_and_clock_change(tmp_path):
    """The real program; the config names code that does not exist, for none of it is needed."""
    terminal = Terminal(tmp_path)
    terminal.write("p.yaml", CONFIG)
    answer = terminal.ok("simulate", "-c", "p.yaml", *NIGHT, "--duration", "40s")
    assert "4 jobs, 255 due times: about 1s" in answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "2h from 2026-03-29T00:00:00Z, 4 seats, seed 1"
    assert "fired     135; skipped 120 (overlap 120)" in lines
    assert "Europe/Berlin: on 2026-03-29 02:00 to 03:00: that hour does not exist" in lines
    assert "  2026-03-29T03:00:00+02:00 night" in lines
    assert any(
        line.startswith("! job slow overlaps itself 120 times: its runs take 40s and it is due every 30s")
        for line in lines
    )
    assert any("█" in line for line in lines)
    assert not (tmp_path / "p.db").exists()


def test_the_same_seed_gives_the_same_document(pollux):
    ask = ("simulate", "-c", "p.yaml", *NIGHT, "--duration", "1s..20s", "--failing", "10%", "--json")
    first, again = pollux.ok(*ask), pollux.ok(*ask)
    assert first.out == again.out
    other = pollux.ok(*ask, "--seed", "2")
    assert other.json["forecast"]["trace"] != first.json["forecast"]["trace"]
    assert first.json["forecast"]["failed"] > 0


def test_json_has_every_field(pollux):
    document = pollux.ok("simulate", "-c", "p.yaml", *NIGHT, "--json").json
    assert (document["config"], len(document["seats"])) == ("p.yaml", 1)
    forecast = document["forecast"]
    assert {"fired", "skipped", "late", "peak_seats", "mean_seats", "load", "busiest", "clock_changes"} <= set(forecast)
    assert {job["id"]: job["fired"] for job in forecast["jobs"]} == {"ten": 13, "slow": 241, "night": 1, "asked": 0}
    assert len(forecast["load"]) == 120


def test_several_numbers_of_seats_are_compared(pollux):
    pollux.write("many.yaml", "jobs:\n  - {id: a, python: 'x:y', interval: 10s, overlap: allow}\n")
    ask = ("simulate", "-c", "many.yaml", "--for", "10m", "--duration", "5s", "--scale", "10", "--seats", "2,5,20")
    rows = pollux.ok(*ask, "--json").json["seats"]
    assert [row["seats"] for row in rows] == [2, 5, 20]
    assert rows[0]["late_p99_ms"] > rows[1]["late_p99_ms"] > rows[2]["late_p99_ms"]
    text = pollux.ok(*ask).out
    assert "With other numbers of seats:" in text
    assert "2 seats, seed 1" in text


def test_how_long_runs_take_can_be_learnt_from_a_store(tmp_path):
    """Runs of a real server: one job takes 300 ms, and another always fails."""
    terminal = Terminal(tmp_path)
    terminal.write(
        "p.yaml",
        "store: sqlite:///p.db\njobs:\n"
        "  - {id: slow, python: 'work:slow', interval: 400ms, params: {seconds: 0.3}}\n"
        "  - {id: bad, python: 'work:refuse', interval: 400ms}\n"
        "  - {id: new, python: 'work:fine', interval: 1h}\n",
    )
    with terminal.started("serve", "-c", "p.yaml") as server:
        eventually(
            lambda: (
                (tmp_path / "p.db").exists()
                and len(terminal("runs", "--store", "sqlite:///p.db", "--job", "slow", "--json").json["runs"]) > 8
            ),
            "eight runs",
            server,
        )
        stopped(server)
    ask = ("simulate", "--store", "sqlite:///p.db", "--for", "10m", "--duration", "1ms", "--json")
    jobs = {job["id"]: job for job in terminal.ok(*ask, "-c", "p.yaml").json["forecast"]["jobs"]}
    assert jobs["slow"]["busy_ms"] / jobs["slow"]["attempts"] == pytest.approx(310, abs=60)
    assert jobs["new"]["busy_ms"] == jobs["new"]["attempts"] == 1
    stored = {job["id"] for job in terminal.ok(*ask).json["forecast"]["jobs"]}
    assert stored == {"slow", "bad", "new"}


def test_jobs_of_code_are_played_and_their_handlers_are_not_called(pollux):
    pollux.write(
        "fleet.py",
        "from pollux import Pollux, every\n"
        "app = Pollux('memory://')\n"
        "@app.job(every('1m', spread=False))\n"
        "async def tick(ctx):\n    raise SystemExit('a handler was called')\n",
    )
    pollux.write("app.yaml", "app: fleet:app\n")
    forecast = pollux.ok("simulate", "-c", "app.yaml", "--for", "1h", "--json").json["forecast"]
    assert (forecast["fired"], forecast["failed"]) == (61, 0)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--for", "soon"), "is not a duration"),
        (("--for", "10000d"), "longer than ten years"),
        (("--for", "1000d"), "give 1s to 366d"),
        (("--from", "yesterday"), "2026-03-29T00:00"),
        (("--seats", "many"), "--seats 5,10,20"),
        (("--seats", "0"), "use 1 to"),
        (("--duration", "2s..1s"), "200ms..2s"),
        (("--failing", "150%"), '"5%"'),
        (("--scale", "0"), "give 1 to"),
        (("--grain", "1h"), "give 1ms to 1m"),
        (("--store", "sqlite:///nowhere.db"), "there is no store"),
    ],
)
def test_mistakes_are_told_with_their_cure(pollux, words, cure):
    answer = pollux("simulate", "-c", "p.yaml", *words)
    assert answer.code in {2, 3}
    assert cure in answer.err
    assert answer.out == ""


def test_nothing_to_simulate_is_said(tmp_path):
    terminal = SameProcess(tmp_path)
    answer = terminal("simulate")
    assert answer.code == 2
    assert "name a file with -c, or a store with --store" in answer.err
    terminal.write("empty.yaml", "")
    assert "add jobs with a schedule" in terminal("simulate", "-c", "empty.yaml").err


def test_a_terminal_shows_how_far_it_is(tmp_path):
    """On a real terminal there is a bar while it works; the answer itself goes where it was sent."""
    terminal = Terminal(tmp_path)
    terminal.write("p.yaml", CONFIG)
    ours, theirs = pty.openpty()
    with (tmp_path / "answer.json").open("wb") as answer:
        run = subprocess.Popen(
            [sys.executable, "-m", "pollux", "simulate", "-c", "p.yaml", "--for", "24h", "--json"],
            cwd=tmp_path,
            env=terminal.environ({"TERM": "xterm"}),
            stdout=answer,
            stderr=theirs,
        )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while piece := os.read(ours, 65_536):
            said += piece
    os.close(ours)
    assert run.wait(60) == 0
    assert json.loads((tmp_path / "answer.json").read_text())["forecast"]["fired"] > 2_000
    assert "simulating" in said.decode()
    assert "100%" in said.decode()
