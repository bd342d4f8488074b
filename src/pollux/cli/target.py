"""Target of a command: a node by its address, a node of this store by its socket here, or the store itself.

--url or POLLUX_URL ─▶ that node
--store             ─▶ the store itself
else                ─▶ a live socket here of a node on the store that would be opened; else the store itself
no store is named, and there is none of the usual name  ─▶ a node that runs from this folder (`node_here`)

`StoreChoice.ask` reads the config and imports the app that it names, then finds the target, opens it and asks it in one
event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click

from pollux.cli.output import clean, notice
from pollux.clock import SystemClock
from pollux.config import Config, load_config
from pollux.config.load import store_of_invalid, variables_in
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError, StoreMoved, StoreRefused, system_words
from pollux.secrets import HIDDEN, MASK, hide
from pollux.store.local_files import AnnouncedNode, announced_in, socket_path, stores_in
from pollux.store.move_marks import marks_of, seal_words
from pollux.store.urls import lacking, open_store, place_of, sqlite_file
from pollux.units import shell_word

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol, Pollux
    from pollux.client.rpc_codec import Hello

# Keys in a context of click.
APP = "pollux.app"
URL = "pollux.url"
URL_IS_ARGUMENT = "pollux.url_is_argument"  # rather than of the environment
TOKEN = "pollux.token"  # noqa: S105  a name
VERBOSE = "pollux.verbose"
MISTAKES_SHOWN = "pollux.mistakes_shown"

CONFIG_HERE = "pollux.yaml"
HELLO_S = 2.0  # a node that hangs is not waited for: the store itself is there
HELD_CURE = "a handler may hold its event loop, which its log names: ask again later"
NOT_CHANGED = "nothing was changed: this store is not in use any more"
TOKEN_CHARS_MAX = 1_000
STORES_NAMED_MAX = 5
_T = TypeVar("_T")


class Target(Protocol):
    """A store that this process opens, or a node that it asks."""

    async def open(self, *, sealed: bool = False) -> None: ...

    async def close(self) -> None: ...

    async def sealed(self) -> str: ...

    @property
    def store_url(self) -> str: ...

    @property
    def operations(self) -> OperationsProtocol: ...


class OpenedStore:
    """A store that this process opens, and its operations on behalf of the user."""

    def __init__(self, url: str, actor: str) -> None:
        from pollux.app import Operations

        clock = SystemClock()
        self.store_url = url
        self.store = open_store(url, clock=clock)
        self.store.refuse_if_moved(hide(url))
        self.operations: OperationsProtocol = Operations.on_store(self.store, clock=clock, actor=actor)

    async def open(self, *, sealed: bool = False) -> None:
        """Open the store; one that was moved elsewhere is refused unless it is only to be read (`sealed`)."""
        await self.store.open()
        if not sealed and (words := await self.sealed()):
            what, _, cure = words.partition("; ")
            raise StoreMoved(what, cure=cure)

    async def sealed(self) -> str:

        return seal_words(await marks_of(self.store), hide(self.store_url))

    async def close(self) -> None:
        await self.store.close()


class StoreChoice(NamedTuple):
    """The options of a command that name the store."""

    config: str | None = None
    store: str | None = None

    def ask(self, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
        """Open the store that is meant, or the connection to a node; ask its operations; close it."""
        return self.ask_target(lambda target: question(target.operations))

    def ask_target(
        self, question: Callable[[Target], Awaitable[_T]], *, made: Callable[[str, Config], Target] | None = None
    ) -> _T:
        """As `ask`, for questions about the store or the node itself; `made`: what opens a store in place of us."""
        place = place_of_target(self)

        async def asked() -> _T:
            url = await existing(await address_of_target(place), self)
            target = target_at(url)
            if made is not None and place.config is not None and isinstance(target, OpenedStore):
                target = made(url, place.config)
            return await answer_of(target, question)

        return asyncio.run(asked())


def ask(url: str, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
    """Ask the operations of this node or store."""
    return ask_target(url, lambda target: question(target.operations))


def ask_target(url: str, question: Callable[[Target], Awaitable[_T]]) -> _T:
    return asyncio.run(answer_of(target_at(url), question))


async def answer_of(target: Target, question: Callable[[Target], Awaitable[_T]]) -> _T:
    async with opened(target):
        return await question(target)


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Target]:
    """The target while it is open.  A store that was moved elsewhere may still be read, which is printed."""
    words = ""
    try:
        await target.open(sealed=True)
        if words := await target.sealed():
            notice(words)
        yield target
    except StoreMoved as error:
        raise StoreRefused(NOT_CHANGED) if words else error from None  # the rest was printed above
    finally:
        await target.close()


def target_at(url: str, kind: str = "cli") -> Target:
    """The node or store at this URL, not yet opened."""
    if _is_address(url):
        from pollux.client import Remote, address_of

        return Remote(address_of(url), token_argument(), tell=notice if kind == "cli" else None)
    from pollux.app.operations.context import default_actor

    return OpenedStore(url, default_actor(kind))


def _is_address(url: str) -> bool:
    from pollux.client import is_address

    return is_address(url)


class StoreConnection:
    """A store, or a node of it, that is asked again and again: closed when it fails, and opened for the next question.

    It never creates a store: it waits for one that is not there.
    """

    def __init__(self, url: str, socket: Path | None = None) -> None:
        self.url, self._socket = url, socket
        self._target: Target | None = None

    @property
    def name(self) -> str:
        """The store's URL."""
        return self.url if self._target is None else self._target.store_url

    async def ask(self, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
        """The answer, or `PolluxError`."""
        try:
            return await question((await self._opened()).operations)
        except StoreError:
            await self.close()
            raise
        except OSError as error:
            await self.close()
            raise StoreError(f"the store {self.url} does not answer: {system_words(error)}") from error

    async def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            with suppress(PolluxError, OSError):
                await target.close()

    async def _opened(self) -> Target:
        if self._target is None:
            address = await live_socket(self._socket, self.url) or self.url
            if not _is_address(address) and (missing := await lacking(address)):
                words = f"there is no store {hide(address)} yet ({missing})"
                raise StoreError(f"{words}; waiting for it (`pollux serve` makes one)")
            target = target_at(address, "top")
            try:
                await target.open()
            except BaseException:
                with suppress(PolluxError, OSError):
                    await target.close()
                raise
            self._target = target
        return self._target


# what the command line and the environment name


def _argument(key: str, variable: str = "") -> Any:
    """The option, or the variable where the command has no such option."""
    ctx = click.get_current_context(silent=True)
    found = None if ctx is None else ctx.meta.get(key)
    return found or (os.environ.get(variable) if variable else None)


def app_argument() -> str | None:
    found: str | None = _argument(APP)
    return found


def is_url_argument() -> bool:
    """By an argument, not only by the environment."""
    return bool(_argument(URL_IS_ARGUMENT))


def node_url(store: str | None) -> str:
    """The address that was given; nothing if the store itself is meant."""
    url = _argument(URL, "POLLUX_URL")
    if not url:
        return ""
    if store:
        if is_url_argument():
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


def token_argument() -> str:
    given = str(_argument(TOKEN, "POLLUX_TOKEN") or "")
    if given.startswith("@"):
        try:
            given = Path(given[1:]).read_text("utf-8", "replace")[:TOKEN_CHARS_MAX]
        except OSError as error:
            what = f"the file {given[1:]} cannot be read: {error.strerror}"
            raise InvalidInput(what, where="token", cure="name a file that holds the token") from error
    token = given.strip()
    if not token.isascii() or not token.isprintable():
        raise InvalidInput("this is no token", where="token", cure="it looks like pf_...; see `pollux token`")

    HIDDEN.add(token)  # it is masked in all that this process prints
    return token


# what the config and the app name


def config_path(given: str | None) -> str | None:
    """The file that was named, or the one in this folder."""
    return given or (CONFIG_HERE if Path(CONFIG_HERE).is_file() else None)


def find_code_here() -> None:
    """Modules in the current folder can be named, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


class StorePlace(NamedTuple):
    """Where a target is looked for."""

    url: str  # of the node that was named, or of the store
    socket: Path | None = None  # of a node of that store, if it may be asked instead
    config: Config | None = None  # None: a node was named


def place_of_target(where: StoreChoice) -> StorePlace:
    if url := node_url(where.store):
        return StorePlace(url)
    config = _loaded(where)
    url = _store_of(config, where)
    return StorePlace(url, None if where.store else socket_of(config, url), config)


def store_url(where: StoreChoice) -> str:
    """What the command line names, else the environment, else the file, else the app's own, else the default."""
    return _store_of(_loaded(where), where)


def _loaded(where: StoreChoice) -> Config:
    """What names the store; a mistake elsewhere in the file or the environment is printed, and no reason to stop."""
    ctx = click.get_current_context(silent=True)
    path = None if where.store else config_path(where.config)
    app = None if where.store or ctx is None else ctx.meta.get(APP)
    config, wrong = load_leniently(path, {"store": where.store, "app": app})
    if wrong is not None and ctx is not None and not ctx.meta.get(MISTAKES_SHOWN):
        ctx.meta[MISTAKES_SHOWN] = True
        warn_of_mistakes(path, wrong)
    return config


def load_leniently(
    path: str | None, arguments: dict[str, Any], *, guesses: bool = False, raw: bytes | None = None
) -> tuple[Config, InvalidConfig | None]:
    """The effective options; with mistakes among them as much as names the store, and the mistakes.

    `raw`: what the file is to hold, in place of what it holds.
    """
    try:
        return load_config(path, environ=os.environ, arguments=arguments, with_jobs=False, raw=raw), None
    except InvalidConfig as error:
        found = store_of_invalid(path, error, environ=os.environ, arguments=arguments, guesses=guesses, raw=raw)
        if found is None:
            raise
        return found, error


def warn_of_mistakes(path: str | None, wrong: InvalidConfig) -> None:
    """Mistakes that are no reason to stop here."""
    for problem in wrong.problems:
        if variables_in(InvalidConfig([problem]), os.environ):
            notice(f"{problem} (left out here)")
        elif path is not None:
            notice(f"{path} has mistakes (`pollux check` lists them); the store that it names is asked")
            path = None  # once


def _store_of(config: Config, where: StoreChoice) -> str:
    if where.store or not config.app or config.is_given("store"):
        return config.store
    from pollux.app.setup import as_configured

    return as_configured(app_of(config).store_url, config)


def app_of(config: Config) -> Pollux:
    """The app that the configuration names; no other store was given to it yet."""
    from pollux.app import Pollux
    from pollux.app.setup import load_app

    find_code_here()
    return load_app(config.app, Pollux, beside=Path(config.path).resolve().parent if config.path else None)


def with_own_code(config: Config) -> Config:
    """The configuration with what the code of its app sets, if it names one."""
    return app_of(config).as_config(config) if config.app else config


def overruled(given: str | None, config: Config) -> InvalidInput | None:
    """A warning where the command line names an app, and ./pollux.yaml, which it does not name, has another store.

    An app that names no store of its own leaves that to the file.  To be asked before the app is configured.
    """
    in_file = f"{CONFIG_HERE}:"
    is_implied = given is None and config.origins["store"].startswith(in_file)
    if not is_implied or not config.app or config.origins["app"].startswith(in_file):
        return None

    own = app_of(config).store_url
    if place_of(own) in {place_of(config.store), Config().store}:
        return None
    what = f"it is read, too: its store {hide(config.store)} is used, and not {hide(own)}, which {config.app} names"
    return InvalidInput(what, where=config.origins["store"], cure="name the one that is meant by --store")


def socket_of(config: Config, url: str) -> Path | None:
    """Where a node on this store listens for commands on the same machine.

    Memory stores do not differ by their URLs, so their sockets must be named.
    """
    if url.startswith("memory:") and not config.server_socket:
        return None
    return socket_path(config.server_socket, url)


def sqlite_path(url: str) -> Path | None:
    """The file behind the URL, if it is one."""
    file = sqlite_file(url)
    return None if file is None else Path(file)


# which node or store is there


async def address_of_target(place: StorePlace) -> str:
    """The node that was named, else a node of the store by its socket here, else the store itself.

    Where nothing names a store, and there is none of the usual name, a node that runs from this folder.
    """
    if place.config is None:
        return place.url
    return await live_socket(place.socket, place.url) or await node_here(place.config, place.url) or place.url


async def node_or_store(config: Config) -> str:
    """A node on the store of this config by its socket here, else that store."""
    return await live_socket(socket_of(config, config.store), config.store) or config.store


def own_store(where: StoreChoice, what: str) -> str:
    """The store itself if it is there, for what no node can do for us: `what` is the reason."""
    refuse_url(where.store, what)
    return asyncio.run(existing(store_url(where), where))


def store_lacks(url: str) -> str:
    """What is missing for this store to be there, in words; nothing if it is.  Looking creates none."""
    return asyncio.run(lacking(url))


async def existing(url: str, where: StoreChoice) -> str:
    """The same URL if a store is there; looking creates none."""
    from pollux.client import is_address

    print_target(url)
    if url.startswith("memory:"):
        raise StoreRefused(
            "a memory store lives inside the one process that made it, and no node of it runs from this folder; "
            "use sqlite:///pollux.db to look from outside"
        )
    if not is_address(url) and (missing := await lacking(url)):
        file = None if where.store or os.environ.get("POLLUX_STORE") else config_path(where.config)
        app = None if where.store else _loaded(where).app
        how = f"-c {file}" if file else f"--app {app}" if app else f"--store {shell_word(hide(url))}"
        own = ", or your program if it calls app.run()" if app and not file else ""
        options = "--store, --app MODULE:ATTRIBUTE or -c"
        cure = f"start one with `pollux serve {how}`{own}, or name the one that is meant with {options}"
        is_named = file or app or _loaded(where).is_given("store")
        raise StoreRefused(f"there is no store {hide(url)} ({missing}); {'' if is_named else _others_here()}{cure}")
    return url


def _others_here() -> str:
    """Where no store is named: those in this folder, as an app leaves them behind."""
    found = stores_in(Path.cwd())[:STORES_NAMED_MAX]
    how = f"name it with --store {clean(shell_word(found[0]))}" if len(found) == 1 else "name the one with --store"
    return f"this folder has {clean(', '.join(found))}: {how}; or " if found else ""


def may_open(path: Path) -> bool:
    return path.is_socket() and os.access(path, os.R_OK | os.W_OK)


async def live_socket(path: Path | None, store_url: str) -> str:
    """The address of the socket if a node of our version answers there that works on this very store; else nothing."""
    if path is None or not may_open(path):
        return ""
    from pollux.client import socket_url
    from pollux.client.rpc_codec import file_mark

    url = socket_url(path)
    try:
        hello = await hello_of(url)
    except PolluxError:
        return ""
    mark = file_mark(store_url)
    if mark or hello.file:
        return url if hello.file == mark else ""
    return url if place_of(hello.store) == place_of(hide(store_url)) else ""


async def hello_of(url: str) -> Hello:
    """The hello of the node at this socket; `PolluxError` if it does not answer within `HELLO_S`, or is none of ours.

    However a node is found, this is the one way to ask whether it can be asked: none is waited for longer.
    """
    from pollux.client import Remote, address_of

    node = Remote(address_of(url), token_argument())
    try:
        async with asyncio.timeout(HELLO_S):
            await node.open(sealed=True)
    except TimeoutError as error:
        raise StoreError(f"it did not answer within {HELLO_S:.0f} s; {HELD_CURE}") from error
    finally:
        await node.close()
    assert node.hello is not None, "open() reads it"
    return node.hello


async def node_here(config: Config, url: str) -> str:
    """The address of a node that runs from this folder on another store than the usual one; "": there is none.

    The store that it announced if the node does not answer, as with one that is found in any other way.
    """
    from pollux.client import is_address

    is_memory = url.startswith("memory:")
    if is_address(url) or (not is_memory and (config.is_given("store") or config.path or config.app)):
        return ""
    found = [each for each in announced_in(Path.cwd()) if may_open(Path(each.socket))]
    # On this very store it was asked before, by its socket, and does not answer.
    found = [each for each in found if (each.store.startswith("memory") if is_memory else each.store != url)]
    if not found:
        return ""
    words = "; ".join(f"pid {each.pid} on {each.store}" for each in found)
    if not is_memory and not await lacking(url):
        notice(f"a node here works on another store ({words}); this is about {url}: see --store")
        return ""
    if len(found) > 1:
        raise InvalidInput(f"several nodes run from this folder: {words}", cure="name one by --store or --app")
    return await _node_or_announced(found[0])


async def _node_or_announced(node: AnnouncedNode) -> str:
    from pollux.client import socket_url

    url = socket_url(Path(node.socket))
    try:
        await hello_of(url)
    except PolluxError as error:
        is_closed = node.store.startswith("memory") or MASK in node.store  # its password is not known here
        if is_closed or await lacking(node.store):
            what = f"the node that runs from this folder (pid {node.pid} on {node.store}) cannot be asked"
            raise StoreError(f"{what}: {error}") from error
        return node.store
    return url


def print_target(url: str) -> None:
    """With --verbose what is asked; and in any case that a token travels where others can read it."""
    from pollux.client import address_of, is_address

    if not is_address(url):
        if _argument(VERBOSE):
            notice(f"the store itself is asked: {url}")
        return
    address = address_of(url)
    if _argument(VERBOSE):
        notice(f"a node is asked: {address.shown}")
    if address.is_open and token_argument():
        notice(f"{address.root} is not encrypted: others can read the token; use https://")
