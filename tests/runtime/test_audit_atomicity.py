"""Audit lines are written with the change itself: an interrupted operator leaves both or neither."""

import asyncio
import re

import pytest

from pollux import Pollux
from pollux.app.operations.runs import RunRequest
from pollux.clock import FakeClock
from pollux.errors import Illegible, StoreTimeout, Unreadable
from pollux.model import DRAIN, Cause, Dead, Job, NotePut, Outcome, drain_key, run_of
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore

# What they do, by which verb of the store, and in which words it is on record.
CHANGES = {
    "put": (lambda app: app.put_jobs([Job(id="new", handler="h")]), "put_jobs", ["put new"]),
    "put a crowd": (
        lambda app: app.put_jobs([Job(id=f"j{n:02}", handler="h") for n in range(21)]),
        "put_jobs",
        ["put 21 jobs"],
    ),
    "delete": (lambda app: app.operations.jobs.delete_jobs(["home"]), "delete_jobs", ["delete home"]),
    "move": (lambda app: app.operations.versions.move_jobs(["home"], 7), "move_jobs", ["move home"]),
    "finish a version": (lambda app: app.operations.versions.finish_version(9), "prune", ["finish version 9"]),
    "run now": (lambda app: app.run_now("home", id="n", anyway=True), "enqueue", ["run home"]),
    "cancel a run": (lambda app: app.cancel("waits"), "cancel", ["cancel waits"]),
    "cancel a job": (lambda app: app.cancel("home"), "cancel", ["cancel home"]),
    "cancel some": (lambda app: app.operations.runs.cancel_runs(["waits", "other"]), "cancel", ["cancel 2 runs"]),
    "revive": (lambda app: app.operations.dead_letters.revive(["dead"]), "revive", ["revive dead letters"]),
    "revive all": (lambda app: app.operations.dead_letters.revive(), "revive", ["revive dead letters"]),
    "drop": (lambda app: app.operations.dead_letters.drop(["dead"]), "prune", ["drop dead letters"]),
    "drop all": (lambda app: app.operations.dead_letters.drop(), "prune", ["drop dead letters"]),
    "pause": (lambda app: app.pause("home", reason="lunch"), "put_notes", ["pause job:home"]),
    "resume": (lambda app: app.resume(group="edge"), "put_notes", ["resume group:edge"]),
    "reset a breaker": (lambda app: app.operations.pauses.reset_breaker("db"), "put_notes", ["reset breaker db"]),
    "set": (lambda app: app.operations.settings.set_setting("pool.seats", 17), "put_notes", ["set pool.seats"]),
    "unset": (lambda app: app.operations.settings.unset_setting("log.level"), "put_notes", ["unset log.level"]),
    "drain": (lambda app: app.operations.workers.drain_workers(reason="move"), "put_notes", ["drain all workers"]),
    "make a token": (
        lambda app: app.operations.tokens.create_token("viewer", name="eve"),
        "put_notes",
        ["token create"],
    ),
    "revoke a token": (lambda app: app.operations.tokens.revoke_token("first"), "put_notes", ["token revoke"]),
    "rotate a token": (lambda app: app.operations.tokens.rotate_token("first"), "put_notes", ["token rotate"]),
}
# A new token each time it is asked for, so asking again is another change.
NEW_EACH_TIME = {"make a token", "rotate a token"}


@pytest.fixture
async def store():
    return FaultyStore(MemoryStore(FakeClock()))


@pytest.fixture
async def app(store):
    app = Pollux(store, clock=store.clock, actor="ann")
    await app.open()
    await given(app, store)
    yield app
    await app.close()


async def given(app, store):
    """A job with runs that wait and a dead letter, an empty version, a pause, a breaker, a setting, a token."""
    home, now_ms = Job(id="home", handler="h"), app.operations.now_ms()
    await store.put_jobs([JobPut(home)])
    await store.move_jobs(["home"], 9)
    await store.move_jobs(["home"], store.scheduler_version)
    await store.enqueue([run_of(home, now_ms, Cause.ENQUEUED, id="dead")])
    [run] = (await store.claim(node="n", token="t", limit=1, lease_ms=9_000)).runs
    outcome = Outcome(started_ms=now_ms, ended_ms=now_ms)
    await store.settle([Settlement("dead", run.token, Dead("gave up"), outcome)])
    await store.enqueue([run_of(home, now_ms, Cause.ENQUEUED, id=name) for name in ("waits", "other")])
    await app.pause(group="edge")
    await app.operations.settings.set_setting("log.level", "warning")
    await app.operations.storage.put_notes({"breaker:db": {"failures": 3}}, ttl_ms=60_000)
    assert await app.operations.tokens.first_token() is not None


def said(lines):
    return [f"{line.action} {line.subject}" for line in lines]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_an_operator_changes_is_on_record_by_the_write_that_changes_it(app, store, change):
    do, verb, words = CHANGES[change]
    known = len((await app.operations.audit.list_audit(limit=1_000)).lines)
    store.calls.clear()

    await do(app)

    lines = (await app.operations.audit.list_audit(limit=1_000)).lines[known:]
    assert [text.startswith(word) for text, word in zip(said(lines), words, strict=True)] == [True] * len(words)
    assert {line.actor for line in lines} == {"ann"}
    assert "log" not in store.calls, "a second call of the store"
    assert store.calls.count(verb) == 1


@pytest.mark.parametrize("change", CHANGES)
async def test_whose_answer_is_lost_has_the_change_and_its_line_once_however_often_it_is_asked_for(app, store, change):
    do, verb, words = CHANGES[change]
    known = len((await app.operations.audit.list_audit(limit=1_000)).lines)
    store.lose_answer(verb)

    with pytest.raises(StoreTimeout):
        await do(app)
    assert len((await app.operations.audit.list_audit(limit=1_000)).lines) == known + len(words)
    again = await asyncio.gather(do(app), return_exceptions=True)

    lines = (await app.operations.audit.list_audit(limit=1_000)).lines[known:]
    assert len(lines) == len(words) + (change in NEW_EACH_TIME), (said(lines), again)


@pytest.mark.parametrize("change", CHANGES)
async def test_what_the_store_refused_is_not_on_record(app, store, change):
    do, verb, _ = CHANGES[change]
    before = (await app.operations.audit.list_audit(limit=1_000)).lines
    store.fail(verb, StoreTimeout("nothing happened"))

    with pytest.raises(StoreTimeout):
        await do(app)

    assert (await app.operations.audit.list_audit(limit=1_000)).lines == before


async def test_a_crowd_that_is_put_has_one_line_with_how_many_were_changed(app):
    """Nothing is read before: the line names the first of them, and counts those that were not there so already."""
    crowd = [Job(id=f"s{n:04}", handler="h") for n in range(30)]
    await app.put_jobs(crowd)

    await app.put_jobs([*crowd, Job(id="s0007", handler="h", priority=1), Job(id="zzz", handler="h")])

    [first, line] = (await app.operations.audit.list_audit(limit=1_000)).lines[-2:]
    assert (first.subject, first.count) == ("30 jobs", 30)
    assert (line.subject, line.count) == ("32 jobs", 2)
    assert line.detail.startswith("s0000, s0001, ")


async def test_the_few_behind_a_thousand_have_a_line_each(app):
    await app.put_jobs([Job(id=f"s{n:04}", handler="h") for n in range(1_000)] + [Job(id="zzz", handler="h")])

    [line] = (await app.operations.audit.list_audit(limit=1_000)).lines[-1:]
    assert (line.subject, line.detail) == ("zzz", "now: when asked; handler h")


async def test_what_must_be_new_and_what_was_read_before_is_told_as_it_is(app):
    await app.put_jobs([Job(id="home", handler="h", priority=1), Job(id="b", handler="h")])

    lines = {line.subject: line.detail for line in (await app.operations.audit.list_audit(limit=1_000)).lines[-2:]}
    assert lines == {"home": "priority (usual) -> 1", "b": "new: when asked; handler h"}


async def test_what_could_not_be_read_before_is_not_told_as_new(app, store):
    store.fail("get_jobs", Illegible("job", [Unreadable("home", "no JSON")], [None]))
    await app.put_jobs([Job(id="home", handler="h", priority=1)])

    assert (await app.operations.audit.list_audit(limit=1_000)).lines[
        -1
    ].detail == "now: when asked; handler h; priority 1"


@pytest.mark.parametrize("change", ["drain", "resume"])
async def test_who_only_tidied_up_changed_nothing(app, store, change):
    """Somebody else was faster; what goes along is the drain of a node that is gone."""
    await app.operations.workers.drain_workers(reason="move")
    await store.put_notes([NotePut(drain_key("gone"), {"reason": "", "by": "x", "at_ms": 1})])
    before, nodes = (await app.operations.audit.list_audit(limit=1_000)).lines, store.nodes

    async def late(**asked):
        if change == "resume":
            await store.put_notes([NotePut(DRAIN)])
        return await nodes(**asked)

    store.nodes = late
    if change == "resume":
        assert await app.operations.workers.resume_workers() is False
    else:
        await app.operations.workers.drain_workers(reason="move")  # at the same moment, in the same words

    assert [note.key for note in await store.notes(f"{DRAIN}:")] == []
    assert (await app.operations.audit.list_audit(limit=1_000)).lines == before


# runs that somebody asked for: they are there, whatever becomes of the line about them


@pytest.mark.parametrize("fault", ["lose_answer", "fail"])
async def test_a_run_that_was_accepted_is_told_although_its_line_was_late_or_never_came(app, store, fault, caplog):
    getattr(store, fault)("log")
    accepted = await app.operations.runs.accept("home", id="asked")
    assert (accepted.run.id, accepted.is_new) == ("asked", True)
    assert store.struck == ["log"]
    [words] = [each.getMessage() for each in caplog.records]
    assert "accepted, and the audit log may lack the line enqueue home" in words


async def test_many_runs_that_were_accepted_are_told_likewise(app, store):
    store.lose_answer("log", times=2)
    assert len(await app.enqueue_many("home", [{}, {}])) == 2
    [told] = await app.operations.runs.enqueue_each([RunRequest("home", id="each")])
    assert told.run.id == "each"


async def test_the_batches_of_enqueue_each_that_were_accepted_before_a_failed_one_have_their_line(app, store):
    store.delay("enqueue", opened := asyncio.Event())
    opened.set()
    store.fail("enqueue", StoreTimeout("nothing happened"))

    with pytest.raises(StoreTimeout):
        await app.operations.runs.enqueue_each([RunRequest("home", id=f"e{n:04}") for n in range(1_500)])

    line = (await app.operations.audit.list_audit(limit=1_000)).lines[-1]
    assert (line.action, line.subject, line.actor) == ("enqueue", "home", "ann")
    assert line.detail.startswith("1,000 runs: e0000, e0001, ")


async def test_an_unreadable_run_among_the_existing_ones_leaves_the_new_ones_their_line(app, store):
    store.fail("get_runs", Illegible("run", [Unreadable("waits", "no JSON")], [None]))

    with pytest.raises(Illegible):
        await app.operations.runs.enqueue_each([RunRequest("home", id="waits"), RunRequest("home", id="fresh")])

    line = (await app.operations.audit.list_audit(limit=1_000)).lines[-1]
    assert (line.action, line.subject, line.detail) == ("enqueue", "home", "run fresh")


@pytest.mark.parametrize("ask", ["accept", "run_now"])
async def test_a_run_of_which_no_answer_came_is_named(app, store, ask):
    """Its id is made before the store is asked: whoever repeats it with that id asks for the same run."""
    store.lose_answer("enqueue")
    with pytest.raises(StoreTimeout, match=r"run [0-9a-f]{28} of job home may have been accepted: no answer") as told:
        await getattr(app.operations.runs, ask)("home", **({"anyway": True} if ask == "run_now" else {}))
    [run_id] = re.findall(r"`pollux runs show (\S+)` shows it", str(told.value))
    assert (await app.get_run(run_id)).job_id == "home"
