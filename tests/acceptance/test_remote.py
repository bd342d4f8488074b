"""The command line over the API: every command says the same, whether it asks the store, a node, or a node's socket."""

import json
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import pytest

from pollux.cli import command_table
from pollux.cli.target import OpenedStore, StoreConnection
from pollux.client import Remote, address_of, socket_url
from pollux.client.rpc_codec import VERSION_HEADER, Hello
from pollux.errors import InvalidInput, StoreError
from pollux.version import __version__
from tests.acceptance.remote_world import (
    CHANGES,
    LOOKS,
    WAYS,
    alike,
    check_changes,
    check_forecast,
    check_live_screen,
    check_look,
    check_simulation,
    deployed,
    inhabited,
)
from tests.acceptance.terminal import SameProcess, Terminal, eventually

pytestmark = pytest.mark.xdist_group("remote")  # one deployment for all of them

# What only the store itself can do, or concerns this machine alone.
AT_HOME = {
    **dict.fromkeys(("serve", "worker", "check", "config", "completion"), "of this machine: files, code, processes"),
    **dict.fromkeys(("store check", "store backup", "store restore"), "reads the store itself"),
    **dict.fromkeys(("store move", "store unseal", "store drop"), "name the stores they work on"),
}
# Tested below in a way of their own.
APART = {"plan", "simulate", "doctor", "health", "top", "store load", "token revoke", "token curl"}

OF_A_NODE = {"polling", "loop", "handlers", "file"}  # findings that it alone can make

HELLO = Hello(version=__version__, store="sqlite:///x.db", file="", sealed="", name="token:x", role="admin")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    with inhabited(tmp_path_factory.mktemp("remote")) as made:
        yield made


def commands() -> set[str]:
    """Every command of the menu, those of groups one by one."""
    found = set()
    for entry in command_table.ENTRIES.values():
        module, _, attribute = entry.home.partition(":")
        command = getattr(import_module(module), attribute)
        names = list(command.commands) if isinstance(command, click.Group) else [""]
        found |= {f"{entry.name} {name}".strip() for name in names}
    return found


def test_every_command_is_compared_or_has_a_reason_not_to_be():
    said = {words for words in commands() for line in (*LOOKS, *CHANGES) if f"{line} ".startswith(f"{words} ")}
    listed = {f"{name} ls" for name in command_table.ENTRIES if name in LOOKS} & commands()
    assert commands() - said - listed == (AT_HOME.keys() | APART) - said


# the same words


@pytest.mark.parametrize("words", LOOKS)
def test_a_look_says_the_same_each_way(house, words):
    check_look(house, words)


def test_changes_say_the_same_each_way(house):
    check_changes(house)


def test_a_look_at_everything_has_the_same_parts_each_way(house):
    check_live_screen(house)


def test_a_forecast_is_the_same_each_way(house):
    check_forecast(house)


def test_a_simulation_learns_from_a_node_as_from_a_store(house):
    check_simulation(house)


def test_health_is_the_same_each_way(house):
    """But for what only the node itself knows."""
    said = {}

    def shared():
        said.update({way: house.by(way, "health --json") for way in WAYS})
        found = [[one for one in each.json["findings"] if one["name"] not in OF_A_NODE] for each in said.values()]
        return [(each.code, each.json.keys(), shared) for each, shared in zip(said.values(), found, strict=True)]

    by_store, by_node, by_socket = alike(shared)
    assert by_store == by_node == by_socket
    assert by_store[0] == 0
    names = {one["name"] for one in said["distant"].json["findings"]}
    assert names - {one["name"] for one in by_node[2]} == OF_A_NODE
    assert said["distant"].json["status"] == "degraded", "there are dead letters"
    table = house.by("distant", "health")
    assert "dead letters" in table.out
    assert "pollux dead lists them" in table.out
    assert table.out.endswith("degraded: it works, and should be looked at\n")


def test_health_is_the_document_of_the_api(house):
    request = urllib.request.Request(f"{house.url}/api/v2/scheduler/health")
    request.add_header("Authorization", f"Bearer {house.token}")

    def looked():
        with urllib.request.urlopen(request, timeout=60) as answer:
            both = json.load(answer), house.by("distant", "health --json").json
        for each in both:  # it tells the time
            each["last_check_at"] = each["updatedAt"] = each["uptime_seconds"] = None
        return [*both]

    told, found = alike(looked)
    assert found == told


def test_what_was_dumped_through_a_node_can_be_loaded_through_one(house, tmp_path):
    """Jobs of files stay what they are: only the store itself takes them."""
    file = tmp_path / "all.jsonl"
    assert house.by("distant", f"store dump {file}").err.startswith("dumped ")
    lines = file.read_text().splitlines()
    refused = house.by("distant", f"store load {file}")
    assert refused.code == 2
    assert "would be trusted" in refused.err
    jobless = [line for line in lines[1:-1] if not line.startswith('["job"') and not line.startswith('["run"')]
    file.write_text("\n".join([lines[0], *jobless, json.dumps({"records": len(jobless)})]) + "\n")
    told = house.by("distant", f"store load {file}")
    assert told.code == 0, told
    assert told.err == house.by("direct", f"store load {file}").err


def test_a_token_is_taken_back_through_a_node(house):
    secret = house.by("distant", "token create --role viewer --name short").out.strip()
    with_it = {"POLLUX_URL": house.url, "POLLUX_TOKEN": secret}
    eventually(lambda: house.pollux("jobs", environ=with_it).code == 0, "the token is known")
    assert house.by("distant", "token revoke short").code == 0
    eventually(lambda: house.pollux("jobs", environ=with_it).code == command_table.UNAVAILABLE, "the token is refused")


# which way


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("direct", "the store itself is asked: sqlite:///p.db"),
        ("distant", "a node is asked: http://127.0.0.1:"),
        ("nearby", "a node is asked: the socket "),
    ],
)
def test_who_is_asked_is_told_to_those_who_want_to_know(house, way, says):
    loud, quiet = house.by(way, "jobs --limit 1 --verbose"), house.by(way, "jobs --limit 1")
    assert loud.err.startswith(f"pollux: {says}")
    assert says not in quiet.err
    assert loud.out.split() == quiet.out.split() or loud.code == quiet.code == 0
    finding = next(f for f in house.by(way, "doctor --json").json["findings"] if f["about"] == "asked")
    word = {"direct": "the store itself", "distant": house.url, "nearby": "p.db.sock"}[way]
    assert finding["level"] == "ok"
    assert word in finding["seen"]


def test_the_store_that_is_named_is_asked_itself_also_if_the_environment_names_a_node(house):
    answer = house.pollux(
        "jobs", "--store", "sqlite:///p.db", "--verbose", environ={"POLLUX_URL": "http://127.0.0.1:9"}
    )
    assert answer.code == 0
    assert "the store itself" in answer.err


def test_a_node_and_a_store_are_not_named_together(house):
    answer = house.pollux("jobs", "--store", "sqlite:///p.db", "--url", house.url)
    assert answer.code == 2
    assert "--url and --store were both given" in answer.err


def test_a_socket_that_belongs_to_another_store_is_not_asked(house, tmp_path):
    """A node answers there, but works on another file."""
    other = SameProcess(tmp_path)
    other.write("pollux.yaml", f"store: sqlite:///other.db\nserver: {{socket: {house.pollux.folder}/p.db.sock}}\n")
    dump = tmp_path / "dump"
    house.by("direct", f"store dump {dump}")
    other.ok("store", "load", str(dump), "--store", "sqlite:///other.db")
    answer = other.ok("jobs", "--limit", "1", "--verbose")
    assert "the store itself is asked" in answer.err
    other.write("pollux.yaml", f"store: sqlite:///{house.pollux.folder}/p.db\nserver: {{socket: false}}\n")
    assert "the store itself is asked" in other.ok("jobs", "--limit", "1", "--verbose").err


def test_a_socket_where_nobody_listens_any_more_is_passed_by(house, tmp_path):
    alone = SameProcess(tmp_path)
    alone.write("pollux.yaml", "store: sqlite:///p.db\n")
    dump = tmp_path / "dump"
    house.by("direct", f"store dump {dump}")
    alone.ok("store", "load", str(dump))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "p.db.sock"))
    assert "the store itself is asked" in alone.ok("jobs", "--limit", "1", "--verbose").err


@pytest.mark.parametrize(
    "words", ["store check", "store backup x.db", "store restore x.db", "check --diff", "check --diff -c pollux.yaml"]
)
def test_what_cannot_be_done_from_afar_is_told_in_words(house, words):
    answer = house.by("distant", words)
    assert answer.code == 2
    assert "cannot be done through http://127.0.0.1" in answer.err
    assert "--store" in answer.err


def test_the_audit_log_tells_who_it_was_each_way(house):
    for way in WAYS:
        house.by(way, f"pause --target by-{way}")
    lines = {line["subject"]: line["actor"] for line in house.by("direct", "audit ls --json").json["lines"]}
    assert lines["target:by-direct"] == lines["target:by-nearby"]
    assert lines["target:by-direct"].startswith("cli:")
    assert lines["target:by-distant"] == "token:first"


def test_a_viewer_may_look_and_is_told_what_would_be_needed_for_more(house):
    secret = house.by("direct", "token create --role viewer --name eyes").out.strip()
    eyes = {"POLLUX_URL": house.url, "POLLUX_TOKEN": secret}
    eventually(lambda: house.pollux("jobs", environ=eyes).code == 0, "the token is known")
    shown = house.pollux("jobs", "show", "still", environ=eyes)
    assert shown.code == 0
    assert "***" in shown.out
    assert "hunter2222" not in shown.out
    for words in ("pause still", "store dump -", "token ls", "set log.level info"):
        refused = house.pollux(*words.split(), environ=eyes)
        assert refused.code == 1, words
        assert "has the role viewer, this needs" in refused.err
        assert "pollux token create --role" in refused.err


def test_a_token_may_lie_in_a_file(house):
    named = house.pollux("jobs", "--url", house.url, "--token", "@p.db.token")
    assert named.code == 0
    missing = house.pollux("jobs", "--url", house.url, "--token", "@nowhere")
    assert missing.code == 2
    assert "nowhere cannot be read" in missing.err


def test_a_shell_completes_ids_of_a_node(house):
    environ = {"_POLLUX_COMPLETE": "bash_complete", "COMP_LINE": "pollux jobs show sti", "COMP_WORDBREAKS": ""}
    asked = {"POLLUX_URL": house.url, "POLLUX_TOKEN": house.token}
    answer = Terminal.__call__(house.pollux, environ=environ | asked)
    assert answer.out.strip().endswith(",still")


async def test_the_live_screen_asks_the_socket_while_it_answers_and_else_the_store(house, tmp_path):
    folder = house.pollux.folder
    store, nobody = f"sqlite:///{folder}/p.db", tmp_path / "nobody.sock"
    for socket_file, kind in ((folder / "p.db.sock", Remote), (nobody, OpenedStore), (None, OpenedStore)):
        link = StoreConnection(store, socket_file)
        counts = await link.ask(lambda operations: operations.status.counts())
        assert type(link._target) is kind
        assert counts.jobs > 15
        assert link.name.endswith("p.db")
        await link.close()


async def test_the_live_screen_waits_for_a_node_that_is_not_there(house):
    link = StoreConnection("http://127.0.0.1:9")
    with pytest.raises(StoreError, match="cannot be reached"):
        await link.ask(lambda operations: operations.status.counts())
    assert link._target is None, "it is opened anew for the next look"


# what goes wrong


def test_a_node_that_dies_while_a_run_is_waited_for_ends_the_command_with_a_clear_line(tmp_path):
    jobs = 'jobs:\n  - {id: slow, python: "work:slow", params: {seconds: 600}}\n'
    with deployed(tmp_path, jobs) as made:
        environ = {"POLLUX_URL": made.url, "POLLUX_TOKEN": made.token}
        with made.pollux.started("enqueue", "slow", "--wait", environ=environ) as waiting:
            eventually((tmp_path / "slow.started").exists, "it runs", waiting)
            made.process.send_signal(signal.SIGKILL)
            _, err = waiting.communicate(timeout=30)
        assert waiting.returncode == command_table.UNAVAILABLE, err
        assert b"Traceback" not in err
        last = err.decode().strip().splitlines()[-1]
        assert last.startswith(f"pollux: {made.url} ")
        # The run begins before the request is answered: it may be the request itself that is cut off.
        assert any(cure in last for cure in ("see that `pollux serve` runs there", "look before you repeat it"))


class Script(NamedTuple):
    url: str
    asked: list[str]  # method and path of each request


CUT = "cut"


@contextmanager
def scripted(*answers: Any, context: ssl.SSLContext | None = None) -> Iterator[Script]:
    """A server that says what it is told to, one answer after the other; the last one again and again."""
    asked: list[str] = []
    left = list(answers)

    class Says(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            answer = left.pop(0) if len(left) > 1 else left[0]
            if answer == CUT:
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  as it is called by

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Says)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Script(f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ours(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {VERSION_HEADER: __version__, "Content-Type": "application/json"}, msgspec.json.encode(value)


def problem(status: int, title: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    kind = {"Content-Type": "application/problem+json", **{name.replace("_", "-"): v for name, v in headers.items()}}
    return status, kind, json.dumps({"title": title, "status": status, "cure": "do it right"}).encode()


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


@pytest.mark.parametrize(
    "answer",
    [
        (200, {"Content-Type": "text/html"}, b"<html>It works!</html>"),
        (404, {"Content-Type": "text/html"}, b"<html>Not here</html>"),
        (302, {"Location": "https://example.com/login"}, b""),
        (200, {"Content-Type": "application/json"}, b"{}"),
        (200, {VERSION_HEADER: "x", "Content-Type": "application/json"}, b'{"not": "hello"}'),
        (200, {"Content-Type": "application/json"}, msgspec.json.encode(HELLO)),
    ],
    ids=["a page", "no page", "a login", "another API", "nonsense", "somebody who repeats our words"],
)
def test_something_else_that_listens_there_is_known_for_it(pollux, answer):
    with scripted(answer) as script:
        told = pollux("jobs", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert "is not Pollux" in told.err
    assert "--url or POLLUX_URL" in told.err


def test_something_that_speaks_no_http_is_known_for_it(pollux):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        told = pollux("jobs", "--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
    assert told.code == command_table.UNAVAILABLE
    assert "is not Pollux" in told.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9 cannot be reached: Connection refused"),
        ("http://nowhere.invalid", "http://nowhere.invalid cannot be reached: unknown host"),
        ("http+unix:///nowhere/x.sock", "the socket /nowhere/x.sock cannot be reached: No such file"),
    ],
)
def test_a_node_that_is_not_there_is_told_with_the_cure(pollux, url, says):
    told = pollux("jobs", "--url", url)
    assert told.code == command_table.UNAVAILABLE
    assert says in told.err
    assert "pollux serve" in told.err


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8060",
        "ftp://x",
        "http://",
        "http://user:secret@host",
        "http://h/?q=1",
        "http://h:port",
        "http+unix://x/y",
    ],
)
def test_an_address_that_is_none_is_bad_usage(pollux, url):
    told = pollux("jobs", "--url", url)
    assert told.code == command_table.USAGE
    assert "secret" not in told.err
    with pytest.raises(InvalidInput):
        address_of(url)


def test_an_address_keeps_its_path_and_a_socket_its_name():
    assert address_of("https://pollux.example/behind/").root == "https://pollux.example/behind"
    assert address_of(socket_url(Path("/run/a b/ü%.sock"))).socket == "/run/a b/ü%.sock"
    assert address_of("http://pollux.example").is_open
    assert not address_of("http://127.0.0.1:1").is_open
    assert not address_of("https://pollux.example").is_open


def test_a_certificate_that_nobody_vouches_for_is_refused(pollux):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = Path(__file__).parent / "certificates"
    context.load_cert_chain(folder / "good.pem", folder / "server.key")
    with scripted(ours(HELLO), context=context) as script:
        told = pollux("jobs", "--url", script.url)
        plainly = pollux("jobs", "--url", script.url.replace("https:", "http:"))
    assert told.code == plainly.code == command_table.UNAVAILABLE
    assert "its certificate is not trusted" in told.err
    assert "SSL_CERT_FILE" in told.err
    assert not script.asked, "nothing was sent there, no token either"


def test_who_has_no_token_is_told_where_to_get_one(house):
    without = house.pollux("jobs", "--url", house.url)
    wrong = house.pollux("jobs", "--url", house.url, "--token", "pf_00000000_wrong")
    for told, says in ((without, "no token was given"), (wrong, "refuses the token")):
        assert told.code == command_table.UNAVAILABLE
        assert says in told.err
        assert "`pollux token create`" in told.err
        assert "POLLUX_TOKEN" in told.err
    assert "wrong" not in wrong.err.replace("pf_00000000_wrong", "wrong")


def test_a_node_of_another_version_is_told_with_the_cure(pollux):
    with scripted(problem(409, "version mismatch")) as script:
        told = pollux("jobs", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert "version mismatch" in told.err
    assert "do it right" in told.err


def test_a_limiter_is_obeyed(pollux):
    with scripted(
        problem(429, "too many", Retry_After="0"), ours(HELLO), problem(429, "x", Retry_After="0"), ours([])
    ) as script:
        told = pollux("nodes", "--json", "--url", script.url)
    assert told.json["nodes"] == []
    assert script.asked[:4] == ["GET /api/v2/verbs"] * 2 + ["POST /api/v2/verbs/nodes"] * 2


def test_a_limiter_who_says_wait_for_an_hour_is_not_waited_for(pollux):
    with scripted(problem(429, "too many", Retry_After="3600")) as script:
        told = pollux("nodes", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert len(script.asked) == 1


def test_whoever_waits_is_told_so_once_and_why(pollux):
    wait = problem(503, "store timeout", Retry_After="0")
    with scripted(wait, wait, ours(HELLO), wait, ours([])) as script:
        told = pollux("nodes", "--json", "--url", script.url)
    assert told.json["nodes"] == []
    assert told.err == (f"pollux: {script.url} is busy: store timeout; waiting, up to 5 s\n")


def test_a_node_that_can_do_nothing_is_not_waited_for_as_long_as_a_limiter(pollux):
    with scripted(problem(503, "the store is down", Retry_After="6")) as script:
        told = pollux("nodes", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert len(script.asked) == 1


def test_a_look_that_was_cut_off_is_repeated(pollux):
    with scripted(ours(HELLO), CUT, CUT, ours([])) as script:
        told = pollux("nodes", "--json", "--url", script.url)
    assert told.json["nodes"] == []
    assert script.asked.count("POST /api/v2/verbs/nodes") == 3


def test_a_change_that_was_cut_off_is_not_repeated_and_may_have_happened(pollux):
    with scripted(ours(HELLO), CUT) as script:
        told = pollux("jobs", "run", "home", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert "it may have done what was asked" in told.err
    assert script.asked.count("POST /api/v2/verbs/run_now") == 1


def test_a_dump_that_was_cut_short_is_no_dump(pollux, tmp_path):
    page = {"records": [], "next": "job x"}
    with scripted(ours(HELLO), ours(page)) as script:
        told = pollux("store", "dump", "all.jsonl", "--url", script.url)
    assert told.code == command_table.UNAVAILABLE
    assert "cut short" in told.err
    assert not (tmp_path / "all.jsonl").exists()


def test_a_sealed_store_is_told_as_it_is_locally(pollux):
    with scripted(ours(msgspec.structs.replace(HELLO, sealed="it was moved elsewhere")), ours([])) as script:
        told = pollux("nodes", "--json", "--url", script.url)
    assert told.err == "pollux: it was moved elsewhere\n"


def test_a_token_on_its_way_in_the_clear_is_warned_of(pollux):
    told = pollux("jobs", "--url", "http://nowhere.invalid", "--token", "pf_x_y")
    assert "is not encrypted" in told.err
    assert "pf_x_y" not in told.err
    assert "is not encrypted" not in pollux("jobs", "--url", "http://127.0.0.1:9", "--token", "pf_x_y").err
