"""Half-open connections: idle listeners, and locks of clients that are suspended."""

import asyncio
import contextlib
import socket
import time

import pytest

from pollux.errors import StoreError
from pollux.model import Cause, Firing, Job, Plan, RunState, run_of
from pollux.store.contract import Answer
from pollux.store.tcp_keepalive import EVERY_S, IDLE_S, TIMES, keep_alive
from pollux.testing.conformance.builders import T0, given_jobs
from tests.chaos.yard import wait_until
from tests.faults.backends import POSTGRES, REDIS, opened

PROBED_S = IDLE_S + EVERY_S * TIMES
BACKOFF_S, SLACK_S = 3.0, 10.0
DEADLINE_MS = 500
SILENT_S = 2.5  # longer than the lease after which it looks once more
LOST_S = 0.5  # the farewells are lost on their way


@pytest.mark.parametrize("backend", [REDIS], ids=["redis"])  # on PostgreSQL whoever waits looks every few seconds
async def test_an_idle_worker_whose_line_died_without_a_word_hears_again_within_the_time_of_its_probes(
    far_yard, partition
):
    """The other end forgets its connections while no word of that can come through, as after a power cut."""
    yard = far_yard
    worker = yard.node("plans=0", store=partition.url, before=partition.before)
    await yard.is_up(worker)
    await (await yard.eye()).put_jobs([Job(id="plain", handler="plain")])
    await yard.ask("plain", "before")
    await yard.quiet()
    said = -1
    while said != partition.proxy.requests:  # nobody plans: soon it has nothing to do, and says nothing
        said = partition.proxy.requests
        await asyncio.sleep(SILENT_S)

    partition.cut()
    partition.proxy.cut()
    await asyncio.sleep(LOST_S)
    partition.heal()
    partition.proxy.mend()
    healed = time.monotonic()
    await yard.ask("plain", "after")
    await yard.started(worker, "after", seconds=PROBED_S + BACKOFF_S + SLACK_S)
    print(f"cut by {partition.how}; heard again after {time.monotonic() - healed:.1f} s")
    await yard.quiet()
    await yard.stop(worker)
    assert {run.id: (run.state, run.fence) for run in await yard.runs()} == dict.fromkeys(
        ("before", "after"), (RunState.DONE, 1)
    )


async def test_every_line_to_a_server_is_probed(backend, url, monkeypatch):
    """Asked of the sockets themselves, the one that listens included."""
    made = []
    create = socket.socket.setsockopt
    monkeypatch.setattr(socket.socket, "setsockopt", lambda line, *what: (made.append(what), create(line, *what))[1])
    async with opened(backend, url) as store:
        waits = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=1_000, wait_ms=60_000))

        async def both_are_probed():
            return made.count((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)) >= 2

        await wait_until(both_are_probed, "a line that is probed for calls, and one for rings")
        assert (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S) in made
    with contextlib.suppress(StoreError):  # closed while it looked, or while it waited
        await waits


def test_a_line_inside_the_machine_is_not_probed():
    one, other = socket.socketpair()
    with one, other:
        keep_alive(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


@pytest.fixture
async def stores(backend, url, far_url):
    async with opened(backend, url) as near, opened(backend, far_url, deadline_ms=DEADLINE_MS) as far:
        yield near, far


@pytest.mark.parametrize("backend", [POSTGRES], ids=["postgres"])
async def test_the_locks_of_a_leader_that_stands_still_inside_its_write_are_let_go_by_its_deadline(stores, proxy):
    """Its plan is written but for the last word, which never comes; another one must be able to lead."""
    near, far = stores
    [job] = await given_jobs(near, "job")
    term = await near.elect("still", ttl_ms=1)
    feed = await near.feed(limit=9)
    proxy.hold(lambda request: b"COMMIT" in request)
    firing = Firing(run_of(job, T0, Cause.SCHEDULE), revision=job.revision, next_due_ms=None)
    plan = Plan(consumed=tuple(item.id for item in feed.items), firings=(firing,))
    stands = asyncio.ensure_future(far.advance(term.number, plan))

    async def stands_before_the_door():
        return proxy.held == 1

    await wait_until(stands_before_the_door, "the last word")
    async with asyncio.timeout(DEADLINE_MS / 1000 + SLACK_S):
        taken = await near.elect("other", ttl_ms=15_000)
    assert (taken.holder, taken.number) == ("other", term.number + 1)
    with pytest.raises(Exception, match="no answer"):
        await stands
    assert (await near.feed(limit=9)).items == feed.items, "nothing of the plan is there"
    assert (await near.advance(term.number, plan)).answer is Answer.FENCED


class First:
    """Is it the first request to listen?"""

    def __init__(self):
        self.seen = 0

    def __call__(self, request):
        self.seen += b"LISTEN" in request
        return b"LISTEN" in request and self.seen == 1


@pytest.mark.parametrize("backend", [POSTGRES], ids=["postgres"])
async def test_a_question_to_listen_that_hangs_is_asked_again(backend, far_url, proxy, monkeypatch):
    """Otherwise the worker would look once a second for ever."""
    monkeypatch.setattr("pollux.store.postgres.wakeup.LISTEN_S", DEADLINE_MS / 1000)
    first = First()
    async with opened(backend, far_url) as store:
        proxy.hold(first)
        claim = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=9_000, wait_ms=60_000))

        async def hangs():
            return proxy.held == 1

        await wait_until(hangs, "the question")
        proxy.forget()

        async def is_asked_again():
            return first.seen == 2

        await wait_until(is_asked_again, "another question", seconds=DEADLINE_MS / 1000 + BACKOFF_S + SLACK_S)
    with contextlib.suppress(StoreError):  # its own line is as dead as the other
        await claim
