"""A handler in a child process runs as in the node, and leaves nothing behind."""

import asyncio
import contextlib
import gc
import os
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from pollux.clock import SystemClock
from pollux.errors import InvalidInput
from pollux.model import ERROR_CHARS_MAX, Fault, Isolate, Job, Retry, Run, RunState
from pollux.outcome import TRACEBACK_CHARS_MAX
from pollux.registry import Context, Handler, Registry
from pollux.runtime.attempt import StopReason
from pollux.runtime.child_protocol import FailureFrame, FunctionRef
from pollux.runtime.isolation import (
    Child,
    IdleChildren,
    RelayedError,
    _secrets_in,
    call_in_child,
    check_place,
    in_child,
    place_in,
)
from pollux.secrets import HIDDEN
from tests.runtime import child_work
from tests.runtime.fakes import Shop, emptied, settle_down

PATIENCE_SECONDS = 60
FREELY = {"memory": 1_000_000_000, "stop_seconds": lambda: 1.0, "permit": lambda: 60.0}


async def a_run(call, *, isolate=Isolate.PROCESS, crashes=0, **options):
    """A shop in which one run of this handler was tried once, and what became of the run."""
    shop = await Shop().open()
    shop.registry.add_jobs([await shop.job("after", child_work.after)])
    job = await shop.job("job", call, isolate=isolate, **options)
    [run] = await shop.enqueue(job, "r1")
    for _ in range(crashes + 1):
        await shop.dispatcher.turn()
        await emptied(shop.pool)
        await shop.settler.turn()
        run = await shop.run("r1")
        await shop.clock.advance(600_000)
    shop.worker.threads.stop()
    return shop, run


async def begun(call, pids, count, **options):
    """A shop in which a handler sits in its child and has told of so many processes."""
    shop = await Shop().open()
    params = {"pids": str(pids), **options.pop("params", {})}
    job = await shop.job("job", call, isolate=Isolate.PROCESS, params=params, **options)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await eventually(lambda: pids.exists() and len(pids.read_text().split()) == count)
    [attempt] = shop.worker.running
    return shop, attempt


async def eventually(look):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.01)


def alive(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split() if is_alive(int(pid))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# the same as in the node


@pytest.mark.parametrize("call", [child_work.about, child_work.about_later])
async def test_a_handler_sees_in_its_child_what_it_sees_in_the_node(call):
    shop, run = await a_run(call, params={"word": "hello"}, timeout_ms=5_000)
    assert run.state is RunState.DONE
    result = run.result
    assert result.pop("pid") != os.getpid()
    assert result.pop("deadline") == result["deadline_ms"] / 1000
    assert result == {
        "word": "hello",
        "run": "r1",
        "job": "job",
        "handler": "job",
        "attempt": 1,
        "delivery": 1,
        "deadline_ms": run.started_ms + 5_000,
        "cancelled": False,
        "is_main_thread": True,
    }
    assert shop.pool.free == 2


@pytest.mark.parametrize("name", ["changed", "unchanged", "observed", "nothing", "plain", "follows_oddly"])
async def test_a_result_is_the_same_as_in_the_node(name):
    call, params = getattr(child_work, name), {"a": 40} if name == "plain" else {}
    _, here = await a_run(call, isolate=Isolate.NEVER, params=params)
    _, there = await a_run(call, params=params)
    assert (there.state, there.result, there.changed) == (here.state, here.result, here.changed)
    assert there.state is RunState.DONE


@pytest.mark.parametrize(
    "name",
    [
        *("fails", "fails_later", "permanent", "wait_a_minute", "leaves", "leaves_later", "not_json", "too_much"),
        *("observed_odd", "observed_unmarked", "greedy", "silent", "endless"),
    ],
)
async def test_a_failure_is_the_same_as_in_the_node(name):
    call = getattr(child_work, name)
    _, here = await a_run(call, isolate=Isolate.NEVER)
    _, there = await a_run(call)
    told = ("state", "error", "traceback", "attempt", "crashes", "visible_ms")
    assert [getattr(there, field) for field in told] == [getattr(here, field) for field in told]
    assert there.error
    assert there.crashes == 0


async def test_what_a_child_says_of_its_failure_is_cut_and_cleaned_again():
    """Whatever its code did to it: the words come over a line that it holds."""

    def fail(ctx):
        trace = "File \x1b[31m" + "x" * 10_000
        raise RelayedError(FailureFrame(Fault.TRANSIENT, "a\nb\x1b[31m" * 10_000, "x\ny", None, f"{trace}\n" * 10_000))

    _, run = await a_run(fail, isolate=Isolate.NEVER)
    assert len(run.error) <= ERROR_CHARS_MAX
    assert run.error.isprintable()
    assert run.error.endswith("(x y)")
    assert len(run.traceback) <= TRACEBACK_CHARS_MAX
    assert all(line.isprintable() for line in run.traceback.splitlines())


async def test_no_memory_is_a_failure_and_no_crash():
    _, run = await a_run(child_work.hungry)
    assert run.error.startswith("MemoryError (child_work.py:")
    assert (run.state, run.attempt, run.crashes) == (RunState.READY, 1, 0)


async def test_progress_is_relayed_while_it_runs_and_its_last_word_arrives(tmp_path):
    shop = await Shop().open()
    go = tmp_path / "go"
    job = await shop.job("job", child_work.progressing, isolate=Isolate.PROCESS, params={"go": str(go)})
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    [attempt] = shop.worker.running
    await eventually(lambda: attempt.ctx.last_progress == "30% (3 of 10) of the rows")
    go.touch()
    await emptied(shop.pool)
    assert attempt.ctx.last_progress == "row 999"


async def test_follow_ups_are_made_by_the_node_and_come_with_the_success():
    shop, run = await a_run(child_work.following)
    first, second, refusal = run.result
    assert "there is no job 'unknown'" in refusal
    made = await shop.run(first)
    assert (made.payload, made.key, made.priority) == ({"n": 1}, "k", 1)
    assert made.due_ms == run.finished_ms + 5_000
    assert (await shop.run(second)).job_id == "after"


async def test_a_failed_child_leaves_no_follow_up():
    shop, run = await a_run(child_work.following, params={"odd": 1})
    assert run.state is RunState.DEAD
    assert shop.store.count("enqueue") == 1


# crashes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (child_work.segfault, "Crashed: its child was killed by SIGSEGV"),
        (child_work.abort, "Crashed: its child was killed by SIGABRT"),
        (child_work.vanish, "Crashed: its child ended with exit code 3 before its handler did"),
        (child_work.vanish_well, "Crashed: its child ended with exit code 0 before its handler did"),
        (child_work.babble, "Crashed: its child sent an unreadable frame: a frame of 4294967295 bytes"),
        (child_work.babble_json, "Crashed: its child sent an unreadable frame: not a frame of this protocol"),
    ],
)
async def test_a_child_that_dies_without_a_word_has_crashed(call, words, capfd):
    _, run = await a_run(call)
    assert run.error.startswith(words)
    assert (run.state, run.attempt, run.crashes) == (RunState.READY, 1, 1)
    if call is child_work.segfault:
        assert "in segfault" in capfd.readouterr().err, "its traceback is in the node's log"


async def test_the_third_crash_is_the_end_of_the_run(capfd):
    _, run = await a_run(child_work.segfault, crashes=2, retry=Retry(attempts_max=50))
    assert run.state is RunState.DEAD
    assert run.error == "Crashed: its child was killed by SIGSEGV, 3 times"
    assert (run.crashes, run.attempt) == (3, 2)


async def test_what_a_handler_leaves_behind_ends_with_it(tmp_path):
    pids = tmp_path / "pids"
    _, run = await a_run(child_work.brood, params={"pids": str(pids)})
    assert run.result == "done"
    assert alive(pids) == []


# asked to stop


async def test_at_its_timeout_a_deaf_child_is_killed_with_all_that_it_started(tmp_path):
    pids = tmp_path / "pids"
    shop, attempt = await begun(child_work.sleepy, pids, 3, timeout_ms=5_000)
    await shop.clock.advance(5_000)
    await shop.timeouts.turn()
    await emptied(shop.pool)
    await shop.settler.turn()
    run = await shop.run("r1")
    assert run.error == "TimeoutError: it ran longer than 5000 ms"
    assert (run.attempt, run.crashes) == (1, 0), "we killed it: that is no crash"
    assert alive(pids) == []
    assert not attempt.is_stuck


async def test_a_handler_may_answer_after_its_timeout(tmp_path):
    shop, _ = await begun(child_work.obedient, tmp_path / "pids", 1, timeout_ms=5_000)
    await shop.clock.advance(5_000)
    await shop.timeouts.turn()
    await emptied(shop.pool)
    await shop.settler.turn()
    run = await shop.run("r1")
    assert (run.state, run.result) == (RunState.DONE, "heard: it ran longer than 5000 ms")


async def test_a_cancelled_async_handler_cleans_up_in_its_child(tmp_path):
    pids, left = tmp_path / "pids", tmp_path / "left"
    shop, attempt = await begun(child_work.tidy, pids, 1, params={"left": str(left)})
    attempt.cancel("not wanted")
    await emptied(shop.pool)
    await shop.settler.turn()
    run = await shop.run("r1")
    assert (run.state, run.cancel) == (RunState.CANCELLED, "not wanted")
    assert left.read_text() == "not wanted"
    assert alive(pids) == []


async def test_a_cancelled_sync_handler_in_a_child_is_cancelled_whatever_it_returns(tmp_path):
    shop, attempt = await begun(child_work.obedient, tmp_path / "pids", 1)
    attempt.cancel("not wanted")
    await emptied(shop.pool)
    await shop.settler.turn()
    run = await shop.run("r1")
    assert (run.state, run.result) == (RunState.CANCELLED, None)


async def test_a_drain_hands_it_back_uncharged_and_kills_the_child(tmp_path):
    pids = tmp_path / "pids"
    shop, attempt = await begun(child_work.sleepy, pids, 3)
    attempt.drain()
    await emptied(shop.pool)
    await shop.settler.turn()
    run = await shop.run("r1")
    assert (run.state, run.attempt, run.crashes) == (RunState.READY, 0, 0)
    assert alive(pids) == []


async def test_a_lost_lease_kills_the_child_and_records_nothing(tmp_path):
    pids = tmp_path / "pids"
    shop, attempt = await begun(child_work.sleepy, pids, 3)
    attempt.lose("the store said so")
    await emptied(shop.pool)
    assert shop.settler.backlog == 0
    assert alive(pids) == []


async def test_a_child_that_is_given_up_on_is_killed_at_once(tmp_path, monkeypatch):
    """A cancelled handler has a while to obey, but not once the node is leaving."""
    monkeypatch.setattr("pollux.runtime.attempt.CANCEL_MS", 3_600_000)
    pids = tmp_path / "pids"
    shop, attempt = await begun(child_work.sleepy, pids, 3)
    attempt.cancel("not wanted")
    await settle_down()
    attempt.give_up()
    await emptied(shop.pool)
    assert alive(pids) == []


async def test_nothing_is_left_open_and_no_thread_waits():
    async def once():
        handler = Registry().add("where", child_work.where)
        ctx = Context(Run("r", "j", 0), Job(id="j", handler="where"), handler, SystemClock(), 0)
        return await call_in_child(handler, ctx, {}, **FREELY)

    await once()
    gc.collect()  # what earlier tests left to it is closed now, and not while we count
    before, threads, others = open_files(), threads_now(), children()
    await asyncio.gather(once(), once(), once())
    async with asyncio.timeout(60):  # a warden that has told all may need a moment to be gone
        while children() - others or open_files() > before:  # noqa: ASYNC110  the kernel rings no bell
            await asyncio.sleep(0.01)
    assert threads_now() <= threads


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def threads_now() -> set[str]:
    return {thread.name for thread in Path("/proc/self/task").iterdir()}


def children() -> set[str]:
    """The ids of all children of this process, dead ones that nobody waited for among them."""
    found = set()
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it is gone
            if int(place.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(place.parent.name)
    return found


# suspects


@pytest.fixture(autouse=True)
def two_suspects_at_a_time(monkeypatch):
    monkeypatch.setattr("pollux.runtime.dispatcher.SUSPECTS_MAX", 2)


async def suspects(call, count=1, *, seats=4, losses=2, **options):
    """A shop whose runs were leased to nodes that vanished, so many times; it has claimed them once."""
    shop = await Shop(seats=seats).open()
    job = await shop.job("job", call, **options)
    await shop.enqueue(job, *(f"r{number}" for number in range(1, count + 1)))
    for number in range(losses):
        await shop.store.claim(node="gone", token=f"t{number}", limit=count, lease_ms=1_000)
        await shop.clock.advance(1_000)
    await shop.dispatcher.turn()
    return shop


async def closed(shop):
    """All that sit have ended and are settled, and no child is left."""
    await emptied(shop.pool)
    await shop.settler.turn()
    shop.worker.threads.stop()
    await shop.worker.idle_children.close()


async def test_after_one_lost_lease_a_run_is_delivered_as_any_other():
    shop = await suspects(child_work.where, 4, losses=1)
    assert len(shop.worker.running) == 4
    assert not shop.worker.suspects
    await closed(shop)
    for number in range(1, 5):
        run = await shop.run(f"r{number}")
        assert (run.state, run.lease_losses, run.result) == (RunState.DONE, 1, os.getpid())


async def test_after_a_second_lost_lease_a_run_is_tried_in_a_child():
    shop = await suspects(child_work.where)
    await closed(shop)
    run = await shop.run("r1")
    assert (run.state, run.lease_losses) == (RunState.DONE, 2)
    assert run.result != os.getpid()
    assert not shop.worker.suspects


async def test_some_suspects_are_tried_at_a_time_and_the_others_wait_uncharged():
    """As many come back at a time as are tried, so that none waits for a place that is free."""
    shop = await suspects(child_work.where, 5, seats=9)
    assert {attempt.run.id for attempt in shop.worker.running} == {"r1", "r2"}
    await shop.settler.turn()
    waiting = [await shop.run(id) for id in ("r3", "r4", "r5")]
    assert [(run.state, run.attempt, run.lease_losses) for run in waiting] == 3 * [(RunState.READY, 0, 2)]
    assert [run.visible_ms - shop.clock.now_ms() for run in waiting] == [200, 200, 400]
    for at_work in (2, 1):
        await emptied(shop.pool)
        assert not shop.worker.suspects
        await shop.clock.advance(200)
        await shop.settler.turn()
        await shop.dispatcher.turn()
        assert len(shop.worker.suspects) == at_work
    await closed(shop)
    assert {(await shop.run(f"r{number}")).state for number in range(1, 6)} == {RunState.DONE}


async def test_a_child_is_used_again_for_the_next_suspect(monkeypatch):
    monkeypatch.setattr("pollux.runtime.dispatcher.SUSPECTS_MAX", 1)
    shop = await suspects(child_work.where, 3)
    for _ in range(2):
        await emptied(shop.pool)
        await shop.clock.advance(1_000)
        await shop.settler.turn()
        await shop.dispatcher.turn()
    await closed(shop)
    assert len({(await shop.run(id)).result for id in ("r1", "r2", "r3")} - {os.getpid()}) == 1


@pytest.mark.parametrize("call", [child_work.brood, child_work.threaded, child_work.hungry, child_work.leaves])
async def test_a_child_is_not_used_again_where_a_handler_left_something_behind_or_broke_it(call, tmp_path):
    pids = tmp_path / "pids"
    options = {"params": {"pids": str(pids)}} if call is child_work.brood else {}
    shop = await suspects(call, **options)
    await emptied(shop.pool)
    assert not shop.worker.idle_children._idle
    if pids.exists():
        assert alive(pids) == []
    await closed(shop)


async def test_a_suspect_that_has_crashed_is_tried_again_in_a_fresh_child():
    """Another one may have broken the child that it shared: the proof must be its own."""
    shop = await suspects(child_work.where)
    await emptied(shop.pool)
    assert len(shop.worker.idle_children._idle) == 1
    handler, job = Handler("where", child_work.where), Job(id="job", handler="where")
    pids = []
    for crashes in (0, 1):
        ctx = Context(Run("r", "job", 0, crashes=crashes), job, handler, SystemClock(), 0)
        pids.append(await call_in_child(handler, ctx, {}, **FREELY, idle=shop.worker.idle_children))
    await closed(shop)
    first = (await shop.run("r1")).result
    assert pids[0] == first
    assert pids[1] != first


async def test_a_child_that_died_while_it_was_idle_is_no_crash_of_the_next_suspect():
    idle = IdleChildren()
    handler, job = Handler("where", child_work.where), Job(id="job", handler="where")
    ctx = Context(Run("r", "job", 0), job, handler, SystemClock(), 0)
    first = await call_in_child(handler, ctx, {}, **FREELY, idle=idle)
    os.kill(first, signal.SIGKILL)  # the event loop has not heard of it when the next one is called
    second = await call_in_child(handler, ctx, {}, **FREELY, idle=idle)
    assert second != first
    await idle.close()
    assert not is_alive(second)


async def test_an_idle_child_ends_after_a_while(monkeypatch):
    monkeypatch.setattr("pollux.runtime.isolation.IDLE_SECONDS", 0.01)
    shop = await suspects(child_work.where)
    await emptied(shop.pool)
    await shop.settler.turn()
    child = (await shop.run("r1")).result
    await eventually(lambda: not is_alive(child))
    await closed(shop)


async def test_a_suspect_holds_up_nobody_else():
    shop = await suspects(child_work.where, 3)
    await shop.enqueue(await shop.job("innocent", child_work.where), "i1")
    await shop.settler.turn()
    await shop.dispatcher.turn()
    await eventually(lambda: shop.settler.backlog)
    await shop.settler.turn()
    run = await shop.run("i1")
    assert (run.state, run.result) == (RunState.DONE, os.getpid())
    await closed(shop)


# the lease before the handler


async def test_a_child_whose_node_lost_the_lease_meanwhile_never_begins_its_handler(tmp_path, monkeypatch):
    """The node stands still while its child starts; when it goes on, its lease may be somebody else's."""
    shop = await Shop().open()
    mark = tmp_path / "begun"
    job = await shop.job("job", child_work.marks, isolate=Isolate.PROCESS, params={"mark": str(mark)})
    await shop.enqueue(job, "r1")
    made, start = [], Child.__init__
    monkeypatch.setattr(Child, "__init__", lambda self, memory: (made.append(self), start(self, memory))[1])
    await shop.dispatcher.turn()
    [attempt] = shop.worker.running
    await eventually(lambda: made)
    await settle_down()
    ready, _, _ = select.select([made[0]._socket], [], [], PATIENCE_SECONDS)  # our loop stands still
    assert ready, "the child never said a word"
    attempt.trust_until = shop.clock.mono_ms()
    await emptied(shop.pool)
    assert shop.settler.backlog == 0, "nothing is recorded"
    assert attempt.stop_reason is StopReason.LOST
    assert not mark.exists()


async def test_a_leave_to_begin_that_is_over_is_asked_for_again(tmp_path):
    """The child itself stood still: what it may do is judged by the node anew."""
    mark, leaves = tmp_path / "begun", [-1.0, None]
    handler, job = Handler("marks", child_work.marks), Job(id="job", handler="marks")
    ctx = Context(Run("r", "job", 0), job, handler, SystemClock(), 0)

    def leave():
        left = leaves.pop(0)
        if left is None:
            call.cancel()
        return left

    options = {**FREELY, "permit": leave}
    call = asyncio.create_task(call_in_child(handler, ctx, {"mark": str(mark)}, **options))
    with pytest.raises(asyncio.CancelledError):
        await call
    assert leaves == []
    assert not mark.exists()


async def test_what_no_child_can_find_or_may_have_is_tried_in_the_node():
    def closure(ctx):
        return os.getpid()

    for call, options in ((closure, {}), (child_work.where, {"isolate": Isolate.NEVER})):
        shop = await suspects(call, 2, **options)
        assert len(shop.worker.running) == 2
        await emptied(shop.pool)
        await shop.settler.turn()
        assert (await shop.run("r2")).result == os.getpid()
        shop.worker.threads.stop()


# who can be found


def test_a_function_at_the_top_of_a_module_can_be_found():
    handler = Handler("any", child_work.where)
    assert place_in(handler) == FunctionRef("tests.runtime.child_work", "", "where")
    assert place_in(Handler("tests.runtime.child_work:where", child_work.where)) == place_in(handler)


def test_a_name_in_a_file_finds_what_has_no_name_of_its_own(monkeypatch):
    """`python: "checks:home.look"`: a method of an object of that module."""

    class Home:
        def look(self, ctx): ...

    monkeypatch.setattr(child_work, "home", Home(), raising=False)
    handler = Handler("tests.runtime.child_work:home.look", child_work.home.look)
    assert place_in(handler) == FunctionRef("tests.runtime.child_work", "", "home.look")
    assert place_in(Handler("look", child_work.home.look)) is None


def test_a_lambda_is_refused_with_the_cure():
    with pytest.raises(InvalidInput) as caught:
        check_place(Handler("h", lambda ctx: None), is_whole=True)
    told = "isolate: handler 'h' is a lambda: no child process can find it; define it at the top of a module"
    assert str(caught.value) == told


def test_a_closure_is_refused_before_its_module_is_whole():
    def inner(ctx): ...

    with pytest.raises(InvalidInput, match="isolate: handler 'h' is made inside another function"):
        check_place(Handler("h", inner), is_whole=False)


def test_a_function_hidden_by_another_decorator_is_refused_once_its_module_is_whole(monkeypatch):
    handler = Handler("where", child_work.where)
    monkeypatch.setattr(child_work, "where", lambda ctx: None)
    check_place(handler, is_whole=False)
    with pytest.raises(InvalidInput, match=r"put @app.job or @app.handler above all other decorators"):
        check_place(handler, is_whole=True)


def test_a_function_of_a_program_without_a_file_is_refused(monkeypatch):
    def typed(ctx): ...

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    program = sys.modules["__main__"]
    monkeypatch.setattr(program, "typed", typed, raising=False)
    monkeypatch.setattr(program, "__spec__", None)
    monkeypatch.delattr(program, "__file__", raising=False)
    with pytest.raises(InvalidInput, match=r"of a program that has no file.*put it into a module"):
        check_place(Handler("typed", typed), is_whole=False)


def test_handlers_of_pollux_itself_stay_in_the_node():
    handler = Handler("h", InvalidInput.at)
    assert place_in(handler) is None
    with pytest.raises(InvalidInput, match="is part of Pollux"):
        check_place(handler, is_whole=False)


async def test_a_job_whose_function_cannot_be_found_fails_for_good():
    """Refused when it is declared; a stored one says why."""

    def closure(ctx): ...

    _, run = await a_run(closure)
    assert run.state is RunState.DEAD
    assert "no child process can find it" in run.error


def test_this_process_is_no_child():
    assert not in_child()


async def test_an_answer_counts_although_the_node_is_asked_to_stop_while_its_child_ends(monkeypatch):
    handler, job = Handler("plain", child_work.plain), Job(id="job", handler="plain")
    ctx = Context(Run("r1", "job", 0), job, handler, SystemClock(), 0)
    call = asyncio.create_task(call_in_child(handler, ctx, {"a": 1}, **FREELY))
    end, asked = Child.end, []

    async def asked_meanwhile(self):
        asked.append(asyncio.get_running_loop().call_soon(call.cancel))  # it has answered, and is waited for
        await end(self)

    monkeypatch.setattr(Child, "end", asked_meanwhile)
    assert await call == 3
    assert len(asked) == 1
    await asyncio.gather(*(each for each in asyncio.all_tasks() if each.get_name().startswith("pollux process")))


def a_call(name, kwargs, *, patience=1.0):
    call = getattr(child_work, name)
    handler = Handler(name, call)
    ctx = Context(Run("r1", "job", 0), Job(id="job", handler=name), handler, SystemClock(), 0)
    return ctx, call_in_child(handler, ctx, kwargs, **{**FREELY, "stop_seconds": lambda: patience})


async def test_what_a_handler_printed_is_written_before_its_child_is_killed(tmp_path):
    _, call = a_call("prints_late", {"path": str(tmp_path / "printed")})
    assert await call == 1
    assert (tmp_path / "printed").read_text() == "its last words\n"


async def test_a_wish_to_stop_that_comes_before_the_line_stands_is_heard():
    ctx, call = a_call("stops_at_once", {}, patience=PATIENCE_SECONDS)
    going = asyncio.create_task(call)
    await asyncio.sleep(0)
    ctx.cancel("not now")
    going.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert time.monotonic() - began < PATIENCE_SECONDS - 5


async def test_a_child_is_told_the_secrets_that_it_can_know_and_no_others(monkeypatch):
    monkeypatch.setenv("OF_THE_ENVIRONMENT", "secret-of-environment")
    for secret in ("secret-of-environment", "secret-of-params", "secret-of-others"):
        HIDDEN.add(secret)
    try:
        assert set(_secrets_in({"a": [{"b": "Bearer secret-of-params"}]})) == {
            "secret-of-environment",
            "secret-of-params",
        }
    finally:
        HIDDEN.clear()
