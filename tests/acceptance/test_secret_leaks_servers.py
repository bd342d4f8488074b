"""The password of a store that is a server is nowhere found: in no log, answer, trace, file, process, nor in the store.

The server goes away for a while, and somebody comes with a wrong password: that is when addresses are told.
"""

import asyncio
import os
import re
import secrets as dice
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from tests.acceptance.terminal import SameProcess, Terminal, eventually
from tests.acceptance.test_secret_leaks import Echo, all_that_the_api_shows, ask, leaks, port, processes  # noqa: F401  a fixture
from tests.servers.ports import free_port
from tests.servers.postgres import QUICK, PostgresServer
from tests.servers.redis import RedisServer

CONFIG = """
store: "STORE"
server: {port: LISTEN, token: "${file:CANARY_TOKEN}", rate: 0}
traces: {endpoint: "http://127.0.0.1:COLLECT"}
jobs:
  - {id: fine, python: "work:fine", once: true}
  - {id: refuse, python: "work:refuse", once: true}
"""


class Place(NamedTuple):
    """A server that wants a password."""

    url: str  # with PASSWORD in it
    folder: Path  # where it keeps what it was told
    kill: Callable[[], None]
    start: Callable[[], object]
    stop: Callable[[], None]


def on_redis(folder: Path, password: str) -> Place:
    (folder / "redis").mkdir()
    (folder / "users.acl").write_text(f"user default on >{password} ~* &* +@all\n")
    server = RedisServer(folder / "redis", "--appendonly", "yes", "--aclfile", str(folder / "users.acl"))
    server.start()
    return Place(f"redis://:PASSWORD@127.0.0.1:{server.port}/0", server.folder, server.kill, server.start, server.stop)


def on_postgres(_: Path, password: str) -> Place:
    server = PostgresServer(*QUICK)
    server.start()
    asyncio.run(locked(server, password))
    server.kill(signal.SIGINT)  # it writes down what it was told
    (server.folder / "data" / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
    server.start()
    url = server.url().replace("pollux:pollux@", "pollux:PASSWORD@")
    return Place(url, server.folder, lambda: server.kill(signal.SIGINT), server.start, server.stop)


async def locked(server: PostgresServer, password: str) -> None:
    connection = await asyncpg.connect(server.url())
    await connection.execute(f"ALTER USER pollux PASSWORD '{password}'")
    await connection.close()


def planted(folder: Path, name: str, value: str) -> str:
    path = folder / name
    path.write_text(value + "\n")
    path.chmod(0o600)
    return value


@pytest.mark.parametrize("whole", [False, True], ids=["its password by reference", "all of it by reference"])
@pytest.mark.parametrize("kind", [on_redis, on_postgres])
def test_the_password_of_a_server_is_never_found(tmp_path, port, kind, whole):  # noqa: F811  the fixture
    secrets = {name: planted(tmp_path, f"CANARY_{name}", dice.token_hex(20)) for name in ("STORE", "TOKEN", "WRONG")}
    place = kind(tmp_path, secrets["STORE"])
    try:
        store = place.url.replace("PASSWORD", "${file:CANARY_STORE}")
        if whole:
            planted(tmp_path, "CANARY_URL", place.url.replace("PASSWORD", secrets["STORE"]))
            store = "${file:CANARY_URL}"
        artefacts = told(tmp_path, place, store, secrets, port)
    finally:
        place.stop()
    assert leaks(secrets, artefacts) == []
    for where in ("traces", "said", "server", "runs --json", "GET /api/v2/runs"):
        assert leaks({"id": "refuse@"}, {where: artefacts[where]}), f"{where} was not searched"
    assert b"serve" in artefacts["processes"]
    address = place.url.partition("@")[2].partition("/")[0].encode()
    shown = ("wrong", "away", "said") if whole else ("wrong", "away", "said", "config")  # which has the reference
    assert all(address in artefacts[where] for where in shown), "else there was nothing to hide"


def told(folder: Path, place: Place, store: str, secrets: dict[str, str], collector: int) -> dict[str, bytes]:
    """All that can be seen of a node that works there."""
    pollux, asks, listen = Terminal(folder, fresh=True), SameProcess(folder), free_port()
    text = CONFIG.replace("STORE", store, 1).replace("LISTEN", str(listen)).replace("COLLECT", str(collector))
    pollux.write("pollux.yaml", text)
    Echo.traces.clear()
    artefacts: dict[str, bytes] = {}
    environ = {"POLLUX_SERVER": "true"}
    serve = ("serve", "--no-watch", "--log-level", "debug", "--log-format", "json")
    with (
        (folder / "said").open("wb") as said,
        pollux.started(*serve, environ=environ, stderr=said, stdout=said) as node,
    ):

        def ended() -> list[dict]:
            answer = asks("runs", "--json")
            runs = answer.json["runs"] if answer.code == 0 else []
            return runs if {run["state"] for run in runs} == {"done", "dead"} else []

        runs = eventually(ended, "both runs have ended", node)
        place.kill()
        root, health = f"http://127.0.0.1:{listen}", "/api/v2/scheduler/health"
        eventually(lambda: b"does not answer" in ask(f"{root}{health}", secrets["TOKEN"]), "it is missed", node)
        artefacts["away"] = "".join(str(asks(*words)) for words in (("jobs",), ("doctor",))).encode()
        place.start()
        eventually(lambda: asks("runs", "--json").code == 0, "it is back", node)
        artefacts |= all_that_the_api_shows(root, secrets["TOKEN"], runs)
        artefacts["processes"] = processes()
        node.send_signal(signal.SIGTERM)
        assert node.wait(60) == 0
    for words in (
        "jobs",
        "runs --json",
        "nodes",
        "audit",
        "config",
        "config --json",
        "doctor",
        "doctor --json",
        "check",
    ):
        artefacts[words] = str(asks(*words.split(" "))).encode()
    wrong = asks("jobs", "--store", place.url.replace("PASSWORD", secrets["WRONG"]))
    assert wrong.code != 0, wrong
    artefacts["wrong"] = str(wrong).encode()
    artefacts["traces"] = b"".join(Echo.traces)
    held = [path for path in place.folder.rglob("*") if path.is_file() and os.access(path, os.R_OK)]
    artefacts["server"] = b"".join(path.read_bytes() for path in held)
    for path in folder.rglob("*"):
        if path.is_file() and path not in held and not re.match(r"CANARY_|users\.acl", path.name):
            artefacts[str(path.relative_to(folder))] = path.read_bytes()
    return artefacts
