"""Virtual time on a real event loop: waits end at once and in order, real I/O is waited for."""

import asyncio
import socket
import threading
import time

import pytest

from pollux.clock import Deadlines
from pollux.errors import InvalidInput, PolluxError
from pollux.simulate import VirtualClock, VirtualTime, virtual_loop

LONG_S = 3_600.0


@pytest.fixture
async def virtual_time():
    ours = VirtualTime(asyncio.get_running_loop())
    ours.install()
    yield ours
    ours.limit_us = None
    ours.restore()


async def test_an_hour_passes_at_once_and_exactly(virtual_time):
    began, really = virtual_time.us, time.monotonic()
    await asyncio.sleep(LONG_S)
    assert virtual_time.us - began == LONG_S * 1_000_000
    assert time.monotonic() - really < LONG_S / 10


async def test_waits_end_in_the_order_of_their_times(virtual_time):
    woken = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (300, 0.1, 86_000, 5, 0)))
    assert woken == sorted(woken)


async def test_a_timeout_is_virtual_too(virtual_time):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LONG_S):
            await asyncio.Event().wait()


def test_timers_of_the_same_moment_go_by_turn_whatever_the_floats_say():
    """0.1 + 0.2 is more than 0.3 to a float; to a timer it is the same."""
    woken = []

    async def go() -> None:
        loop = asyncio.get_running_loop()
        ours = VirtualTime(loop, is_fresh=True)
        ours.install()
        await asyncio.sleep(0.1)
        loop.call_later(0.2, woken.append, "first")
        loop.call_at(0.3, woken.append, "second")
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(go())
    assert woken == ["first", "second"]


UP_US, DELAY_S = 13_273, 0.1  # to a float their sum is a hair above the whole microsecond where its timer stands


def play(scene) -> None:
    """The scene on a loop whose time begins at zero."""

    async def go() -> None:
        ours = VirtualTime(asyncio.get_running_loop(), is_fresh=True)
        ours.install()
        await asyncio.sleep(UP_US / 1_000_000)
        assert ours.us == UP_US
        await scene(ours)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(go())


def test_time_goes_on_for_a_timer_that_is_set_again_until_its_moment_has_come():
    looks = []

    async def scene(ours) -> None:
        due, over = ours.time() + DELAY_S, asyncio.Event()

        def look() -> None:
            looks.append(ours.us)
            if ours.time() < due and len(looks) < 1_000:
                ours.loop.call_at(due, look)
            else:
                over.set()

        ours.loop.call_at(due, look)
        await over.wait()

    play(scene)
    assert looks == [UP_US + 100_000, UP_US + 100_001]


def test_a_deadline_a_hair_above_a_microsecond_ends_its_wait_at_the_first_look():
    looks = []

    class Counted(Deadlines):
        def _end_overdue(self) -> None:
            looks.append(asyncio.get_running_loop().time())
            if len(looks) < 1_000:  # one that stands still would not end the test
                super()._end_overdue()
            else:
                [patience.end() for patience in self._open]

    async def scene(ours) -> None:
        deadlines = Counted()
        patience = deadlines.enter(DELAY_S)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()
        assert patience.is_over()
        assert ours.us == UP_US + 100_000

    play(scene)
    assert len(looks) == 1


async def test_quiet_comes_when_all_is_done_that_can_be_done_now(virtual_time):
    done, began = [], virtual_time.us

    async def busy() -> None:
        for _ in range(200):
            await asyncio.sleep(0)
        done.append(True)
        await asyncio.sleep(LONG_S)

    work = asyncio.ensure_future(busy())
    await virtual_time.quiet()
    assert done
    assert virtual_time.us == began
    work.cancel()


async def test_time_waits_for_a_thread(virtual_time):
    """A call in a thread takes no virtual time, however long it takes."""
    began = virtual_time.us
    asyncio.get_running_loop().call_later(LONG_S, lambda: None)
    assert await asyncio.to_thread(lambda: time.sleep(0.2) or "done") == "done"
    assert virtual_time.us == began


async def test_time_goes_on_without_a_thread_that_never_ends(virtual_time, monkeypatch):
    monkeypatch.setattr(virtual_loop, "THREAD_SECONDS_MAX", 0.1)
    release = threading.Event()
    call = asyncio.get_running_loop().run_in_executor(None, release.wait)
    await asyncio.sleep(LONG_S)
    release.set()
    await call


async def test_time_waits_for_an_answer_on_a_socket(virtual_time):
    """A server in a thread of its own answers after 20 ms; the client's timeout of 10 ms is virtual."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(100)
            time.sleep(0.02)
            peer.sendall(b"hello\n")

    server = threading.Thread(target=serve)
    server.start()
    began = virtual_time.us
    async with asyncio.timeout(0.01):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        writer.write(b"hi\n")
        assert await reader.readline() == b"hello\n"
    assert virtual_time.us == began
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(LONG_S)  # quiet sockets hold nobody up
    server.join()
    listener.close()


async def test_a_wait_in_vain_is_told(virtual_time):
    """A loop that would pass its limit raises out of the loop itself: nobody inside could hear it."""
    inner = asyncio.SelectorEventLoop()
    try:
        ours = VirtualTime(inner, is_fresh=True)
        ours.install()
        ours.limit_us = 60 * 1_000_000
        inner.call_later(LONG_S, lambda: None)
        with pytest.raises(PolluxError, match="let long times pass with `advance`"):
            await asyncio.to_thread(inner.run_forever)
    finally:
        inner.close()


async def test_time_goes_on_from_where_it_was_when_it_is_real_again():
    loop = asyncio.get_running_loop()
    ours = VirtualTime(loop)
    ours.install()
    await asyncio.sleep(LONG_S)
    virtual_s = loop.time()
    ours.restore()
    assert loop.time() >= virtual_s
    really = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - really >= 0.045


async def test_the_wall_clock_can_be_set_and_monotonic_time_cannot(virtual_time):
    clock = VirtualClock(virtual_time, 1_800_000_000_000)
    mono = clock.mono_ms()
    clock.jump(-3_600_000)
    assert (clock.now_ms(), clock.mono_ms()) == (1_800_000_000_000 - 3_600_000, mono)
    await asyncio.sleep(0.0305)
    assert clock.now_ms() == 1_800_000_000_000 - 3_600_000 + 30


def test_a_loop_that_cannot_be_ruled_is_refused_with_the_cure():
    class Foreign(asyncio.AbstractEventLoop): ...

    with pytest.raises(InvalidInput, match="with story"):
        VirtualTime(Foreign())
