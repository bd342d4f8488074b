"""Redis makes no hashes: what does it cost to have the line in the same write, and what if a job is too big for one?"""

import asyncio

import pytest

from pollux.errors import StoreTimeout
from pollux.model import AuditLine, Job, NotePut, Run, RunState
from pollux.store.contract import Answer, JobPut, RunFilter
from pollux.store.redis import RedisStore
from pollux.store.redis.handle import PIECE
from tests.servers.redis import own_url

T0 = 1_800_000_000_000
MANY = 2 * PIECE + 50
LINE = AuditLine(T0, "ann", "did", "it")


class Cut(RedisStore):
    """Counts what is sent, and is cut off when it is told to."""

    sent = 0
    left = -1  # calls that are still answered; -1: any number

    async def _run(self, verb, now_ms=None, **arguments):
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
    store = Cut(own_url("on-record"))
    await store.open()
    yield store
    await store.close()


async def lines(store):
    return [line.subject for line in (await store.read_log(limit=1_000)).lines]


async def cost(store, call):
    before = store.sent
    await call
    return store.sent - before


async def crowd(store):
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    await store.enqueue([Run(f"r{n:03}", "big", T0, visible_ms=T0) for n in range(MANY)], now_ms=T0)


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


async def test_a_crowd_of_changes_at_once_is_not_refused(store):
    """The log has one end, and each of them wants to write there."""
    answers = await asyncio.gather(*(store.put_notes([NotePut(f"n{n}", n)], audit=told) for n in range(100)))

    assert answers == [[Answer.OK]] * 100
    assert await lines(store) == ["1"] * 100


async def test_a_cancel_that_is_cut_off_has_its_line_and_the_same_again_tells_of_the_rest(store):
    """First it looks at all parts, then it writes the first one, with the line."""
    await crowd(store)
    looks = -(-MANY // PIECE)
    for answered, changed, said in ((1, 0, []), (looks, 0, []), (looks + 1, PIECE, [f"{MANY}"])):
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


async def test_a_job_that_is_made_anew_meanwhile_keeps_its_runs(store):
    """What is left of the old one ends; what came since is another's."""
    await crowd(store)
    again = store.twin()
    await again.open()
    begun = store._cancel_part

    async def late(now_ms, asked):
        if asked["waiting"] and asked["after"] == "":
            await again.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
            await again.enqueue([Run("new", "big", T0, visible_ms=T0)], now_ms=T0)
        return await begun(now_ms, asked)

    store._cancel_part = late
    await store.delete_jobs(["big"], now_ms=T0)
    await again.close()

    assert [run.id for run in (await store.list_runs(RunFilter(job_id="big"), limit=1)).runs] == ["new"]
    assert (await store.counts()).ready == 1
