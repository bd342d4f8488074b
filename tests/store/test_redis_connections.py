"""Connections of a handle are accounted for, also when a call is cancelled at a bad moment."""

import asyncio

import pytest

from pollux.errors import StoreError
from pollux.store.redis import RedisStore
from pollux.store.redis.connection import RedisConnection
from tests.servers.redis import own_url


class Halt:
    """A step that does not go on until it is let."""

    def __init__(self, answer):
        self.answer = answer
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    async def __call__(self, *_):
        self.entered.set()
        await self.opened.wait()
        return self.answer


@pytest.fixture
async def store():
    store = RedisStore(own_url("lines"))
    await store.open()
    yield store
    await store.close()


async def test_a_call_that_is_cut_off_before_its_answer_leaves_no_connection_behind(store, monkeypatch):
    answer = Halt(answer=[])
    monkeypatch.setattr(RedisConnection, "send", answer)
    calling = asyncio.ensure_future(store.counts())
    await answer.entered.wait()
    calling.cancel()
    await asyncio.wait({calling})

    assert not store.backend.link()._lines - set(store.backend.link()._free)


async def test_a_connection_that_is_made_while_the_handle_closes_is_not_left_open(store, monkeypatch):
    link = store.backend.link()
    find = Halt(answer=await link._route.find())
    await link._doubt()
    monkeypatch.setattr(link._route, "find", find)
    calling = asyncio.ensure_future(store.counts())
    await find.entered.wait()
    await store.close()
    find.opened.set()

    with pytest.raises(StoreError, match="closed"):
        await calling
    assert not link._lines
    assert not find.answer.is_connected
