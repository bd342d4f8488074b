"""The heartbeat of a node: the URL that is called, and systemd's watchdog."""

import socket

import pytest

from pollux import Pollux
from pollux.app.process import (
    HealthPing,
    HealthPingFailed,
    SideServices,
    Supervisor,
    Watchdog,
    _is_alive,
    supervisor_of,
)
from pollux.clock import FakeClock
from pollux.events import Events, LoopFailed
from pollux.observe.health import Health
from pollux.runtime.loop import Rest
from tests.collector import collecting
from tests.runtime.fakes import Heard, settle_down
from tests.runtime.test_traces import until

# the heartbeat


def a_heartbeat(url, *, leads=True, well=True, events=None):
    async def is_well():
        return well

    return HealthPing(url, 60_000, leads=lambda: leads, is_well=is_well, clock=FakeClock(), events=events or Events())


@pytest.mark.parametrize(("leads", "well", "calls"), [(True, True, 1), (False, True, 0), (True, False, 0)])
async def test_the_heartbeat_comes_from_the_leader_while_all_is_well(leads, well, calls):
    with collecting() as somebody:
        heartbeat = a_heartbeat(f"{somebody.url}/ping", leads=leads, well=well)
        assert await heartbeat.turn() == Rest(60_000)
        assert (heartbeat.calls, len(somebody.got)) == (calls, calls)


@pytest.mark.parametrize("status", [301, 404, 500, None])
async def test_a_heartbeat_that_fails_is_said_without_its_url_and_comes_again(status):
    with collecting() as somebody:
        somebody.status = status or 200
        url = f"{somebody.url}/secret-path" if status else "http://127.0.0.1:1/secret-path"
        events = Events()
        heard = Heard(events, LoopFailed)
        heartbeat = a_heartbeat(url, events=events)
        rest = await heartbeat.guarded_turn()
    assert rest.ms == 5_000
    [failed] = heard.all
    assert failed.loop == "health_ping"
    assert isinstance(failed.error, HealthPingFailed)
    assert "secret-path" not in repr(failed.error)
    assert failed.error.__cause__ is None
    assert failed.error.__suppress_context__ or failed.error.__context__ is None


async def test_a_node_that_serves_asks_its_own_health_before_it_calls(monkeypatch):
    asked, status = [], "unhealthy"

    async def health():
        asked.append(status)
        return Health(status, (), None)

    with collecting() as somebody:
        app = Pollux("memory://", heartbeat_url=f"{somebody.url}/ping", heartbeat_every="1s")
        monkeypatch.setattr(app.watch, "health", health)
        async with app:
            await until(lambda: len(asked) >= 2)
            assert somebody.got == []
            status = "degraded"
            await until(lambda: somebody.got)


async def test_only_one_of_two_nodes_calls_and_the_other_takes_over(tmp_path):
    with collecting() as somebody:
        apps = [
            Pollux(
                f"sqlite:///{tmp_path}/p.db",
                heartbeat_url=f"{somebody.url}/{name}",
                heartbeat_every="1s",
                leader_ttl="2s",
            )
            for name in ("first", "second")
        ]
        await apps[0].start()
        await until(lambda: somebody.got)
        await apps[1].start()
        await until(lambda: len(somebody.got) >= 2)
        assert {path for path, _ in somebody.got} == {"/first"}
        await apps[0].close()
        await until(lambda: somebody.got[-1][0] == "/second")
        await apps[1].close()


# whoever supervises


def test_a_supervisor_is_whoever_the_environment_names_and_is_told_to_nobody_else():
    environ = {"NOTIFY_SOCKET": "@abstract", "WATCHDOG_USEC": "30000000", "HOME": "x"}
    supervisor = supervisor_of(environ)
    assert (supervisor.address, supervisor.watchdog_ms) == ("@abstract", 30_000)
    assert environ == {"HOME": "x"}
    assert supervisor_of({}) is None
    assert supervisor_of({"NOTIFY_SOCKET": "vsock:1"}) is None
    assert supervisor_of({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_ms is None
    supervisor.tell("READY=1")  # nobody is there


async def test_a_node_one_of_whose_loops_has_died_does_not_feed_the_watchdog(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.setblocking(False)
        supervisor = Supervisor(str(tmp_path / "notify"), 30_000)
        for lives, said in ((True, b"WATCHDOG=1"), (False, None)):
            dog = Watchdog(supervisor, lambda lives=lives: lives, every_ms=10_000, clock=FakeClock(), events=Events())
            assert await dog.turn() == Rest(10_000)
            if said is None:
                with pytest.raises(BlockingIOError):
                    line.recv(100)
            else:
                assert line.recv(100) == said


async def test_an_app_that_is_embedded_leaves_the_supervisor_to_its_host(tmp_path, monkeypatch):
    """The process is not ours: to be ready is for somebody else to say."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        async with Pollux("memory://"):
            pass
        with pytest.raises(BlockingIOError):
            line.recv(100)


async def test_a_crew_with_a_dead_loop_is_not_alive():
    async with Pollux("memory://") as app:
        assert _is_alive(app.runtime)
        app.runtime.settler.abandon()
        await settle_down()
        assert not _is_alive(app.runtime)
    assert isinstance(app._alongside, SideServices)
