"""Sentinels: the store finds the primary, and the next one; three real sentinels, a primary, a replica."""

import asyncio

import pytest
from redis.exceptions import ResponseError

from pollux.errors import StoreRefused, StoreTimeout
from pollux.model import Done, RunState
from pollux.store.contract import Answer, RunFilter
from pollux.store.redis import RedisStore
from pollux.testing.conformance.builders import T0, a_run, claim, given, given_jobs, ids, settlement
from tests.acceptance.terminal import Terminal, eventually, stopped
from tests.servers.redis import own_url
from tests.servers.redis_cluster import again, ask, hears_again, until
from tests.servers.redis_sentinel import SERVICE, Watched

pytestmark = pytest.mark.xdist_group("redis sentinel")  # they are watched once
HEARS_S = 50  # and a wait ends after 60 s


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    watched = Watched(tmp_path_factory.mktemp("watched")).start()
    yield watched
    watched.stop()


def by_hand(watched):
    """As an operator moves the primary to another machine."""
    until(lambda: _is_taken(watched), "the sentinels agree to fail over")


def _is_taken(watched):
    try:
        return bool(ask(watched.sentinels[0], "SENTINEL", "FAILOVER", SERVICE))
    except ResponseError as error:
        if "INPROG" in str(error) or "NOGOODSLAVE" in str(error):  # the last failover is not yet over
            return False
        raise


def by_death(watched):
    watched.primary.kill()


async def test_a_sentinel_that_hangs_makes_nobody_deaf(watched, opened):
    """It takes connections and says nothing; the others are believed, by calls and by whoever waits for a ring."""
    asked = []
    hung = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    store = await opened(f"{watched.url.replace('://', f'://{address},')}?namespace=hung")
    waiting = asyncio.create_task(store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000))
    try:
        await hears_again(store.backend.runs_listener)
        await given(store, a_run("b", due_ms=0))
        assert ids((await waiting).runs) == ["b"]
    finally:
        await store.close()
        for writer in asked:
            writer.close()
        hung.close()


@pytest.mark.usefixtures("only_rings")
@pytest.mark.parametrize("fail_over", [by_hand, by_death], ids=["by-hand", "by-death"])
async def test_the_new_primary_is_found_and_nobody_stays_deaf(watched, opened, fail_over):
    """With `wait=1` all that was answered is there, a lease taken before is settled after, and a ring is heard."""
    store = await opened(f"{watched.url}?namespace={fail_over.__name__}&wait=1")
    worker = await opened(f"{watched.url}?namespace={fail_over.__name__}&wait=1")
    await given(store, *(a_run(f"r{number}") for number in range(20)))
    [taken] = await claim(worker, 1)
    await claim(worker, 99)
    waiting = asyncio.create_task(
        again(lambda: worker.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000, now_ms=T0 + 5))
    )
    before = watched.primary
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(before, "CLIENT", "LIST")), "it waits")

    await asyncio.to_thread(fail_over, watched)
    await asyncio.to_thread(until, lambda: watched.primary is not before, "another one leads")
    after = watched.primary
    await again(lambda: store.settle([settlement(taken, Done())], now_ms=T0))
    assert (await again(store.counts)).leased == 19
    assert store.backend.link().homes.lost == 0
    await asyncio.to_thread(watched.follow, before)
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(after, "CLIENT", "LIST")), "it waits there")
    await again(lambda: store.enqueue([a_run("new")], now_ms=T0))

    async with asyncio.timeout(HEARS_S):
        assert ids((await waiting).runs) == ["new"]


async def test_nothing_answered_is_lost_when_the_primary_is_moved_by_hand(watched, opened):
    """The old one lives on for seconds, and one replica still follows it: its word alone must not be enough."""
    store = await opened(f"{watched.url}?namespace=moved&wait=1")
    await again(lambda: given_jobs(store, "job"))
    answered, is_enough = [], asyncio.Event()

    async def write():
        while not is_enough.is_set():
            name = f"r{len(answered)}"
            await again(lambda name=name: store.enqueue([a_run(name)], now_ms=T0))
            answered.append(name)

    async def more(count=100):
        wanted = len(answered) + count
        await asyncio.to_thread(until, lambda: len(answered) >= wanted or writing.done(), "more is written")

    writing = asyncio.create_task(write())
    await more()
    before = watched.primary
    await asyncio.to_thread(by_hand, watched)
    await asyncio.to_thread(until, lambda: watched.primary is not before, "another one leads")
    await asyncio.to_thread(watched.follow, before)
    await more()
    is_enough.set()
    await writing

    pages = [answered[first : first + 1_000] for first in range(0, len(answered), 1_000)]
    found = [run for page in pages for run in await again(lambda page=page: store.get_runs(page))]
    assert found.count(None) == 0, f"of {len(answered)}"
    assert store.backend.link().homes.lost == 0


def test_serve_and_worker_go_on_after_a_failover(watched, tmp_path):
    """What the new primary had not got may be the end of a run: it is run again when its lease ends."""
    pollux = Terminal(tmp_path)
    job = '{id: tick, python: "work:fine", interval: 200ms}'
    pollux.write("p.yaml", f"leader: {{ttl: 3s}}\npool: {{lease: 2s}}\njobs: [{job}]")
    url = f"{watched.url}?namespace=processes"

    async def seen():
        store = RedisStore(url)
        await store.open()
        found = await store.list_runs(RunFilter(job_id="tick", states=(RunState.DONE,)), limit=500)
        nodes = await store.nodes()
        await store.close()
        return [run.due_ms for run in found.runs], len(nodes)

    def done():
        return asyncio.run(again(seen))[0]

    with (
        pollux.started("serve", "-c", "p.yaml", "--store", url) as planner,
        pollux.started("worker", "-c", "p.yaml", "--store", url) as worker,
    ):
        eventually(lambda: asyncio.run(again(seen))[1] == 2, "both are there", planner)
        eventually(lambda: len(done()) >= 3, "it fires", planner)
        before = watched.primary
        before.kill()
        until(lambda: watched.primary is not before, "another one leads")
        watched.follow(before)
        since = max(done())
        eventually(lambda: sum(due > since for due in done()) >= 3, "it goes on", planner)
        assert stopped(worker).code == 0
        assert stopped(planner).code == 0
    assert len(set(done())) == len(done())


async def test_a_sentinel_that_is_down_is_passed_over(watched, opened):
    store = await opened(watched.url.replace("://", "://127.0.0.1:1,"))
    assert await store.settle([], now_ms=T0) == []
    assert [answer.answer for answer in await store.put_jobs([])] == []


async def test_a_sentinel_that_slept_through_the_last_failover_is_not_believed(watched, opened):
    """It answers first, and names a server that lives and takes writes."""
    before = watched.primary
    await asyncio.to_thread(by_hand, watched)
    await asyncio.to_thread(until, lambda: watched.primary is not before, "another one leads")
    await asyncio.to_thread(watched.follow, before)
    stale = _record(watched.sentinels[1]) | {"config-epoch": "0", "flags": "master", "port": str(shared_port())}

    async def answer(reader, writer):
        while asked := await reader.read(1_000):
            words = (
                [stale["ip"], stale["port"]]
                if b"GET-MASTER" in asked
                else [word for pair in stale.items() for word in pair]
            )
            is_question = b"SENTINEL" in asked
            writer.write(_packed(words) if is_question else b"+OK\r\n" * asked.count(b"SETINFO"))
        writer.close()

    sleeper = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = sleeper.sockets[0].getsockname()[1]
    store = await opened(f"{watched.url.replace('://', f'://127.0.0.1:{port},')}?namespace=stale")
    await given_jobs(store, "job")

    assert ask(watched.primary, "EXISTS", "pollux:stale:job:job") == 1
    sleeper.close()


def _record(sentinel):
    found = ask(sentinel, "SENTINEL", "MASTER", SERVICE)
    return dict(zip(found[::2], found[1::2], strict=True))


def _packed(words):
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)])


def shared_port():
    return int(own_url("x").partition("127.0.0.1:")[2].partition("/")[0])


async def test_sentinels_that_know_no_such_service_are_named_with_the_cure(watched):
    with pytest.raises(StoreRefused, match=r"know no such service as .*/other names; correct it in the store's URL"):
        await RedisStore(watched.url.replace(f"/{SERVICE}", "/other")).open()


async def test_a_server_behind_a_sentinels_url_is_refused_with_the_cure():
    place = own_url("x").partition("://")[2].partition("/")[0]
    with pytest.raises(StoreRefused, match=r"names no sentinel but a server .*use redis://"):
        await RedisStore(f"redis+sentinel://{place}/{SERVICE}").open()


async def test_a_sentinel_behind_a_plain_url_is_refused_with_the_cure(watched):
    with pytest.raises(StoreRefused, match=r"is a sentinel, not a server; use redis\+sentinel://"):
        await RedisStore(f"redis://127.0.0.1:{watched.sentinels[0].port}").open()


async def test_the_database_of_a_service_can_be_chosen(watched, opened):
    one = await opened(f"{watched.url}/1?namespace=db")
    zero = await opened(f"{watched.url}?namespace=db")
    await given_jobs(one, "job")

    assert (await one.counts()).jobs == 1
    assert (await zero.counts()).jobs == 0
    assert [each.answer for each in await one.enqueue([a_run("a")], now_ms=T0)] == [Answer.OK]


async def test_a_primary_that_hangs_is_left_for_the_next_one(watched, opened):
    """It is stopped, not dead: connections to it stand, and nobody answers on any of them."""
    store = await opened(f"{watched.url}?namespace=hangs&wait=1", deadline_ms=2_000)
    await given_jobs(store, "job")
    await asyncio.gather(*(store.counts() for _ in range(8)))
    before = watched.primary
    before.pause()
    await asyncio.to_thread(until, lambda: watched.primary is not before, "another one leads")

    answers = await asyncio.gather(*(store.counts() for _ in range(4)), return_exceptions=True)
    assert all(isinstance(answer, StoreTimeout) or answer.jobs == 1 for answer in answers), answers
    assert (await store.counts()).jobs == 1, "one deadline is enough to know"

    before.go_on()
    await asyncio.to_thread(watched.follow, before)
