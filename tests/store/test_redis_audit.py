"""Redis makes no hashes: what does it cost to have the line in the same write, and what if a job is too big for one?"""

import asyncio

import pytest

from pollux import Pollux
from pollux.errors import StoreBusy, StoreTimeout
from pollux.model import AuditLine, Job, NotePut, Run, RunState
from pollux.store.contract import Answer, JobPut, RunFilter
from pollux.store.redis import RedisStore
from pollux.store.redis.handle import PIECE
from tests.servers.redis import own_url

T0 = 1_800_000_000_000
MANY = 2 * PIECE + 50
LINE = AuditLine(T0, "ann", "did", "it")


class Cut(RedisStore):
    """Counts what is sent, and is cut off when it is told to.  Others may do something before a call gets there."""

    sent = 0
    left = -1  # calls that are still answered; -1: any number
    meanwhile = None

    async def _run(self, verb, now_ms=None, **arguments):
        if self.meanwhile is not None:
            await self.meanwhile(verb, arguments)
        if not self.left:
            raise StoreTimeout("no answer")
        self.left -= self.left > 0
        self.sent += 1
        return await super()._run(verb, now_ms, **arguments)


def told(answers):
    """One line, which says how many it was."""
    done = sum(getattr(each, "answer", each) is Answer.OK for each in answers)
    return [AuditLine(T0, "ann", "did", f"{done}")] if done else []


@pytest.fixture
async def store():
    store = Cut(own_url("on-record"), deadline_ms=60_000)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(store):
    other = RedisStore(store._url)
    await other.open()
    yield other
    await other.close()


def before_writes(do, times):
    """Somebody does this between each look or guess and the next write, so many times."""
    left = iter(range(times))

    async def meanwhile(verb, arguments):
        if arguments.get("told", {}).get("said") != "?" and (nth := next(left, None)) is not None:
            await do(nth)

    return meanwhile


def done(answers):
    return [each.id for each in answers if each.answer is Answer.OK]


async def lines(store):
    return [line.subject for line in (await store.read_log(limit=1_000)).lines]


async def cost(store, call):
    before = store.sent
    await call
    return store.sent - before


async def crowd(store, many=MANY):
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    runs = [Run(f"r{n:03}", "big", T0, visible_ms=T0) for n in range(many)]
    for start in range(0, many, 1_000):
        await store.enqueue(runs[start : start + 1_000], now_ms=T0)


async def test_a_change_and_its_line_are_one_call_while_the_end_of_the_log_is_known(store):
    new = [JobPut(Job(id=name, handler="h"), revision=0) for name in "abc"]
    assert await cost(store, store.put_jobs(new[:1], audit=told)) == 1
    assert await cost(store, store.put_jobs(new[1:2], audit=told)) == 1
    assert await cost(store, store.put_notes([NotePut("n", 1)], audit=told)) == 1
    assert await cost(store, store.delete_jobs(["a"], audit=told)) == 1

    other = store.twin()
    await other.open()
    await other.log([LINE])
    await other.close()

    assert await cost(store, store.put_jobs(new[2:], audit=told)) == 2
    assert await cost(store, store.log([LINE])) == 1


async def test_an_answer_that_is_not_as_hoped_costs_one_call_more(store):
    assert await cost(store, store.delete_jobs(["nobody"], audit=told)) == 2
    assert await lines(store) == []


async def test_a_job_that_was_read_is_put_over_in_one_call(store):
    for priority in (1, 2, 3):
        await store.put_jobs([JobPut(Job(id="a", handler="h", priority=priority))])
    await store.get_jobs(["a"])

    assert await cost(store, store.put_jobs([JobPut(Job(id="a", handler="h", priority=1))], audit=told)) == 1


async def test_a_crowd_of_changes_at_once_is_not_refused(store):
    """The log has one end, and each of them wants to write there."""
    answers = await asyncio.gather(*(store.put_notes([NotePut(f"n{n}", n)], audit=told) for n in range(100)))

    assert answers == [[Answer.OK]] * 100
    assert await lines(store) == ["1"] * 100


async def test_a_cancel_that_is_cut_off_has_its_line_and_the_same_again_tells_of_the_rest(store):
    """First it looks at one part, then it writes that, with the line."""
    await crowd(store)
    for answered, changed, said in ((1, 0, []), (2, PIECE, [f"{MANY}"])):
        store.left = answered
        with pytest.raises(StoreTimeout):
            await store.cancel(job_id="big", audit=told, now_ms=T0)
        store.left = -1
        assert ((await store.counts()).ready, await lines(store)) == (MANY - changed, said)

    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert [each.answer for each in answers] == [Answer.OK] * (MANY - PIECE)
    assert await lines(store) == [f"{MANY}", f"{MANY - PIECE}"]
    assert (await store.counts()).ready == 0


async def test_a_delete_that_is_cut_off_is_on_record_and_what_it_left_never_runs(store):
    await crowd(store)
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.delete_jobs(["big"], audit=told, now_ms=T0)
    store.left = -1
    assert (await store.get_jobs(["big"]), await lines(store)) == ([None], ["1"])
    assert (await store.counts()).ready == MANY - PIECE

    claimed = await store.claim(node="n", token="t", limit=MANY, lease_ms=9_000, now_ms=T0)

    assert (claimed.runs, (await store.counts()).ready) == ((), 0)
    assert await store.delete_jobs(["big"], audit=told, now_ms=T0) == [Answer.LOST]
    assert await lines(store) == ["1"]


async def test_a_delete_that_was_cut_off_ends_what_was_left_when_it_is_asked_for_again(store):
    """Also runs that nobody would claim: they wait at the gate."""
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    held = [Run(f"h{n:03}", "big", T0, visible_ms=T0, gated=True, state=RunState.HELD) for n in range(MANY)]
    await store.enqueue(held, now_ms=T0)
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.delete_jobs(["big"], audit=told, now_ms=T0)
    store.left = -1
    assert (await store.counts()).held == MANY - PIECE

    assert await store.delete_jobs(["big", "big"], audit=told, now_ms=T0) == [Answer.LOST] * 2

    assert ((await store.counts()).held, await lines(store)) == (0, ["1"])


async def test_a_job_that_is_made_anew_meanwhile_keeps_its_runs(store, other):
    """What is left of the old one ends; what came since is another's."""
    await crowd(store)

    async def add_again(verb, arguments):
        if verb == "finish":
            store.meanwhile = None
            await other.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
            await other.enqueue([Run("new", "big", T0, visible_ms=T0)], now_ms=T0)

    store.meanwhile = add_again
    await store.delete_jobs(["big"], now_ms=T0)

    assert store.meanwhile is None
    assert [run.id for run in (await store.list_runs(RunFilter(job_id="big"), limit=1)).runs] == ["new"]
    assert (await store.counts()).ready == 1


async def test_a_crowd_of_changes_by_many_processes_is_not_refused(store):
    """Each has its own belief where the log ends."""
    handles = [store, *[store.twin() for _ in range(7)]]
    for handle in handles[1:]:
        await handle.open()
    notes = [
        handle.put_notes([NotePut(f"{n}-{m}", 1)], audit=told) for n, handle in enumerate(handles) for m in range(20)
    ]

    assert await asyncio.gather(*notes) == [[Answer.OK]] * 160

    assert await lines(store) == ["1"] * 160
    for handle in handles[1:]:
        await handle.close()


async def test_a_change_whose_guess_is_often_wrong_is_made_in_the_end(store, other):
    store.meanwhile = before_writes(lambda _: other.log([LINE]), 25)

    assert await store.put_notes([NotePut("n", 1)], audit=told) == [Answer.OK]

    assert await lines(store) == ["it"] * 25 + ["1"]


async def test_who_is_always_outrun_is_told_by_whom_and_that_nothing_was_changed(store, other):
    store._deadline_ms = 100
    store.meanwhile = before_writes(lambda _: other.log([LINE]), 1_000)
    with pytest.raises(StoreBusy, match=r"put_notes changed nothing .*others wrote to the audit log .*try again"):
        await store.put_notes([NotePut("n", 1)], audit=told)

    store.meanwhile = before_writes(lambda nth: other.put_notes([NotePut("n", None if nth % 2 else 1)]), 1_000)
    with pytest.raises(StoreBusy, match=r"others changed the same things .*try again"):
        await store.put_notes([NotePut("n", 1)], audit=told)

    assert "1" not in await lines(store)


async def test_a_busy_job_is_cancelled_though_its_runs_end_and_come_all_the_time(store, other):
    await crowd(store)

    async def go_on(nth):
        await other.cancel(run_ids=[f"r{2 * nth:03}", f"r{2 * nth + 1:03}"], now_ms=T0)
        await other.enqueue([Run(f"a{nth:03}", "big", T0 - 1, visible_ms=T0)], now_ms=T0)

    store.meanwhile = before_writes(go_on, 200)
    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)
    store.meanwhile = None

    assert store.sent < 20
    [said] = await lines(store)
    assert MANY - 20 < len(done(answers)) <= int(said) < MANY
    left = (await store.list_runs(RunFilter(job_id="big", states=(RunState.READY,)), limit=1_000)).runs
    assert {run.id[0] for run in left} == {"a"}, "what came since is not cancelled"


@pytest.mark.parametrize(("ends", "comes", "due_ms"), [(1, 0, T0), (0, 1, T0 - 1), (1, 1, T0 - 1), (1, 1, T0 + 1)])
async def test_a_big_cancel_tells_of_those_that_it_cancels(store, other, ends, comes, due_ms):
    """Though one of them ends, or another comes before or behind them, before it is written."""
    await crowd(store)

    async def go_on(_):
        await other.cancel(run_ids=["r001"][:ends], now_ms=T0)
        await other.enqueue([Run("a", "big", due_ms, visible_ms=T0)][:comes], now_ms=T0)

    store.meanwhile = before_writes(go_on, 1)
    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert len(done(answers)) == MANY - ends
    assert await lines(store) == [f"{MANY - ends}"]
    assert (await store.counts()).ready == comes


async def test_no_run_is_cancelled_that_the_line_does_not_tell_of(store, other):
    """However late it is: they come while they are cancelled by their names."""
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    names = [f"r{n}" for n in range(9)]
    store.meanwhile = before_writes(lambda n: other.enqueue([Run(names[n], "big", T0, visible_ms=T0)], now_ms=T0), 9)

    answers = await store.cancel(run_ids=names, audit=told, now_ms=T0)

    assert (done(answers), await lines(store)) == (names, ["9"])


async def test_there_is_no_line_where_no_run_is_left_to_cancel(store, other):
    """However late it is: others cancel them, one before each try."""
    await crowd(store, 4)
    names = [f"r{n:03}" for n in range(4)]
    store.meanwhile = before_writes(lambda n: other.cancel(run_ids=[names[n]], now_ms=T0), 4)

    answers = await store.cancel(run_ids=names, audit=told, now_ms=T0)

    assert (done(answers), await lines(store)) == ([], [])


async def test_there_is_no_line_of_a_big_job_that_somebody_else_cancels_meanwhile(store, other):
    await crowd(store)
    store.meanwhile = before_writes(lambda _: other.cancel(job_id="big", now_ms=T0), 1)

    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert (done(answers), await lines(store)) == ([], [])


async def test_the_line_goes_with_the_next_part_if_somebody_else_cancels_the_first_meanwhile(store, other):
    await crowd(store)
    first = [f"r{n:03}" for n in range(PIECE)]
    store.meanwhile = before_writes(lambda _: other.cancel(run_ids=first, now_ms=T0), 1)

    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert (len(done(answers)), await lines(store)) == (MANY - PIECE, [f"{MANY - PIECE}"])
    assert (await store.counts()).ready == 0


async def test_a_very_big_job_is_cancelled_part_by_part_and_whoever_is_cut_off_has_come_that_far(store):
    await crowd(store, 3_000)
    for parts in (1, 3):
        before = (await store.counts()).ready
        store.left = 1 + parts
        with pytest.raises(StoreTimeout):
            await store.cancel(job_id="big", audit=told, now_ms=T0)
        store.left = -1
        assert (await store.counts()).ready == before - parts * PIECE
    parts = (3_000 - 4 * PIECE) // PIECE

    assert await cost(store, store.cancel(job_id="big", audit=told, now_ms=T0)) <= parts + 2

    assert (await store.counts()).ready == 0
    assert await lines(store) == ["3000", "2750", "2000"]


async def leased(store, many):
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    await store.enqueue([Run(f"r{n:03}", "big", T0, visible_ms=T0) for n in range(many)], now_ms=T0)
    claimed = await store.claim(node="n", token="t", limit=many, lease_ms=9_000, now_ms=T0)
    assert len(claimed.runs) == many


async def test_a_big_job_whose_runs_were_asked_to_stop_makes_no_line_when_it_is_cancelled_again(store):
    await leased(store, MANY)
    assert len(done(await store.cancel(job_id="big", audit=told, now_ms=T0))) == MANY

    again = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert [each.answer for each in again] == [Answer.ALREADY] * MANY
    assert await lines(store) == [f"{MANY}"]


async def test_the_line_goes_with_the_first_part_that_does_anything(store):
    await leased(store, MANY)
    await store.cancel(job_id="big", now_ms=T0)
    await store.enqueue([Run(f"s{n:03}", "big", T0, visible_ms=T0) for n in range(MANY)], now_ms=T0)

    answers = await store.cancel(job_id="big", audit=told, now_ms=T0)

    assert [each.id for each in answers] == [f"{letter}{n:03}" for letter in "rs" for n in range(MANY)]
    assert done(answers) == [f"s{n:03}" for n in range(MANY)]
    assert await lines(store) == [f"{MANY}"]


async def test_what_is_behind_the_first_part_of_a_big_job_is_not_told_of_as_cancelled(store):
    """Nobody has looked at it, and much of it was asked to stop before."""
    await leased(store, MANY)
    await store.cancel(job_id="big", now_ms=T0)
    await store.enqueue([Run(f"a{n:03}", "big", T0 - 1, visible_ms=T0) for n in range(PIECE + 1)], now_ms=T0)
    app = Pollux(store._url)
    await app.open()
    try:
        answers = await app.operations.as_actor("ann").runs.cancel("big")
    finally:
        await app.close()

    assert len(done(answers)) == PIECE + 1
    [line] = (await store.read_log()).lines
    assert line.detail == f"{PIECE} runs: a000, a001, a002, a003, a004, ... and up to {MANY + 1} behind them"


async def test_a_leased_run_that_is_named_with_its_big_job_is_answered_and_told_of_once(store):
    await crowd(store)
    await store.enqueue([Run("z", "big", T0, visible_ms=T0, priority=1)], now_ms=T0)
    assert [run.id for run in (await store.claim(node="n", token="t", limit=1, lease_ms=9_000, now_ms=T0)).runs] == [
        "z"
    ]

    answers = await store.cancel(run_ids=["z", "r001", "r400"], job_id="big", audit=told, now_ms=T0)

    assert [each.id for each in answers[:3]] == ["z", "r001", "r400"]
    assert len({each.id for each in answers}) == len(answers) == MANY + 1
    assert (len(done(answers)), await lines(store)) == (MANY + 1, [f"{MANY + 1}"])


async def test_the_rest_of_a_move_leaves_a_job_alone_that_somebody_has_moved_on(store, other):
    await crowd(store)

    async def move_on(verb, arguments):
        if verb == "move_jobs" and arguments["after"] is not False:
            await other.move_jobs(["big"], 8, audit=told, now_ms=T0)

    store.meanwhile = move_on
    assert await store.move_jobs(["big"], 7, audit=told, now_ms=T0) == [Answer.OK]

    [job] = await store.get_jobs(["big"])
    assert (job.scheduler_version, job.revision, await lines(store)) == (8, 3, ["1", "1"])
    runs = await store.get_runs([f"r{n:03}" for n in range(MANY)])
    assert {run.scheduler_version for run in runs} == {8}


def test_a_store_that_is_opened_in_another_loop_writes_its_lines_there():
    store = RedisStore(own_url("on-record-loops"))

    async def crowd_of(name):
        await store.open()
        try:
            notes = [store.put_notes([NotePut(f"{name}{n}", n)], audit=told) for n in range(20)]
            assert await asyncio.gather(*notes) == [[Answer.OK]] * 20
        finally:
            await store.close()

    asyncio.run(crowd_of("a"))
    asyncio.run(crowd_of("b"))
