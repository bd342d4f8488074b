"""Progress that handlers report, and where it is shown."""

import asyncio

import pytest

from pollux.clock import FakeClock
from pollux.errors import StoreTimeout
from pollux.model import PROGRESS_CHARS_MAX, Job, Run, RunState
from pollux.registry import Context, Handler
from pollux.runtime.renewer import PROGRESS_APART_MS
from tests.runtime.fakes import LOST, Shop, settle_down
from tests.runtime.test_renewer import a_renewer, end


def a_context() -> Context:
    return Context(Run("r", "j", 0), Job(id="j", handler="h"), Handler("h", len), FakeClock(), 0)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (lambda ctx: ctx.progress(0.4), "40%"),
        (lambda ctx: ctx.progress(1), "100%"),
        (lambda ctx: ctx.progress(3, of=10), "30% (3 of 10)"),
        (lambda ctx: ctx.progress(3_500, of=10_000), "35% (3,500 of 10,000)"),
        (lambda ctx: ctx.progress("reading page 3"), "reading page 3"),
        (lambda ctx: ctx.progress(0.5, "reading"), "50% reading"),
        (lambda ctx: ctx.progress(3, "pages", of=10), "30% (3 of 10) pages"),
        (lambda ctx: ctx.progress(3, of=0), "300%"),
        (lambda ctx: ctx.progress("a\x1b[31mb\nc\ud800"), "a\\x1b[31mb\\nc\\ud800"),
        (lambda ctx: ctx.progress("x" * 10**7), "x" * PROGRESS_CHARS_MAX),
        (lambda ctx: ctx.progress("  "), ""),
    ],
)
def test_progress_is_one_short_line_that_every_terminal_can_take(said, text):
    ctx = a_context()
    said(ctx)
    assert ascii(ctx.last_progress) == ascii(text)


class Word(str):
    """Text of a kind of its own, as libraries have it."""

    __slots__ = ()

    def __getitem__(self, _):
        return self

    def strip(self):
        return self


def test_progress_is_plain_text_and_is_said_by_nothing_else():
    """It goes to the store with that of all other runs: one that could not be written would stop them all."""
    ctx = a_context()
    ctx.progress(Word("reading"))
    assert (type(ctx.last_progress), ctx.last_progress) == (str, "reading")
    with pytest.raises(AttributeError):
        ctx.last_progress = 5
    assert ctx.last_progress == "reading"


async def speaking(shop, *ids):
    """Runs whose handlers wait; their contexts by id."""
    contexts = {}

    async def speak(ctx):
        contexts[ctx.run.id] = ctx
        await asyncio.Event().wait()

    job = await shop.job("job", speak)
    await shop.enqueue(job, *ids)
    await shop.dispatcher.turn()
    await settle_down()
    return contexts


def told(shop) -> list[dict[str, str]]:
    """What each renew call said, by run."""
    return [{each.run_id: each.progress for each in args[0]} for args, _ in shop.store.sent("renew")]


async def test_what_handlers_say_reaches_the_store_in_one_batch():
    shop = await Shop(seats=3).open()
    said = await speaking(shop, "r1", "r2", "r3")
    renewer = a_renewer(shop)
    said["r1"].progress(0.1)
    said["r2"].progress("begun")

    await renewer.turn()

    assert told(shop) == [{"r1": "10%", "r2": "begun"}], "the silent one costs nothing"
    assert (await shop.run("r1")).progress == "10%"
    assert (await shop.run("r3")).progress == ""
    await end(shop)


async def test_progress_is_told_at_most_once_a_second_and_only_if_it_is_new():
    shop = await Shop().open()
    said = await speaking(shop, "r1")
    renewer = a_renewer(shop)
    for n in range(20):
        said["r1"].progress(n, of=20)
        await renewer.turn()
        await shop.clock.advance(PROGRESS_APART_MS / 10)
    assert len(told(shop)) == 2
    assert (await shop.run("r1")).progress == "50% (10 of 20)"

    await shop.clock.advance(PROGRESS_APART_MS)
    await renewer.turn()
    assert (await shop.run("r1")).progress == "95% (19 of 20)"
    for _ in range(5):
        await shop.clock.advance(PROGRESS_APART_MS)
        await renewer.turn()
    assert len(told(shop)) == 3, "nothing new was said"
    await end(shop)


async def test_telling_progress_renews_the_lease_as_well():
    shop = await Shop().open()
    said = await speaking(shop, "r1")
    renewer = a_renewer(shop)
    await shop.clock.advance(5_000)
    said["r1"].progress(0.5)
    await renewer.turn()
    assert (await shop.run("r1")).lease_until_ms == shop.clock.now_ms() + 30_000
    await shop.clock.advance(6_000)
    await renewer.turn()
    assert len(told(shop)) == 1, "the next renewal counts from there"
    await end(shop)


async def test_progress_that_got_no_answer_is_told_again():
    shop = await Shop().open()
    said = await speaking(shop, "r1")
    renewer = a_renewer(shop)
    said["r1"].progress(0.5)
    shop.store.faults["renew"] = [StoreTimeout("no answer"), LOST]
    for _ in range(2):
        with pytest.raises(StoreTimeout):
            await renewer.turn()

    await renewer.turn()

    assert told(shop) == [{"r1": "50%"}] * 3
    await end(shop)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_words_travel_with_the_settlement(fails):
    shop = await Shop().open()

    async def work(ctx):
        ctx.progress("page 3")
        if fails:
            raise ValueError("page 3 is torn")

    job = await shop.job("job", work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    await settle_down()
    await shop.settler.turn()

    run = await shop.run("r1")
    assert run.state is (RunState.READY if fails else RunState.DONE)
    assert run.progress == "page 3"
    assert shop.store.count("renew") == 0


async def test_what_the_store_knows_is_not_sent_again_with_the_settlement():
    shop = await Shop().open()
    said = await speaking(shop, "r1", "r2")
    said["r1"].progress("known")
    await a_renewer(shop).turn()
    for attempt in tuple(shop.worker.running):
        attempt.cancel("enough")
    await settle_down()
    await shop.settler.turn()
    [((settlements,), _)] = shop.store.sent("settle")
    assert [settlement.progress for settlement in settlements] == ["", ""]


async def test_a_handler_in_a_thread_is_heard_too():
    shop = await Shop().open()
    done, began = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work(ctx):
        ctx.progress(0.25)
        loop.call_soon_threadsafe(began.set)
        ctx.wait_cancelled(20)
        loop.call_soon_threadsafe(done.set)

    job = await shop.job("job", work)
    await shop.enqueue(job, "r1")
    await shop.dispatcher.turn()
    async with asyncio.timeout(60):
        await began.wait()
        await a_renewer(shop).turn()
        assert (await shop.run("r1")).progress == "25%"
        await end(shop)
        await done.wait()
    shop.worker.threads.stop()
