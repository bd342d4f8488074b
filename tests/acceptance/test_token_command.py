"""`pollux token` at the terminal: made, listed, taken back, exchanged; and curl is taught without telling anybody."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from pollux import Pollux
from pollux.cli.token import _used
from pollux.units import HOUR_MS
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.servers.ports import free_port

API = {"POLLUX_SERVER": "true"}


@pytest.fixture
def pollux(tmp_path):
    here = SameProcess(tmp_path)
    here.write("pollux.yaml", "store: sqlite:///pollux.db\n")
    asyncio.run(there_is_a_store(tmp_path / "pollux.db"))
    return here


async def there_is_a_store(file):
    app = Pollux(f"sqlite:///{file}")
    await app.open()
    await app.close()


def made(pollux, *arguments, **options):
    answer = pollux.ok("token", "create", *arguments, **options)
    assert re.fullmatch(r"pf_[0-9a-f]{8}_[\w-]{43}\n", answer.out)
    return answer.out.strip()


def test_a_token_is_shown_once_and_never_again(pollux):
    secret = made(pollux, "--role", "viewer", "--name", "grafana", "--expires", "30d")
    listed = pollux.ok("token").out
    assert re.search(r"grafana +viewer", listed)
    for answer in (listed, pollux.ok("token", "ls", "--json").out, pollux.ok("audit").out):
        assert secret.split("_", 2)[2] not in answer
        assert "hash" not in answer
    [token] = pollux.ok("token", "ls", "--json").json["tokens"]
    assert token["expires_ms"] - token["made_ms"] == 30 * 86_400_000


def test_whoever_makes_a_second_token_of_a_name_is_told(pollux):
    first = pollux.ok("token", "create", "--role", "viewer", "--name", "ci", "--json")
    assert "ci" not in first.err
    second = pollux.ok("token", "create", "--role", "viewer", "--name", "ci")
    assert f"there is 1 other token called 'ci' ({first.json['token']['id']}) as well" in second.err
    assert "want the id" in second.err
    assert not pollux.ok("token", "create", "--role", "viewer").err.count("other token")


@pytest.mark.parametrize(
    ("age_ms", "says"),
    [(0, "within the hour"), (HOUR_MS - 1, "within the hour"), (HOUR_MS, "1h ago"), (90_000_000, "1d1h ago")],
)
def test_when_a_token_was_used_is_known_by_the_hour(age_ms, says):
    assert _used(10**12, now=10**12 + age_ms) == says
    assert _used(None, now=10**12) == "never"


def test_tokens_are_taken_back_and_exchanged_by_id_or_name(pollux):
    secret = made(pollux, "--role", "admin", "--name", "ci")
    new = pollux.ok("token", "rotate", "ci", "--overlap", "1d", "--json").json
    assert new["secret"] != secret
    assert pollux("token", "revoke", "ci").code == 1  # two have that name now
    assert "name one by its id" in pollux("token", "revoke", "ci").err
    assert f"revoked {new['token']['id']} (ci, admin)" in pollux.ok("token", "revoke", new["token"]["id"]).out
    assert "revoked" in pollux.ok("token", "revoke", secret.split("_")[1]).out
    gone = pollux("token", "revoke", "ci")
    assert gone.code == 1
    assert "there is no token 'ci'" in gone.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--role", "king"), "viewer"),
        ((), "--role"),
        (("--role", "viewer", "--expires", "0"), "never be valid"),
        (("--role", "viewer", "--expires", "soon"), "not a duration"),
        (("--role", "viewer", "--name", "a\nb"), "cannot be used"),
        (("--role", "viewer", "--name", "x" * 101), "cannot be used"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(pollux, arguments, what):
    answer = pollux("token", "create", *arguments)
    assert answer.code == 2
    assert what in answer.err


def test_a_curlrc_that_somebody_else_wrote_is_not_overwritten(pollux, tmp_path):
    theirs = tmp_path / ".curlrc"
    theirs.write_text("silent\n")
    refused = pollux("token", "--curl")
    assert refused.code == 2
    assert "was not made by us" in refused.err
    assert theirs.read_text() == "silent\n"
    assert pollux.ok("token", "ls", "--json").json["tokens"] == []
    pollux.ok("token", "--curl", "--yes")
    assert "netrc-file" in theirs.read_text()


def test_ours_is_replaced_and_its_token_with_it(pollux, tmp_path):
    pollux.ok("token", "--curl", "--role", "viewer")
    [first] = pollux.ok("token", "ls", "--json").json["tokens"]
    pollux.ok("token", "--curl")
    [second] = pollux.ok("token", "ls", "--json").json["tokens"]
    assert (first["role"], second["role"]) == ("viewer", "operator")
    assert first["id"] != second["id"]
    for name in (".curlrc", ".curlrc-netrc"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert second["id"] in (tmp_path / ".curlrc-netrc").read_text()


def test_audit_verify_says_whole_and_gives_a_mark(pollux):
    assert pollux.ok("audit", "verify").out == "empty\n"
    made(pollux, "--role", "viewer")
    made(pollux, "--role", "viewer")
    said = pollux.ok("audit", "verify").out.splitlines()
    assert said[0] == "whole: 2 lines, 1 to 2"
    mark = said[1].removeprefix("mark: ")
    made(pollux, "--role", "viewer")
    assert pollux.ok("audit", "verify", "--mark", mark).out.startswith("whole: 3 lines")
    broken = pollux("audit", "verify", "--mark", mark.replace("2:", "9:"))
    assert (broken.code, "its end was cut off" in broken.out) == (1, True)
    other = pollux("audit", "verify", "--mark", f"1:{mark[2:]}", "--json")
    assert (other.code, json.loads(other.out)["broken"]) == (1, "line 1 is not the one that the mark was made of")
    assert pollux("audit", "verify", "--mark", "nonsense").code == 2


@pytest.fixture
def short(tmp_path):
    """A folder whose name leaves room for a socket's."""
    folder = Path(f"/tmp/pollux-{os.getpid()}-{tmp_path.name[-8:]}")
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


def test_the_real_thing_with_a_real_curl_and_no_token_in_sight(short):
    """From the first start to the last line of the log: the tokens are in their two files, and nowhere else."""
    here = Terminal(short, fresh=True)
    port = free_port()
    url = f"http://localhost:{port}/api/v2/nodes"
    here.write("pollux.yaml", f"store: sqlite:///pollux.db\nserver: {{port: {port}}}\nlog: {{level: debug}}\n")
    log = (short / "log").open("wb")
    with log, here.started("serve", "--no-watch", environ=API, stderr=log) as node:
        first = eventually(lambda: read(short / "pollux.db.token"), "the first token", node)
        eventually(lambda: curl(short, f"http://localhost:{port}/live")[0] == "200", "the API answers", node)
        status, body = curl(short, url)
        assert status == "401"
        assert "pollux token --curl" in body
        assert curl(short, url, "-H", f"Authorization: Bearer {first}x")[0] == "401"
        assert curl(short, f"{url}?token={first}")[0] == "401"
        taught = here.ok("token", "--curl", environ=API)
        assert f"export CURL_HOME={short}" in taught.out
        assert curl(short, url, CURL_HOME=str(short))[0] == "200"
        assert curl(short, f"http://127.0.0.1:{port}/api/v2/nodes", CURL_HOME=str(short))[0] == "200"
        second = read(short / ".curlrc-netrc").split()[-1]
        lines = "".join(read(pid / "cmdline") for pid in Path("/proc").iterdir() if pid.name.isdecimal())
        assert stopped(node, signal.SIGTERM).code == 0
    told = {path.name for path in short.iterdir() if path.is_file()}
    for secret in (first.split("_", 2)[2], second.split("_", 2)[2]):
        found = {name for name in told if secret.encode() in (short / name).read_bytes()}
        assert found <= {"pollux.db.token", ".curlrc-netrc"}
        assert secret not in lines + taught.out + taught.err
    assert "an admin token was created" in read(short / "log")
    assert not (short / "pollux.db.sock").exists()


def test_a_curlrc_sends_the_token_to_nobody_else(pollux, tmp_path):
    """Another name for the same machine is another host to curl, and gets nothing."""
    pollux.ok("token", "--curl")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for host, is_told in (("localhost", True), ("elsewhere.example", False)):
            program = ["curl", "-s", "-m", "20", f"http://{host}:{port}/", "--resolve", f"{host}:{port}:127.0.0.1"]
            asking = subprocess.Popen(program, env=os.environ | {"CURL_HOME": str(tmp_path)}, stdout=subprocess.DEVNULL)
            connection, _ = listener.accept()
            with connection:
                head = connection.recv(10_000).decode()
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
            asking.wait()
            assert ("Authorization: Basic" in head) is is_told


def read(path):
    try:
        return path.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def curl(folder, *arguments, **environ):
    """Status and body."""
    program = ["curl", "-s", "-m", "20", "-w", "\\n%{http_code}", *arguments]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder / "nowhere")} | environ
    said = subprocess.run(program, env=env, capture_output=True, text=True, check=False).stdout
    body, _, status = said.rpartition("\n")
    return status, body
