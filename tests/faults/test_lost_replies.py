"""A call whose answer was lost, and which is sent again, has one effect.  Every verb, on a real connection.

The fault affects every request of the call in turn.  The caller gets an error of ours in time, and calls again with the
same ids; the store holds what it held before the call or after it, and never a part.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec
import pytest

from pollux.errors import StoreError, StoreTimeout
from pollux.model import Answer, AuditLine, Done, chained
from pollux.store.backend import Look
from pollux.store.contract import Claimed, Pruning, RunFilter, Store
from pollux.store.handle import VERBS
from pollux.store.memory import MemoryStore
from pollux.store.postgres import store as postgres_store
from pollux.testing.faults import Wrapped
from tests.chaos.steps import PLAIN, Claim, Step, asked, at, contents, ended, on_record, steps
from tests.faults.backends import POSTGRES, Backend, by_way_of, opened

REQUESTS_MAX = 60  # of one call
PATIENCE_S = 60.0  # far more than any call may take, deadline included
SHORT_MS = 200  # a deadline that a test can wait for

# What else may be heard instead of ok when the first call has taken effect already.
AGAIN = {**dict.fromkeys(("delete_jobs", "revive"), Answer.LOST), "put_notes": Answer.CONFLICT}

READS: dict[str, Step] = {
    "get_jobs": lambda s: s.get_jobs(["plain", "tick", "gone"]),
    "list_jobs": lambda s: s.list_jobs(),
    "due": lambda s: s.due(before_ms=at(100), limit=10),
    "feed": lambda s: s.feed(limit=100, now_ms=at(70)),
    "list_runs": lambda s: s.list_runs(RunFilter(), limit=5),
    "get_runs": lambda s: s.get_runs(["a", "b", "nobody"]),
    "counts": lambda s: s.counts(),
    "lines": lambda s: s.lines(now_ms=at(70)),
    "notes": lambda s: s.notes(now_ms=at(70)),
    "nodes": lambda s: s.nodes(now_ms=at(1)),
    "read_log": lambda s: s.read_log(),
    "dump": lambda s: s.dump(),
    "versions": lambda s: s.versions(now_ms=at(75)),
    "now": lambda s: s.now(),
    "problems": lambda s: s.problems(),
}
ASKS_NOBODY = {POSTGRES.name: {"problems"}}  # its answers to writes say it: there is nothing to lose


def reads_of(backend: Backend) -> dict[str, Step]:
    return {verb: step for verb, step in READS.items() if verb not in ASKS_NOBODY.get(backend.name, ())}


class Heard(Wrapped):
    """A store that writes down which verb was answered how."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.answers: list[tuple[str, Any]] = []

    async def call(self, verb: str, answer: Any) -> Any:
        given = await answer
        self.answers.append((verb, given.found if isinstance(given, Look) else given))
        return given


async def told(store: Store) -> Any:
    """All that it holds; a note's revision may have left out numbers, for what was undone keeps those it was given."""
    held = msgspec.json.decode(await contents(store))
    for kind, record in held["records"]:
        if kind == "note":
            record["revision"] = 0
    held["versions"] = msgspec.to_builtins(await store.versions(now_ms=at(75)))
    return held


class Struck(NamedTuple):
    """One step under fire: at which request it took effect, and how many it has."""

    effect_at: int
    requests: int


@pytest.fixture
async def near(backend, url):
    """The store by the straight way: it looks, and nothing ever happens to it."""
    async with opened(backend, url) as store:
        yield store


class Calm(NamedTuple):
    """A step to which nothing happens."""

    step: Step

    def __call__(self, store: Store) -> Awaitable[Any]:
        return self.step(store)


def short_ways() -> list[Step]:
    """Runs that are alike, claimed once and simply done: most are, and for these the stores have scripts and statements
    of their own.  Nothing else has their priority."""
    runs = [msgspec.structs.replace(asked(PLAIN, name, 68), priority=1) for name in ("p0", "p1", "p2", "alone")]
    return [
        lambda s: s.enqueue(runs[:3], now_ms=at(68)),
        lambda s: s.enqueue(runs[3:], now_ms=at(68)),
        Claim("A", "t4", 1, 69),
        Calm(Claim("A", "t5", 3, 69)),  # who had to ask twice goes the long way
        lambda s: s.settle([ended("p0", "t4:1", Done(), second=69)], now_ms=at(69)),
        lambda s: s.settle([ended(run.id, "t5:1", Done(), second=69) for run in runs[1:]], now_ms=at(69)),
    ]


def all_steps() -> list[Step]:
    """The writing verbs in their order, the script's and those it does not know."""
    records = [("job", msgspec.to_builtins(PLAIN)), ("run", msgspec.to_builtins(asked(PLAIN, "loaded", 70)))]
    return [
        *steps(),
        *short_ways(),
        lambda s: s.load(records),
        lambda s: s.move_jobs(["plain"], 1, audit=on_record("move"), now_ms=at(72)),
        lambda s: s.move_jobs(["plain"], 2, audit=on_record("move"), now_ms=at(73)),
        lambda s: s.prune(Pruning(version=1), audit=on_record("finish"), now_ms=at(74)),
    ]


async def test_every_verb_there_is_comes_under_fire():
    """A new one must be told here, or have a test of its own."""
    store = MemoryStore()
    await store.open()
    heard = Heard(store)
    for step in all_steps():
        await step(heard)
    await store.close()
    apart = {"open", "close", "log"}  # a test of its own; `close` asks nothing of which the answer counts
    assert {verb for verb, _ in heard.answers} | READS.keys() | apart == set(VERBS)


@pytest.fixture
def shortened(backend, monkeypatch):
    """How often each of the short ways was taken, where there are any."""
    gone: Counter[str] = Counter()

    def told(place: Any, name: str) -> None:
        way = getattr(place, name)

        def go(*args: Any, **options: Any) -> Any:
            gone[name] += 1
            return way(*args, **options)

        monkeypatch.setattr(place, name, go)

    if backend is POSTGRES:
        told(postgres_store, "settle_plainly")
        told(postgres_store.runs, "enqueue_plainly")
    return gone


async def test_every_writing_verb_survives_the_loss_of_every_answer_on_its_way(
    backend, url, near, far_url, proxy, shortened
):
    """The same script runs on a second store without faults: what it is answered and holds is the measure.

    One and the same handle lives through all of it, as that of a node does.
    """
    clean_url = backend.own_url("clean")
    struck: list[Struck] = []
    async with opened(backend, far_url) as far, opened(backend, clean_url) as clean:
        for number, step in enumerate(all_steps()):
            before = await told(near)
            wanted = Heard(clean)
            await step(wanted)
            after = await told(clean)
            if isinstance(step, Calm):
                await step(far)
            else:
                struck.append(await _sweep(far, proxy, near, step, number, (before, after), wanted))
    print([tuple(each) for each in struck])
    assert sum(each.effect_at > 0 for each in struck) >= 20, "few steps changed anything: the test does not bite"
    if backend is POSTGRES:
        assert min(shortened["enqueue_plainly"] - 1, shortened["settle_plainly"]) >= 2, "the clean one, and the other"


async def _sweep(far, proxy, near, step, number, held, wanted) -> Struck:
    before, after = held
    effect_at = 0
    for nth in range(1, REQUESTS_MAX):
        heard = Heard(far)
        proxy.lose_reply(nth)  # those that make a new connection count, too
        try:
            async with asyncio.timeout(PATIENCE_S):
                await step(heard)
        except StoreError:
            is_answered = False
            if not proxy.struck.is_set():
                raise  # and nothing was done to it
        else:
            is_answered = not proxy.struck.is_set()
        proxy.mend()
        left = await told(near)
        assert left == after or (not effect_at and _is_whole(left, held, wanted)), (
            f"step {number}, request {nth}: a part"
        )
        if is_answered:
            assert left == after, f"step {number}: called again, the store holds something else"
            assert_alike(heard.answers, wanted.answers)
            return Struck(effect_at, nth - 1)
        if not effect_at and left == after != before:
            effect_at = nth
    raise AssertionError(f"step {number} needs more than {REQUESTS_MAX} requests")


def _is_whole(left: Any, held: Any, wanted: Heard) -> bool:
    """Nothing of the step is there.  A claim may take ended leases back in a write of its own, each run for itself."""
    before, after = held
    if left == before or [verb for verb, _ in wanted.answers] != ["claim"]:
        return left == before
    known = [*before["records"], *after["records"]]
    return all(record in known or record[1]["lease_losses"] == 1 for record in left["records"])


def assert_alike(heard: list[tuple[str, Any]], wanted: list[tuple[str, Any]]) -> None:
    """The last of the calls was answered like the only one, or in the words for what is there already."""
    assert [verb for verb, _ in heard] == [verb for verb, _ in wanted]
    for (verb, given), (_, good) in zip(heard, wanted, strict=True):
        match verb:
            case "feed" | "prune" | "load":
                pass  # what is left to read or to do after the first call; the contents tell
            case "claim":
                assert _delivered(given) == _delivered(good)
            case "advance":
                assert given.answer is good.answer
            case _ if isinstance(good, list):
                for one, other in zip(given, good, strict=True):
                    assert _word(one) in {_word(other), Answer.ALREADY, AGAIN.get(verb)}, (
                        f"{verb}: {one} instead of {other}"
                    )
            case _:
                assert given in (good, AGAIN.get(verb))


def _word(answer: Any) -> Any:
    return answer if isinstance(answer, Answer) else answer.answer


def _delivered(claimed: Claimed) -> list[tuple[str, str, int]]:
    return sorted((run.id, run.token, run.fence) for run in claimed.runs)


async def test_every_writing_verb_whose_answer_never_comes_ends_by_its_deadline(backend, near, far_url, proxy):
    """The line stays up and is silent: only the deadline ends the call, and the same call again is answered."""
    async with opened(backend, backend.own_url("warm")) as warm:  # a server that knows all scripts already
        for step in all_steps():
            await step(warm)
    clean_url = by_way_of(backend.own_url("clean"), proxy)
    verbs: set[str] = set()
    struck = 0
    for number, step in enumerate(all_steps()):
        async with opened(backend, clean_url) as clean:
            wanted, begun = Heard(clean), proxy.requests
            await step(wanted)
            requests = proxy.requests - begun
            after = await told(clean)
        if new := {verb for verb, _ in wanted.answers} - verbs:  # each of them once
            verbs |= new
            async with opened(backend, far_url, deadline_ms=SHORT_MS) as far, asyncio.timeout(PATIENCE_S):
                proxy.lose_reply(requests, stays_up=True)
                with pytest.raises(StoreTimeout):
                    await step(far)
                struck += proxy.struck.is_set()
                proxy.mend()
        async with opened(backend, far_url) as far:
            await step(far)
        assert await told(near) == after, f"step {number}"
    assert len(verbs) >= 17
    assert struck >= 10, "the deadlines were over before the fault could strike: the test does not bite"


async def test_every_verb_on_a_way_that_is_frozen_ends_by_its_deadline(backend, near, far_url, proxy):
    """All verbs at once on one handle: each is refused in our words, and nothing of any of them is ever there."""
    before = await told(near)
    async with opened(backend, far_url, deadline_ms=SHORT_MS) as far, asyncio.timeout(PATIENCE_S):
        proxy.freeze()
        calls = [step(far) for step in (*all_steps(), *reads_of(backend).values())]
        heard = await asyncio.gather(*calls, return_exceptions=True)
        proxy.forget()
    assert [error for error in heard if not isinstance(error, StoreError)] == []  # some may not even get a connection
    assert sum(isinstance(error, StoreTimeout) for error in heard) > 0
    proxy.mend()
    async with opened(backend, far_url) as far:
        for step in all_steps():
            await step(far)
    assert before != await told(near)


async def server_ms(near: Store) -> int:
    """What the clock of the server shows, asked anew: a claim says it exactly."""
    return (await near.claim(node="looks", token="looks", limit=0, lease_ms=1_000)).now_ms


@pytest.mark.parametrize("backend", [POSTGRES], ids=["postgres"])
async def test_a_verb_that_asks_nobody_is_answered_on_a_way_that_is_frozen(backend, near, far_url, proxy):
    async with opened(backend, far_url, deadline_ms=SHORT_MS) as far, asyncio.timeout(PATIENCE_S):
        proxy.freeze()
        for verb in ASKS_NOBODY[backend.name]:
            assert await READS[verb](far) == await READS[verb](near)
        proxy.forget()


async def test_every_reading_verb_is_answered_rightly_or_not_at_all(backend, near, far_url, proxy):
    for step in steps():
        await step(near)
    lines = [AuditLine(at(71), "me", "did", "that")]
    await near.log(lines)
    for verb, step in reads_of(backend).items():
        good = await step(near)
        begun_ms = await server_ms(near)
        for nth in range(1, REQUESTS_MAX):
            proxy.mend()
            async with opened(backend, far_url) as far, asyncio.timeout(PATIENCE_S):
                proxy.lose_reply(nth)
                try:
                    given = await step(far)
                except StoreError:
                    assert proxy.struck.is_set()
                else:
                    is_right = begun_ms <= given <= await server_ms(near) if verb == "now" else given == good
                    assert is_right, (verb, given)
                is_struck = proxy.struck.is_set()
                proxy.mend()
            if not is_struck:
                break
        assert nth > 1, f"{verb} asked nobody"


async def test_a_line_of_the_audit_log_is_there_at_most_once_for_each_time_it_was_sent(backend, near, far_url, proxy):
    """It has no id to be known by.  The chain of hashes holds all the same."""
    line = AuditLine(at(0), "me", "did", "that")
    sent = 0
    for nth in range(1, REQUESTS_MAX):
        proxy.mend()
        async with opened(backend, far_url) as far, asyncio.timeout(PATIENCE_S):
            proxy.lose_reply(nth)
            sent += 1
            with contextlib.suppress(StoreError):
                await far.log([line])
            is_struck = proxy.struck.is_set()
            proxy.mend()
        if not is_struck:
            break
    lines = (await near.read_log()).lines
    assert 1 <= len(lines) <= sent
    before = ""
    for number, written in enumerate(lines, start=1):
        assert written.seq == number
        assert written.chain == chained(msgspec.structs.replace(written, chain=""), before=before)
        before = written.chain


async def test_a_store_is_opened_whatever_answer_was_lost_at_the_first_try(backend, far_url, proxy):
    """A store that does not exist yet: what was begun in vain is begun anew, or found done."""
    for nth in range(1, REQUESTS_MAX):
        proxy.mend()
        proxy.lose_reply(nth)
        try:
            async with asyncio.timeout(PATIENCE_S), opened(backend, far_url):
                pass
        except StoreError:
            assert proxy.struck.is_set()
        if not proxy.struck.is_set():
            break
    assert nth > 2
    proxy.mend()
    async with opened(backend, far_url) as store:
        assert (await store.counts()).jobs == 0
