"""The config that a node runs by, which differs from its file after a refused reload."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pollux.cli.options import ask, ask_target, node_here, node_or_store, store_lacks, with_own_code
from pollux.cli.output import clean
from pollux.cli.target import HELLO_S, app_at, is_url_said, may_open, said_hello, tell_way
from pollux.client import is_address, socket_url
from pollux.client.rpc_codec import file_mark
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError
from pollux.secrets import MASK, hide
from pollux.store.local_files import SOCKET, announced_in, state_folder
from pollux.store.urls import place_of
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.reload import RunningConfig
    from pollux.cli.target import Target
    from pollux.config import Config
    from pollux.config.descriptions import EffectiveOption
    from pollux.config.settings import LiveSetting
    from pollux.store.local_files import AnnouncedNode

SOCKETS_MAX = 20  # that are asked


def node_by(config: Config) -> RunningConfig | None:
    """What the node here runs by that reads this very file; None if there is none."""
    if not config.path:
        return None
    address = node_or_store(config)
    if not is_address(address):
        return None
    try:
        return ask(address, lambda operations: reading(operations, config.path))
    except PolluxError:
        return None


def options_of_node(config: Config) -> list[EffectiveOption] | None:
    """By what a node here runs that reads no file: of the app that was named, or one that runs from this folder."""
    if is_url_said():
        return None
    config = with_own_code(config)
    address = node_or_store(config)
    try:
        address = address if is_address(address) else node_here(config, config.store)
    except StoreError:  # it hangs
        return None
    if not is_address(address):
        return None
    tell_way(address)
    try:
        found: list[EffectiveOption] = ask(address, lambda operations: operations.config_file.options_in_force())
    except PolluxError:
        return None
    return found


def silent_node(config: Config) -> AnnouncedNode | None:
    """The node that is meant here, lives and does not answer: on this store, or the only one where nothing says which.

    It announced itself in the folder from which it runs.
    """
    if is_url_said():
        return None
    nodes = announced_in(Path.cwd())
    found = [each for each in nodes if _is_on(each.store, config.store)]
    is_any = not (config.is_given("store") or config.path or config.app)
    if not found and len(nodes) == 1 and is_any and store_lacks(config.store):
        found = nodes
    silent = (each for each in found if not asyncio.run(_answers(socket_url(Path(each.socket)))))
    return next(silent, None)


def as_announced(config: Config, node: AnnouncedNode) -> Config:
    """With what is known of a node that does not answer; that this is so is said.

    Where there is a file, that is what was asked about: whether the node goes by it, only the node could tell.
    """
    words = f"the node of pid {node.pid} on {node.store} does not answer within {HELLO_S:g} s"
    seats = {"seats": node.seats} if node.seats else {}
    if config.path:
        shown = f"this is what a start would make of {config.path}"
        shown += f"; it started with {counted(node.seats, 'seat')}" if seats else ""
    else:
        what, verb = ("store and seats", "are") if seats else ("store", "is")
        shown = f"its {what} {verb} shown as it started; all else is what a start here would take"
    click.echo(f"pollux: {clean(words)}: {clean(shown)}", err=True)
    if config.path:
        return config
    paths = ("store", "pool.seats") if seats else ("store",)
    origins = config.origins | dict.fromkeys(paths, f"node of pid {node.pid}, as it started")
    written = {path: text for path, text in config.written.items() if path not in paths}
    store = config.store if _is_on(node.store, config.store) else node.store
    return msgspec.structs.replace(config, store=store, **seats, origins=origins, written=written)


def _is_on(told: str, url: str) -> bool:
    """Is what a node tells of its store about this one?"""
    mark = file_mark(url)
    return place_of(told) == place_of(hide(url)) or bool(mark and mark == file_mark(told))


async def _answers(address: str) -> bool:
    try:
        await said_hello(address)
    except PolluxError:
        return False
    return True


async def reading(operations: OperationsProtocol, path: str) -> RunningConfig | None:
    """What the app runs by if it reads this very file; None if it reads another one, or none."""
    try:
        found: RunningConfig = await operations.config_file.file_in_force()
    except InvalidInput:  # it has no file
        return None
    return found if _is_same(found.path, path) else None


def _is_same(path: str, other: str) -> bool:
    return Path(path).resolve() == Path(other).resolve()


def tell_elsewhere(path: str, url: str) -> None:
    """Say it if a node here reads this very file and works on another store than the file names by now."""
    for socket in _sockets_near(path):
        file, other = asyncio.run(_reading(socket)) if may_open(socket) else ("", "")
        if file and _is_same(file, path) and place_of(other) != place_of(hide(url)):
            words = f"a node reads {path} and works on {other}: it stays there until it is restarted"
            click.echo(f"pollux: {clean(words)}; this is about {clean(hide(url))}", err=True)
            return


def _sockets_near(path: str) -> list[Path]:
    """Where nodes that may read the file listen: stores are kept beside it, or their sockets in the user's folder."""
    folders = dict.fromkeys((Path(path).absolute().parent, Path.cwd(), state_folder()))
    return [each for folder in folders for each in sorted(folder.glob(f"*{SOCKET}"))][:SOCKETS_MAX]


async def _reading(socket: Path) -> tuple[str, str]:
    """Which file the node there reads, if any, and on which store it works."""
    target = app_at(socket_url(socket), "hello")
    try:
        async with asyncio.timeout(HELLO_S):
            await target.open(sealed=True)
            found = await target.operations.config_file.file_in_force()
            return str(found.path), str(target.store_url)
    except (PolluxError, TimeoutError):
        return "", ""
    finally:
        await target.close()


def tell_refused(config: Config, node: RunningConfig, wrong: InvalidConfig | None, *, is_start: bool) -> None:
    """Why the file does not say what holds; `is_start`: what was shown is what a start would make of it."""
    problems = node.refused or tuple(map(str, wrong.problems if wrong is not None else ()))
    what = "refused" if problems else "not read again yet (`pollux reload` does that)"
    shown = "a start would try this" if is_start else "this is what it runs by"
    words = f"{config.path} was changed and {what}; the node goes on by the text before: {shown}"
    click.echo(f"pollux: {clean(words)}", err=True)
    for problem in problems:
        click.echo(f"  {clean(problem)}", err=True)


def tell_restarts(node: RunningConfig) -> None:
    for change in node.needs_restart:
        words = f"{change.path}: {change.before} holds until the node is restarted, then {change.after}"
        click.echo(clean(words), err=True)


def live_of(config: Config, *, is_asked: bool) -> dict[str, LiveSetting]:
    """What is set for all nodes of the store; nothing where there is no store yet.

    Unless a node was asked itself (`is_asked`), it is said if one runs by another text of the file.
    """
    url = config.store
    if url.startswith("memory:") or MASK in url:  # as a node told it: the password is not known here
        return {}
    from pollux.app import Pollux
    from pollux.app.reload import FILE_NOTE, digest_in
    from pollux.config.settings import read_live
    from pollux.model import SETTING
    from pollux.store.decoding import as_far

    async def question(target: Target) -> tuple[list[Any], list[Any]]:
        assert isinstance(target, Pollux), "a store's URL"
        return (await as_far(target.backend.notes(SETTING)))[0], await target.operations.status.nodes()

    try:
        if store_lacks(url):
            return {}
        notes, nodes = ask_target(url, question)
    except StoreError as error:
        click.echo(f"pollux: what is set for all nodes cannot be told: {clean(str(error))}", err=True)
        return {}
    key = f"{FILE_NOTE}{config.source}"
    for value in (note.value for note in notes if note.key == key and not is_asked):
        node = str(value.get("node", "")) if isinstance(value, dict) else ""
        if digest_in(value) != config.digest and any(each.id == node for each in nodes):
            say = f"node {node} runs by another text of {config.path}; `pollux check` says whether this one can be used"
            click.echo(f"pollux: {clean(say)}", err=True)
    return read_live(notes)
