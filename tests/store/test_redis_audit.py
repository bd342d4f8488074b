"""Audit lines on Redis: written by the function that makes the change, also of a job that is too big for one call."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux.errors import StoreTimeout
from pollux.model import AuditLine, Job, NotePut, Run, RunState, chained
from pollux.store.contract import Answer, Audit, JobPut, Pruning, RunFilter
from pollux.store.redis import RedisStore
from pollux.store.redis.verbs import LINES_MAX, PIECE
from tests.servers.redis import own_url

T0 = 1_800_000_000_000
MANY = 2 * PIECE + 50
LINE = AuditLine(T0, "ann", "did", "it")
AUDIT = Audit((LINE,))


class Cut(RedisStore):
    """Counts the functions that are called, and fails them on demand.  Others may do something before each."""

    sent = 0
    left = -1  # calls that are still answered; -1: any number
    meanwhile = None

    async def open(self):
        await super().open()
        link = self.backend.link()
        run = link.run

        async def cut(function, **arguments):
            if self.meanwhile is not None:
                await self.meanwhile(function, arguments)
            if not self.left:
                raise StoreTimeout("no answer")
            self.left -= self.left > 0
            self.sent += 1
            return await run(function, **arguments)

        link.run = cut


@pytest.fixture
async def store():
    store = Cut(own_url("on-record"), deadline_ms=60_000)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(store):
    other = RedisStore(store.backend.url)
    await other.open()
    yield other
    await other.close()


def done(answers):
    return [each.id for each in answers if each.answer is Answer.OK]


async def counted(store):
    """How many items each line counts."""
    return [line.count for line in (await store.read_log(limit=1_000)).lines]


async def cost(store, call):
    before = store.sent
    await call
    return store.sent - before


async def check_chain(store):
    before = ""
    for nth, line in enumerate((await store.read_log(limit=1_000)).lines, 1):
        assert line.seq == nth
        assert line.chain == chained(replace(line, chain=""), before=before)
        before = line.chain


async def crowd(store, many=MANY):
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    runs = [Run(f"r{n:03}", "big", T0, visible_ms=T0) for n in range(many)]
    for start in range(0, many, 1_000):
        await store.enqueue(runs[start : start + 1_000], now_ms=T0)


async def test_a_change_and_its_line_are_one_call_whatever_others_write(store, other):
    for nth, name in enumerate("abc"):
        put = JobPut(Job(id=name, handler="h"), revision=0)
        assert await cost(store, store.put_jobs([put], audit=AUDIT)) == 1
        await other.log([LINE])
        assert await cost(store, store.put_notes([NotePut(name, nth)], audit=AUDIT)) == 1
    assert await cost(store, store.delete_jobs(["a", "nobody"], audit=AUDIT)) == 1

    assert await counted(store) == [1, 0, 1] * 3 + [1]
    await check_chain(store)


async def test_what_changes_nothing_has_no_line(store):
    assert await store.delete_jobs(["nobody"], audit=AUDIT) == [Answer.LOST]
    assert await store.cancel(run_ids=["nobody"], audit=AUDIT)
    assert await store.prune(Pruning(ids=("nobody",)), audit=AUDIT) == 0
    assert await store.prune(Pruning(version=9), audit=AUDIT) == 0

    assert await counted(store) == []


async def test_a_line_of_each_item_goes_with_that_item_alone(store):
    await store.put_jobs([JobPut(Job(id="b", handler="h"))])
    lines = tuple(AuditLine(T0, "ann", "put", name) for name in "abc")
    puts = [JobPut(Job(id=name, handler="h"), revision=0) for name in "abc"]

    await store.put_jobs(puts, audit=Audit(lines, each=True))

    assert [line.subject for line in (await store.read_log()).lines] == ["a", "c"]
    await check_chain(store)


async def test_the_chain_goes_over_all_fields_in_any_writing(store):
    """The server hashes the same bytes as `chained`, and what it appends to the JSON is read as it was meant."""
    texts = ["", "plain", 'a "quoted" \\ line\nand\ta tab', "äöü ☃ \U0001f600", '"chain":"ff"', "x" * 5_000]
    lines = [AuditLine(T0 + n, text, "did", text[::-1], text, count=n) for n, text in enumerate(texts)]

    await store.log(lines)
    await store.put_notes([NotePut("n", 1)], audit=AUDIT)

    found = (await store.read_log()).lines
    assert [replace(line, seq=0, chain="") for line in found[:-1]] == lines
    await check_chain(store)


async def test_many_lines_are_hashed_in_parts(store):
    lines = [AuditLine(T0, "ann", "did", f"{n}") for n in range(2 * LINES_MAX + 1)]

    assert await cost(store, store.log(lines)) == 3

    assert [line.subject for line in (await store.read_log(limit=1_000)).lines] == [line.subject for line in lines]
    await check_chain(store)


async def test_a_crowd_of_changes_by_many_processes_makes_one_chain(store):
    handles = [store, *[store.twin() for _ in range(7)]]
    for handle in handles[1:]:
        await handle.open()
    notes = [
        handle.put_notes([NotePut(f"{n}-{m}", 1)], audit=AUDIT) for n, handle in enumerate(handles) for m in range(20)
    ]

    assert await asyncio.gather(*notes) == [[Answer.OK]] * 160

    assert await counted(store) == [1] * 160
    await check_chain(store)
    for handle in handles[1:]:
        await handle.close()


async def test_a_cancel_that_is_cut_off_has_its_line_and_the_same_again_counts_the_rest(store):
    await crowd(store)
    for answered, changed, counts in ((0, 0, []), (1, PIECE, [MANY])):
        store.left = answered
        with pytest.raises(StoreTimeout):
            await store.cancel(job_id="big", audit=AUDIT, now_ms=T0)
        store.left = -1
        assert ((await store.counts()).ready, await counted(store)) == (MANY - changed, counts)

    answers = await store.cancel(job_id="big", audit=AUDIT, now_ms=T0)

    assert [each.answer for each in answers] == [Answer.OK] * (MANY - PIECE)
    assert await counted(store) == [MANY, MANY - PIECE]
    assert (await store.counts()).ready == 0


async def test_a_delete_that_is_cut_off_is_on_record_and_what_it_left_never_runs(store):
    await crowd(store)
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.delete_jobs(["big"], audit=AUDIT, now_ms=T0)
    store.left = -1
    assert (await store.get_jobs(["big"]), await counted(store)) == ([None], [1])
    assert (await store.counts()).ready == MANY - PIECE

    claimed = await store.claim(node="n", token="t", limit=MANY, lease_ms=9_000, now_ms=T0)

    assert (claimed.runs, (await store.counts()).ready) == ((), 0)
    assert await store.delete_jobs(["big"], audit=AUDIT, now_ms=T0) == [Answer.LOST]
    assert await counted(store) == [1]


async def test_a_delete_that_was_cut_off_ends_what_was_left_when_it_is_asked_for_again(store):
    """Also runs that nobody would claim: they wait at the gate."""
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    held = [Run(f"h{n:03}", "big", T0, visible_ms=T0, gated=True, state=RunState.HELD) for n in range(MANY)]
    await store.enqueue(held, now_ms=T0)
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.delete_jobs(["big"], audit=AUDIT, now_ms=T0)
    store.left = -1
    assert (await store.counts()).held == MANY - PIECE

    assert await store.delete_jobs(["big", "big"], audit=AUDIT, now_ms=T0) == [Answer.LOST] * 2

    assert ((await store.counts()).held, await counted(store)) == (0, [1])


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


async def test_a_very_big_job_is_cancelled_part_by_part_and_whoever_is_cut_off_has_come_that_far(store):
    await crowd(store, 3_000)
    for parts in (1, 3):
        before = (await store.counts()).ready
        store.left = parts
        with pytest.raises(StoreTimeout):
            await store.cancel(job_id="big", audit=AUDIT, now_ms=T0)
        store.left = -1
        assert (await store.counts()).ready == before - parts * PIECE
    parts = (3_000 - 4 * PIECE) // PIECE

    assert await cost(store, store.cancel(job_id="big", audit=AUDIT, now_ms=T0)) <= parts + 1

    assert (await store.counts()).ready == 0
    assert await counted(store) == [3000, 2750, 2000]


async def leased(store, many):
    await store.put_jobs([JobPut(Job(id="big", handler="h"))], now_ms=T0)
    await store.enqueue([Run(f"r{n:03}", "big", T0, visible_ms=T0) for n in range(many)], now_ms=T0)
    claimed = await store.claim(node="n", token="t", limit=many, lease_ms=9_000, now_ms=T0)
    assert len(claimed.runs) == many


async def test_a_big_job_whose_runs_were_asked_to_stop_makes_no_line_when_it_is_cancelled_again(store):
    await leased(store, MANY)
    assert len(done(await store.cancel(job_id="big", audit=AUDIT, now_ms=T0))) == MANY

    again = await store.cancel(job_id="big", audit=AUDIT, now_ms=T0)

    assert [each.answer for each in again] == [Answer.ALREADY] * MANY
    assert await counted(store) == [MANY]


async def test_the_line_goes_with_the_first_part_that_does_anything(store):
    await leased(store, MANY)
    await store.cancel(job_id="big", now_ms=T0)
    await store.enqueue([Run(f"s{n:03}", "big", T0, visible_ms=T0) for n in range(MANY)], now_ms=T0)

    answers = await store.cancel(job_id="big", audit=AUDIT, now_ms=T0)

    assert [each.id for each in answers] == [f"{letter}{n:03}" for letter in "rs" for n in range(MANY)]
    assert done(answers) == [f"s{n:03}" for n in range(MANY)]
    assert await counted(store) == [MANY]


async def test_a_leased_run_that_is_named_with_its_big_job_is_answered_and_told_of_once(store):
    await crowd(store)
    await store.enqueue([Run("z", "big", T0, visible_ms=T0, priority=1)], now_ms=T0)
    assert [run.id for run in (await store.claim(node="n", token="t", limit=1, lease_ms=9_000, now_ms=T0)).runs] == [
        "z"
    ]

    answers = await store.cancel(run_ids=["z", "r001", "r400"], job_id="big", audit=AUDIT, now_ms=T0)

    assert [each.id for each in answers[:3]] == ["z", "r001", "r400"]
    assert len({each.id for each in answers}) == len(answers) == MANY + 1
    assert (len(done(answers)), await counted(store)) == (MANY + 1, [MANY + 1])


async def test_the_rest_of_a_move_leaves_a_job_alone_that_somebody_has_moved_on(store, other):
    await crowd(store)

    async def move_on(verb, arguments):
        if verb == "move_jobs" and arguments["after"] is not False:
            await other.move_jobs(["big"], 8, audit=AUDIT, now_ms=T0)

    store.meanwhile = move_on
    assert await store.move_jobs(["big"], 7, audit=AUDIT, now_ms=T0) == [Answer.OK]

    [job] = await store.get_jobs(["big"])
    assert (job.scheduler_version, job.revision, await counted(store)) == (8, 3, [1, 1])
    runs = await store.get_runs([f"r{n:03}" for n in range(MANY)])
    assert {run.scheduler_version for run in runs} == {8}
