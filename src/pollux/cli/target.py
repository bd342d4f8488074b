"""Target of a command: a node by its address, a node of this store by its socket here, or the store itself.

--url or POLLUX_URL ─▶ that node
--store             ─▶ the store itself
else                ─▶ a live socket here of a node on the store that would be opened; else the store itself
nothing was said, and there is no store of the usual name  ─▶ a node that runs from this folder (`node_here`)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from pollux.errors import InvalidInput, PolluxError, StoreError

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.client.rpc_codec import Hello

URL = "pollux.url"  # in a context of click: the node that was named,
URL_SAID = "pollux.url_said"  # by an argument rather than the environment,
TOKEN = "pollux.token"  # noqa: S105  a name
VERBOSE = "pollux.verbose"
HELLO_S = 2.0  # a node that hangs is not waited for: the store itself is there
HELD_CURE = "a handler may hold its event loop, which its log names: ask again later"
TOKEN_CHARS_MAX = 1_000
_Command = TypeVar("_Command", bound=Callable[..., Any])


def url_options(command: _Command) -> _Command:
    """A node instead of the store: `--url URL` and `--token TOKEN`; and which way was taken."""
    for option in (
        click.option(
            "--verbose", is_flag=True, expose_value=False, callback=_remember_verbose, help="Say who answers."
        ),
        click.option(
            "--token",
            metavar="TOKEN",
            envvar="POLLUX_TOKEN",
            expose_value=False,
            callback=_remember_token,
            help="For that node; @FILE reads it from a file; also POLLUX_TOKEN.",
        ),
        click.option(
            "--url",
            metavar="URL",
            envvar="POLLUX_URL",
            expose_value=False,
            callback=_remember_url,
            help="Ask the node there, like https://host:8060; also POLLUX_URL.",
        ),
    ):
        command = option(command)
    return command


def _remember_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    source = ctx.get_parameter_source(param.name or "")
    ctx.meta[URL], ctx.meta[URL_SAID] = value, source is click.core.ParameterSource.COMMANDLINE


def _remember_token(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001  click's
    ctx.meta[TOKEN] = value


def _remember_verbose(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001, FBT001  click's
    ctx.meta[VERBOSE] = value


def _said(key: str, variable: str = "") -> Any:
    """What the command line or the environment says, also where a command has no such option."""
    ctx = click.get_current_context(silent=True)
    found = None if ctx is None else ctx.meta.get(key)
    return found or (os.environ.get(variable) if variable else None)


def is_url_said() -> bool:
    """By an argument, not only by the environment."""
    return bool(_said(URL_SAID))


def node_url(store: str | None) -> str:
    """The address that was given; nothing if the store itself is meant."""
    url = _said(URL, "POLLUX_URL")
    if not url:
        return ""
    if store:
        if is_url_said():
            raise InvalidInput("--url and --store were both given", cure="give one: the node, or the store itself")
        return ""
    from pollux.client import address_of

    address_of(url)
    return str(url)


def refuse_url(store: str | None, what: str) -> None:
    """For commands that work on files or servers themselves."""
    if url := node_url(store):
        cure = "name the store with --store, on a machine that reaches it"
        raise InvalidInput(f"{what}, which cannot be done through {url}", where="url", cure=cure)


async def live_socket(path: Path | None, store_url: str) -> str:
    """The address of the socket if a node of our version answers there that works on this very store; else nothing."""
    if path is None or not may_open(path):
        return ""
    from pollux.client import socket_url
    from pollux.client.rpc_codec import file_mark
    from pollux.secrets import hide
    from pollux.store.urls import place_of

    url = socket_url(path)
    try:
        hello = await said_hello(url)
    except PolluxError:
        return ""
    mark = file_mark(store_url)
    if mark or hello.file:
        return url if hello.file == mark else ""
    return url if place_of(hello.store) == place_of(hide(store_url)) else ""


async def said_hello(url: str) -> Hello:
    """What the node at this socket says of itself; `PolluxError` if it does not within `HELLO_S`, or is none of ours.

    However a node is found, this is the one way to ask whether it can be asked: none is waited for longer.
    """
    from pollux.client import Remote, address_of

    node = Remote(address_of(url), _token())
    try:
        async with asyncio.timeout(HELLO_S):
            await node.open(sealed=True)
    except TimeoutError as error:
        raise StoreError(f"it did not answer within {HELLO_S:.0f} s; {HELD_CURE}") from error
    finally:
        await node.close()
    assert node.hello is not None, "open() reads it"
    return node.hello


class Target(Protocol):
    """A store that this process opens, or a node that it asks: a `Pollux` or a `Remote`."""

    async def open(self, *, sealed: bool = False) -> None: ...

    async def close(self) -> None: ...

    async def sealed(self) -> str: ...

    @property
    def store_url(self) -> str: ...

    @property
    def operations(self) -> OperationsProtocol: ...


def may_open(path: Path) -> bool:
    return path.is_socket() and os.access(path, os.R_OK | os.W_OK)


def app_at(url: str, kind: str, *, version: int | None = None) -> Target:
    """A `Pollux` on the store, or a `Remote` for a node; not yet opened.

    A `version` is that of the deployment on the store; a node has its own.
    """
    from pollux.client import Remote, address_of, is_address

    if is_address(url):
        return Remote(address_of(url), _token(), tell=_tell if kind == "cli" else None)
    from pollux.app import Pollux
    from pollux.app.operations.context import default_actor

    return Pollux(url, actor=default_actor(kind), scheduler_version=version)


def _tell(words: str) -> None:
    from pollux.secrets import hide
    from pollux.units import printable

    click.echo(f"pollux: {printable(hide(words))}", err=True)


def tell_way(url: str) -> None:
    """Who is asked, for those who want to know; and that a token goes where others can read it."""
    from pollux.client import address_of, is_address
    from pollux.secrets import hide

    if not is_address(url):
        if _said(VERBOSE):
            click.echo(f"pollux: the store itself is asked: {hide(url)}", err=True)
        return
    address = address_of(url)
    if _said(VERBOSE):
        click.echo(f"pollux: a node is asked: {address.shown}", err=True)
    if address.is_open and _token():
        click.echo(f"pollux: {address.root} is not encrypted: others can read the token; use https://", err=True)


def _token() -> str:
    given = str(_said(TOKEN, "POLLUX_TOKEN") or "")
    if given.startswith("@"):
        try:
            given = Path(given[1:]).read_text("utf-8", "replace")[:TOKEN_CHARS_MAX]
        except OSError as error:
            what = f"the file {given[1:]} cannot be read: {error.strerror}"
            raise InvalidInput(what, where="token", cure="name a file that holds the token") from error
    token = given.strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidInput("this is no token", where="token", cure="it looks like pf_...; see `pollux token`")
    from pollux.secrets import HIDDEN

    HIDDEN.add(token)  # whatever this process says, it does not say this
    return token
