"""`pollux top`: driven by keys over a real store, and once as a real program in a real terminal."""

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pollux import Pollux
from pollux.cli.top.board import SORTS, Sweep, filter_of
from pollux.cli.top.screen import Top
from pollux.cli.top.widgets import DeadLetters, MessageDialog, Question
from pollux.model import Interval, Job, Memory, Node, Plan
from pollux.model.plan import JobUpdate
from pollux.store.contract import JobFilter, JobPut, Renewal
from pollux.store.sqlite import SqliteStore
from tests.acceptance.terminal import SameProcess, Terminal

QUICK = 0.2  # between two looks; a key that changed something does not wait for it
SCREEN_SECONDS = 60.0  # a screen that does not come, not one that is slow


def a_job(id, **options):
    return Job(id=id, handler="h", schedule=Interval(3_600_000), **options)


@contextlib.asynccontextmanager
async def opened(path):
    app = Pollux(f"sqlite:///{path}", actor="test")
    await app.open()
    try:
        yield app
    finally:
        await app.close()


@contextlib.asynccontextmanager
async def watched(path, size=(140, 40)):
    """The screen over the store at `path`, and whoever presses keys."""
    top = Top(f"sqlite:///{path}", look_seconds=QUICK)
    async with top.run_test(size=size) as pilot:
        yield top, pilot
    assert top.link._target is None, "the store was let go"


async def until(pilot, look, what):
    deadline = time.monotonic() + SCREEN_SECONDS
    while time.monotonic() < deadline:
        seen = look()
        if seen:
            return seen
        await asyncio.sleep(0.02)
    raise AssertionError(f"still not: {what}")


def text(top, selector):
    """What a place says; of the first screen also if another one is in front."""
    for screen in reversed(top.screen_stack):
        for found in screen.query(selector):
            return str(found.render())
    return ""


def shown(top):
    """The ids of the table, in order."""
    return [key.value for key in top._table.rows]


def cell(top, job_id, column):
    return str(top._table.get_cell(job_id, column))


async def come(top, pilot, ids):
    await until(pilot, lambda: shown(top) == list(ids), f"{ids} are shown, not {shown(top)}")


def press(top, *keys):
    """The same as a person's keys; what they bring about is waited for."""
    for key in keys:
        top.simulate_key(key)


async def confirmed(top, pilot, key, words):
    """Press a key, say yes, and read what happened."""
    await until(pilot, lambda: len(top.screen_stack) == 1, "no other question is in front any more")
    press(top, key)
    await until(pilot, lambda: isinstance(top.screen, Question), "it asks")
    press(top, "y")
    await until(pilot, lambda: words in text(top, "#message-line"), f"it says {words!r}, not {text(top, '#said')!r}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "p.db"


async def learnt(app, job_id, **memory):
    """What the leader would have learnt of a job."""
    store = app._store
    term = await store.elect("n", ttl_ms=60_000)
    [job] = await store.get_jobs([job_id])
    due = memory.pop("next_due_ms", None)
    update = JobUpdate(job_id, job.revision, due, Memory(**memory))
    assert (await store.advance(term.number, Plan(updates=(update,)))).answer.value == "ok"


# what is seen


async def test_a_cell_that_is_drawn_before_the_table_was_idle_is_whole(path, monkeypatch):
    """As when the terminal is resized or a program comes back just then; what is drawn is kept as it is."""

    def drawn(table):
        return "\n".join(table.render_line(line).text for line in range(table.size.height))

    early = []

    def show_and_draw(top, look, show=Top._show_jobs):
        show(top, look)
        early.append(drawn(top._table))

    monkeypatch.setattr(Top, "_show_jobs", show_and_draw)
    async with opened(path) as app, watched(path) as (top, pilot):
        for names in (["home"], ["a-much-longer-name", "home"], ["home"]):
            await app.put_jobs([a_job(name) for name in names if name not in shown(top)])
            await app.operations.jobs.delete_jobs([name for name in shown(top) if name not in names])
            await come(top, pilot, names)
            await pilot.pause()
            for name in names:
                assert f" {name} " in early[-1]
                assert f" {name} " in drawn(top._table)


async def test_the_header_tells_who_is_there_and_what_waits(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a"), a_job("b", target="t")])
        term = await app._store.elect("n1", ttl_ms=60_000)
        await app._store.beat(Node(id="n1", seats=8, busy=3, handlers=("h",)), ttl_ms=60_000)
        await app.enqueue("b")
        await app.enqueue("a", at="2020-01-01T00:00:00Z")
        async with watched(path) as (top, pilot):
            await come(top, pilot, ["a", "b"])
            header = text(top, "#header")
            for words in (
                "1 node",
                f"led by n1 (term {term.number})",
                "running 0 on 8 seats",
                "queued 1",
                "held 1",
                "jobs 2",
                "oldest ready run",
            ):
                assert words in header
            assert "at the gate" in text(top, "#held")
            assert cell(top, "a", "state") == "ready"
            assert cell(top, "b", "state") == "held"


async def test_a_running_handler_shows_its_progress(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        run = await app.enqueue("a")
        [claimed] = (await app._store.claim(node="n1", token="t", limit=1, lease_ms=60_000)).runs
        await app._store.renew([Renewal(run.id, claimed.token, progress="42 %")], lease_ms=60_000)
        async with watched(path) as (top, pilot):
            await come(top, pilot, ["a"])
            assert cell(top, "a", "state") == "running"
            assert cell(top, "a", "now") == "42 %"
            assert "42 %" in text(top, "#running")


async def test_what_changes_in_the_store_changes_on_the_screen(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        async with watched(path) as (top, pilot):
            await come(top, pilot, ["a"])
            assert cell(top, "a", "last") == "-"
            await learnt(app, "a", ended=3, failures=2, last_end_ms=1_800_000_000_000, last_error="boom\x1b[31m\nmore")
            await until(pilot, lambda: cell(top, "a", "last") == "failing", "it failed")
            assert cell(top, "a", "failures") == "2"
            assert "boom\\x1b[31m" in cell(top, "a", "now"), "no terminal is steered"
            await app.put_jobs([a_job("b")])
            await come(top, pilot, ["a", "b"])
            await app.operations.jobs.delete_jobs(["a"])
            await come(top, pilot, ["b"])


async def test_sorting_goes_round_and_can_be_reversed(path):
    async with opened(path) as app:
        await app.put_jobs([a_job(name) for name in "abc"])
        await learnt(app, "b", ended=1, failures=7, last_end_ms=5, duration_ms=10, next_due_ms=9_000_000_000_000)
        await learnt(app, "c", ended=1, last_success_ms=3, last_end_ms=3, duration_ms=99, next_due_ms=8_000_000_000_000)
        orders = {
            "id": "abc",
            "next due": "cba",
            "failures": "bca",
            "oldest success": "abc",
            "last run": "bca",
            "duration": "cba",
        }
        assert list(orders) == list(SORTS)
        async with watched(path) as (top, pilot):
            for name, order in orders.items():
                await come(top, pilot, order)
                assert f"by {name}" in str(top._table.border_title)
                press(top, "S")
                await come(top, pilot, order[::-1])
                press(top, "S")
                await come(top, pilot, order)
                press(top, "s")
            await come(top, pilot, "abc")


async def test_the_cursor_stays_on_its_job_when_the_order_changes(path):
    async with opened(path) as app:
        await app.put_jobs([a_job(name) for name in "abc"])
        async with watched(path) as (top, pilot):
            await come(top, pilot, "abc")
            press(top, "down")
            await until(pilot, lambda: top.chosen() == "b", "the cursor moves")
            press(top, "S")
            await come(top, pilot, "cba")
            await app.put_jobs([a_job("z")])
            await come(top, pilot, "zcba")
            assert top.chosen() == "b"


async def test_a_filter_is_typed_and_taken_away(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("web-1"), a_job("web-2", group="edge"), a_job("db-1", tags=("q",))])
        async with watched(path) as (top, pilot):
            await come(top, pilot, ["db-1", "web-1", "web-2"])
            await pilot.press("slash", *"web", "enter")
            await come(top, pilot, ["web-1", "web-2"])
            await pilot.press("slash")
            assert top._box.value == "web"
            await pilot.press(*" group:edge", "enter")
            await come(top, pilot, ["web-2"])
            await pilot.press("slash", "x", "escape")
            await pilot.pause()
            assert shown(top) == ["web-2"], "escape leaves the filter as it was"
            await pilot.press("escape")
            await come(top, pilot, ["db-1", "web-1", "web-2"])


def test_a_filter_may_name_group_target_and_tag():
    assert filter_of("edge 1 group:g target:t:1 tag:x y:z") == JobFilter(
        group="g", target="t:1", tag="x", text="edge 1 y:z"
    )
    assert filter_of("") == JobFilter()


# keys that act


async def test_pause_and_resume_run_now_and_cancel_say_what_they_did(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a"), a_job("b")])
        async with watched(path) as (top, pilot):
            await come(top, pilot, "ab")
            press(top, "down")
            await until(pilot, lambda: top.chosen() == "b", "the cursor moves")
            await confirmed(top, pilot, "p", "job b is paused")
            assert [stop.key for stop in await app.operations.pauses.stops()] == ["stop:job:b"]
            await until(pilot, lambda: cell(top, "b", "state") == "paused", "the pause is seen")
            await confirmed(top, pilot, "p", "job b goes on")
            assert await app.operations.pauses.stops() == []
            await confirmed(top, pilot, "r", "is ready")
            assert (await app.operations.status.counts()).ready == 1
            await confirmed(top, pilot, "r", "! job 'b' has a live run")
            await confirmed(top, pilot, "c", "1 run of job b: cancelled")
            assert (await app.operations.status.counts()).ready == 0
            await confirmed(top, pilot, "c", "nothing is live")
        actors = {line.actor.partition(":")[0] for line in (await app.operations.audit.list_audit()).lines} - {"test"}
        assert actors == {"top"}, "the audit tells where it came from"


@pytest.mark.parametrize("key", ["p", "r", "c"])
async def test_no_is_no(path, key):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        async with watched(path) as (top, pilot):
            await come(top, pilot, "a")
            press(top, key)
            await until(pilot, lambda: isinstance(top.screen, Question), "it asks")
            press(top, "n")
            await until(pilot, lambda: text(top, "#message-line") == "nothing was done", "it says so")
        assert (await app.operations.status.counts()).ready == 0
        assert await app.operations.pauses.stops() == []


async def test_why_is_answered_in_words(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        await app.pause("a", reason="moving house")
        async with watched(path) as (top, pilot):
            await come(top, pilot, "a")
            press(top, "w")
            await until(pilot, lambda: "moving house" in text(top, "#message"), "it tells")
            assert "cure: pollux resume a" in text(top, "#message")
            press(top, "escape")
            await until(pilot, lambda: not isinstance(top.screen, MessageDialog), "it goes away")


async def test_dead_letters_are_looked_at_revived_and_dropped(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        for name in ("x", "y"):
            await app.enqueue("a", id=name)
        await app._store.claim(node="n", token="t", limit=2, lease_ms=1, losses_max=1)
        await asyncio.sleep(0.01)
        await app._store.claim(node="n", token="u", limit=1, lease_ms=1, losses_max=1)
        assert (await app.operations.status.counts()).dead == 2
        async with watched(path) as (top, pilot):
            await come(top, pilot, "a")
            press(top, "d")
            await until(pilot, lambda: "dead letters: 2" in text(top, "#dead-title"), "they are there")
            press(top, "enter")
            await until(pilot, lambda: isinstance(top.screen, MessageDialog), "the error is told")
            press(top, "escape")
            await until(pilot, lambda: isinstance(top.screen, DeadLetters), "back again")
            for key, words in (("v", "runs again"), ("x", "is forgotten")):
                press(top, key)
                await until(pilot, lambda: isinstance(top.screen, Question), "it asks")
                press(top, "y")
                await until(
                    pilot,
                    lambda words=words: isinstance(top.screen, DeadLetters) and words in text(top, "#dead-message"),
                    words,
                )
            assert "dead letters: 0" in text(top, "#dead-title")
            press(top, "escape")
            await until(pilot, lambda: len(top.screen_stack) == 1, "back at the jobs")
            counts = await app.operations.status.counts()
            assert (counts.dead, counts.ready) == (0, 1)
            press(top, "d")
            await until(pilot, lambda: "no dead letters" in text(top, "#message-line"), "there are none")


async def test_help_names_every_key(path):
    async with opened(path), watched(path) as (top, pilot):
        press(top, "question_mark")
        await until(pilot, lambda: text(top, "#message"), "help")
        for key in "/sSprcwdq":
            assert key in text(top, "#message")


# what it costs


async def test_nothing_is_asked_while_another_screen_is_in_front(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
        async with watched(path) as (top, pilot):
            await come(top, pilot, "a")
            press(top, "question_mark")
            await until(pilot, lambda: isinstance(top.screen, MessageDialog), "help")
            before = top.looks
            await asyncio.sleep(5 * QUICK)
            assert top.looks <= before + 1, "a look that was under way comes to its end, and no other begins"
            before = top.looks
            press(top, "escape")
            await until(pilot, lambda: top.looks > before, "it looks again")


def stats_of(top):
    return top.link._target.store.stats


async def test_a_big_store_is_sorted_as_a_whole_for_a_few_reads_a_look(path):
    """Twenty thousand jobs: the first round reads them all, a later look two pages and what is on the screen."""
    async with opened(path) as app:
        for start in range(0, 20_000, 1_000):
            await app._store.put_jobs([JobPut(a_job(f"job-{n:05}")) for n in range(start, start + 1_000)])
        await learnt(app, "job-19999", ended=1, failures=3, last_end_ms=7)
        async with watched(path) as (top, pilot):
            await until(pilot, lambda: top.sweep.is_whole and len(shown(top)) == 200, "all are read")
            assert "200 of 20,000 jobs" in str(top._table.border_title)
            press(top, "s", "s")
            await until(pilot, lambda: shown(top)[:1] == ["job-19999"], "the one that fails comes first")
            stats = stats_of(top)
            looks, reads = top.looks, stats.reads
            await until(pilot, lambda: top.looks >= looks + 3, "three more looks")
            assert stats.reads - reads <= 12 * (top.looks - looks + 1)


async def test_a_sweep_forgets_what_is_gone(path):
    async with opened(path) as app:
        await app.put_jobs([a_job(name) for name in "abc"])
        sweep = Sweep()
        await sweep.go_on(app.operations)
        await app.operations.jobs.delete_jobs(["b"])
        await sweep.go_on(app.operations)
        assert sorted(sweep.entries) == ["a", "c"]


# bad days


async def test_it_waits_for_a_store_that_comes_later_and_makes_none(path):
    async with watched(path) as (top, pilot):
        await until(pilot, lambda: "there is no store" in text(top, "#trouble"), "it says so")
        assert not path.exists()
        async with opened(path) as app:
            await app.put_jobs([a_job("a")])
            await come(top, pilot, "a")
            await until(pilot, lambda: not top._trouble.display, "the trouble is over")


async def test_it_survives_a_store_that_is_deleted_and_comes_back(path):
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
    async with watched(path) as (top, pilot):
        await come(top, pilot, "a")
        for file in path.parent.glob("p.db*"):
            file.unlink()
        await until(pilot, lambda: top._trouble.display, "it notices")
        press(top, "r", "y")
        async with opened(path) as app:
            await app.put_jobs([a_job("b")])
            await come(top, pilot, "b")


def lock_holder(lock):
    code = (
        "import fcntl, os, sys, time\nf = open(sys.argv[1], 'r+')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "f.write(str(os.getpid()).ljust(12))\nf.flush()\nprint('held', flush=True)\ntime.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    return holder


async def test_it_survives_a_store_that_somebody_locks(path, monkeypatch):
    """It says who is in the way, and comes when that is over."""
    async with opened(path) as app:
        await app.put_jobs([a_job("a")])
    monkeypatch.setitem(SqliteStore.__init__.__kwdefaults__, "deadline_ms", 300)
    holder = await asyncio.to_thread(lock_holder, f"{path}.lock")
    try:
        async with watched(path) as (top, pilot):
            await until(pilot, lambda: "holds the write lock" in text(top, "#trouble"), "it says who")
            assert str(holder.pid) in text(top, "#trouble")
            holder.kill()
            holder.wait()
            await come(top, pilot, "a")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


# as a program


def test_without_a_terminal_it_says_so(tmp_path):
    answer = SameProcess(tmp_path)("top", "--store", "sqlite:///p.db")
    assert answer.code == 2
    assert "pollux top --json" in answer.err


def test_one_look_as_json(tmp_path):
    async def fill():
        async with opened(tmp_path / "p.db") as app:
            await app.put_jobs([a_job("home")])

    asyncio.run(fill())
    answer = SameProcess(tmp_path).ok("top", "--json", "--store", f"sqlite:///{tmp_path}/p.db").json
    assert answer["counts"]["jobs"] == 1
    assert (answer["nodes"], answer["running"], answer["overdue_ms"]) == ([], [], 0)


def test_the_pictures_of_the_documentation_are_drawn_from_a_real_run(tmp_path):
    """The script still works, and what is committed is what it draws: small, of this program, without foreign fonts."""
    code = "import sys, pathlib, docs.pictures as p; p.draw(pathlib.Path(sys.argv[1]), run_seconds=0.5)"
    root = Path(__file__).parents[2]
    environ = Terminal(tmp_path).environ({"PYTHONPATH": str(root)})
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environ, check=True, capture_output=True)
    for folder in (tmp_path, root / "docs" / "pictures"):
        for name, words in (("top.svg", "payments"), ("plan.svg", "peak")):
            svg = (folder / name).read_text()
            assert svg.startswith("<svg")
            assert words in svg
            assert "@font-face" not in svg
            assert len(svg) < 200_000
