"""Options of `server`: each one reaches the API."""

from pathlib import Path

import pytest

from pollux.config import load_config
from pollux.config.settings import OPTIONS
from pollux.server import ServerOptions, nearby_options, server_options
from pollux.server.limits import ApiLimits

CERTIFICATES = Path(__file__).parents[1] / "acceptance" / "certificates"
# Each option in the file, and what is different for it.
SAID = {
    "host": ("host: 127.0.0.9", {"host": "127.0.0.9"}),
    "port": ("port: 8123", {"port": 8123, "is_port_given": True}),
    "hosts": ("hosts: [a.example, b.example]", {"hosts": ("a.example", "b.example")}),
    "tls": (
        f"tls: {{cert: {CERTIFICATES}/good.pem, key: {CERTIFICATES}/server.key}}",
        {"tls": (CERTIFICATES / "good.pem", CERTIFICATES / "server.key")},
    ),
    "behind_proxy": ("behind_proxy: true", {"proxies": ("127.0.0.0/8", "::1/128")}),
    "proxies": ("{behind_proxy: true, proxies: [10.0.0.0/8]}", {"proxies": ("10.0.0.0/8",)}),
    "token": ('token: "${env:SECRET}"', {"token": "k" * 32}),
    "token_file": ("token_file: /run/first", {"token_file": "/run/first"}),
    "socket": ("socket: false", {"socket": None, "is_socket_given": True}),
    "rate": ("rate: 7", {"limits": ApiLimits(rate=7, burst=14)}),
    "connections": ("connections: 9", {"limits": ApiLimits(connections=9)}),
    "requests": ("requests: 8", {"limits": ApiLimits(at_work=8)}),
}


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def options(said: str = "", *, plans: bool = True, **environ: str) -> ServerOptions | None:
        text = said if said.startswith("{") or not said else f"{{{said}}}"
        (tmp_path / "p.yaml").write_text(f"store: sqlite:///p.db\nserver: {text}\n")
        return server_options(load_config("p.yaml", environ={"SECRET": "k" * 32} | environ), plans=plans)

    return options


def told(options: ServerOptions) -> dict[str, object]:
    found = {name: getattr(options, name) for name in options.__struct_fields__}
    return found | {"token_file": str(options.token_file)}


def test_every_option_of_the_api_is_among_them():
    ours = {option.path.removeprefix("server.") for option in OPTIONS if option.path.startswith("server.")}
    assert {*SAID, "enabled"} == ours


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_the_api_is_what_it_listens_by(options, name):
    said, expected = SAID[name]
    usual, found = told(options()), told(options(said))
    assert {each: value for each, value in found.items() if value != usual[each]} == expected


def test_an_api_that_is_not_wanted_is_not_there(options):
    assert options("enabled: false") is None
    assert options(POLLUX_SERVER="false") is None


def test_a_program_has_a_socket_and_no_port_unless_it_wants_neither():
    found = nearby_options("sqlite:///p.db", {"POLLUX_PORT": "8123"})
    assert found is not None
    assert (found.has_port, found.socket is None) == (False, False)
    assert nearby_options("sqlite:///p.db", {"POLLUX_SERVER": "false"}) is None


def test_who_plans_nothing_has_one_if_it_serves_or_names_a_port(options):
    """`SCHEDULER_V2_ENABLED=false`: the API and the workers of a `serve`, without planning."""
    assert options(SCHEDULER_V2_ENABLED="false") is not None
    assert options(plans=False) is None
    assert options("port: 8123", plans=False) is not None
