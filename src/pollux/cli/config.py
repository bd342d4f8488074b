"""`pollux config` and `pollux set`: the value of every option and its origin, and options changed for all nodes.

A node may run by another config than its file after a refused reload: then that one is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from pollux.cli.options import config_option, every_option, json_option, leader_options, node_options, store_options
from pollux.cli.output import ago, clean, notice, now_ms, print_items, print_json, print_table
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import (
    HELLO_S,
    OpenedStore,
    StoreChoice,
    Target,
    answer_of,
    config_path,
    hello_of,
    is_url_argument,
    load_leniently,
    node_here,
    node_or_store,
    print_target,
    target_at,
    with_own_code,
)
from pollux.client import is_address, socket_url
from pollux.client.rpc_codec import file_mark
from pollux.config import Config
from pollux.config.descriptions import EffectiveOption, effective_options, example_config
from pollux.config.settings import LiveSetting, is_overruled, read_live, with_live
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError
from pollux.model import SETTING, Node, Note
from pollux.secrets import MASK, hide
from pollux.store.decoding import readable_part
from pollux.store.local_files import AnnouncedNode, announced_in
from pollux.store.urls import lacking, place_of
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.reload import RunningConfig

_T = TypeVar("_T")


@click.command(cls=TeachingCommand)
@every_option
@config_option("The config; else ./pollux.yaml.", "path")
@node_options
@leader_options
@click.option("--only-set", is_flag=True, help="Leave out options that have their default.")
@click.option("--example", is_flag=True, help="Print a commented file with every option instead.")
@json_option
def config(path: str | None, *, only_set: bool, example: bool, as_json: bool, **arguments: Any) -> None:
    """Show every option: its value, its default, and where the value came from.

    Arguments win over the environment, that over what is live (`pollux set`), that over the file, that over the
    defaults.  Take a `pollux serve` command line and write `config` for `serve` to see what it would start with.
    A node that reads the file and has refused its text runs by the one before: then that is shown, and why.
    Without a file it shows by what a node here runs: of --app or POLLUX_APP, or one that runs from this folder; where
    none does, what the code of --app sets.
    Passwords are never shown.

    For example:
      pollux config -c pollux.yaml
      pollux config -c pollux.yaml --seats 50 --only-set
      pollux config --app monitor:app --only-set
      pollux config --example > pollux.yaml
    """
    if example:
        click.echo(example_config(), nl=False)
        return
    path = config_path(path)
    loaded, wrong = load_leniently(path, arguments, guesses=True)
    node = asyncio.run(node_by(loaded))
    is_other = node is not None and not node.is_there
    if wrong is not None and not is_other:
        raise wrong
    is_start = any(value is not None for name, value in arguments.items() if name != "store") and wrong is None
    if node is not None and is_other and not is_start:
        found: Sequence[EffectiveOption] = node.options
    else:
        found = asyncio.run(_options(with_own_code(loaded), is_start=is_start, is_asked=node is not None))
    lines = [line for line in found if line.is_set or not only_set]
    if as_json:
        refused = node.refused if node is not None else ()
        print_json({"config": loaded.path or None, "options": lines, "refused": refused})
        return
    print_table(
        ("option", "value", "default", "from"), ((line.option, line.value, line.default, line.origin) for line in lines)
    )
    for line in lines:
        if line.live:
            click.echo(f"{line.option}: {line.origin} overrules what is set for all nodes: {line.live}", err=True)
    if not lines:
        click.echo("nothing is set: every option has its default", err=True)
    if node is not None and is_other:
        _print_refused(loaded, node, wrong, is_start=is_start)
    elif node is not None:
        _print_restarts(node)


async def _options(config: Config, *, is_start: bool, is_asked: bool) -> Sequence[EffectiveOption]:
    """The options of a node here that reads no file; where none answers, those of a start; `is_asked`: a node was."""
    if not (is_start or config.path) and (found := await options_of_node(config)):
        return found
    silent = None if is_start or is_asked else await silent_node(config)
    config = config if silent is None else as_announced(config, silent)
    live = await live_of(config, is_asked=is_asked)
    overruled = {path: f"{each.value}, {each.origin}" for path, each in live.items() if is_overruled(config, path)}
    return effective_options(with_live(config, live), overruled)


async def _answer_at(address: str, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T | None:
    """The answer of the node there; None if it is no address of a node, or there is no answer."""
    if not is_address(address):
        return None
    try:
        return await answer_of(target_at(address), lambda target: question(target.operations))
    except PolluxError:
        return None


async def node_by(config: Config) -> RunningConfig | None:
    """The running config of the node here that reads this very file; None if there is none."""
    if not config.path:
        return None
    return await _answer_at(await node_or_store(config), lambda operations: reading(operations, config.path))


async def options_of_node(config: Config) -> Sequence[EffectiveOption] | None:
    """The options of a node here that reads no file: of the app that was named, or one that runs from this folder."""
    if is_url_argument():
        return None
    address = await node_or_store(config)
    if not is_address(address):
        try:
            address = await node_here(config, config.store)
        except StoreError:  # it hangs
            return None
    if is_address(address):
        print_target(address)
    return await _answer_at(address, lambda operations: operations.config_file.options_in_force())


async def silent_node(config: Config) -> AnnouncedNode | None:
    """The node that lives here and does not answer: on this store, or the only one where no store is named.

    It announced itself in the folder from which it runs.
    """
    if is_url_argument():
        return None
    nodes = announced_in(Path.cwd())
    found = [each for each in nodes if _is_on(each.store, config.store)]
    is_any = not (config.is_given("store") or config.path or config.app)
    if not found and len(nodes) == 1 and is_any and await lacking(config.store):
        found = nodes
    for each in found:
        try:
            await hello_of(socket_url(Path(each.socket)))
        except PolluxError:
            return each
    return None


def as_announced(config: Config, node: AnnouncedNode) -> Config:
    """The config with what is known of a node that does not answer, which is printed.

    Where there is a file, that is what was asked about: whether the node runs by it only the node knows.
    """
    words = f"the node of pid {node.pid} on {node.store} does not answer within {HELLO_S:g} s"
    seats = {"seats": node.seats} if node.seats else {}
    if config.path:
        shown = f"this is what a start would make of {config.path}"
        shown += f"; it started with {counted(node.seats, 'seat')}" if seats else ""
    else:
        what, verb = ("store and seats", "are") if seats else ("store", "is")
        shown = f"its {what} {verb} shown as it started; all else is what a start here would take"
    notice(f"{words}: {shown}")
    if config.path:
        return config
    paths = ("store", "pool.seats") if seats else ("store",)
    origins = config.origins | dict.fromkeys(paths, f"node of pid {node.pid}, as it started")
    written = {path: text for path, text in config.written.items() if path not in paths}
    store = config.store if _is_on(node.store, config.store) else node.store
    return msgspec.structs.replace(config, store=store, **seats, origins=origins, written=written)


def _is_on(shown: str, url: str) -> bool:
    """Whether the URL that a node shows of its store means this one."""
    mark = file_mark(url)
    return place_of(shown) == place_of(hide(url)) or bool(mark and mark == file_mark(shown))


async def reading(operations: OperationsProtocol, path: str) -> RunningConfig | None:
    """The running config of a node that reads this very file; None if it reads another one, or none."""
    try:
        found = await operations.config_file.file_in_force()
    except InvalidInput:  # it has no file
        return None
    return found if is_same_file(found.path, path) else None


def is_same_file(path: str, other: str) -> bool:
    return Path(path).resolve() == Path(other).resolve()


def _print_refused(config: Config, node: RunningConfig, wrong: InvalidConfig | None, *, is_start: bool) -> None:
    """Why the file does not hold; `is_start`: what was shown is what a start would make of it."""
    problems = node.refused or tuple(map(str, wrong.problems if wrong is not None else ()))
    what = "refused" if problems else "not read again yet (`pollux reload` does that)"
    shown = "a start would try this" if is_start else "this is what it runs by"
    words = f"{config.path} was changed and {what}; the node goes on by the text before: {shown}"
    notice(words)
    for problem in problems:
        click.echo(f"  {clean(problem)}", err=True)


def _print_restarts(node: RunningConfig) -> None:
    for change in node.needs_restart:
        words = f"{change.path}: {change.before} holds until the node is restarted, then {change.after}"
        click.echo(clean(words), err=True)


async def live_of(config: Config, *, is_asked: bool) -> dict[str, LiveSetting]:
    """What is set for all nodes of the store; nothing where there is no store yet.

    Unless a node was asked itself (`is_asked`), a node that runs by another text of the file is named.
    """
    url = config.store
    if url.startswith("memory:") or MASK in url:  # a node masks the password
        return {}
    from pollux.app.reload import FILE_NOTE, digest_in

    async def read(target: Target) -> tuple[list[Note], list[Node]]:
        assert isinstance(target, OpenedStore), "a store's URL"
        return (await readable_part(target.store.notes(SETTING)))[0], await target.operations.status.nodes()

    try:
        if await lacking(url):
            return {}
        notes, nodes = await answer_of(target_at(url), read)
    except StoreError as error:
        notice(f"what is set for all nodes cannot be read: {error}")
        return {}
    key = f"{FILE_NOTE}{config.source}"
    for value in (note.value for note in notes if note.key == key and not is_asked):
        node = str(value.get("node", "")) if isinstance(value, dict) else ""
        if digest_in(value) != config.digest and any(each.id == node for each in nodes):
            say = (
                f"node {node} runs by another text of {config.path}; `pollux check` shows whether this one can be used"
            )
            notice(say)
    return read_live(notes)


@click.command("set", cls=TeachingCommand)
@click.argument("option", metavar="[OPTION]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--unset", is_flag=True, help="Let the file, or the default, decide again.")
@json_option
@store_options
def set_option(option: str | None, value: str | None, where: StoreChoice, *, unset: bool, as_json: bool) -> None:
    """Change an option for all nodes, now and over restarts; without arguments list what was changed.

    The environment and the arguments of a node win over it: `pollux config` shows which value holds and why.  Options
    that need a restart are refused: change them in the file.

    For example:
      pollux set pool.seats 50
      pollux set --unset pool.seats
      pollux set
    """
    if option is None:
        _list(where, as_json=as_json, is_confused=unset)
        return
    if unset == (value is not None):
        raise InvalidInput("an option has a value, or is unset", cure="pollux set pool.seats 50, or --unset pool.seats")
    if unset:
        was_set = where.ask(lambda operations: operations.settings.unset_setting(option))
        if as_json:
            print_json({"unset": [option] if was_set else []})
        else:
            click.echo(f"{option} is {'unset: the file decides again' if was_set else 'not set for all nodes'}")
        return
    setting = where.ask(lambda operations: operations.settings.set_setting(option, value))
    if as_json:
        print_json({"setting": setting})
    else:
        click.echo(f"{setting.path} is {setting.value} for all nodes; `pollux set --unset {setting.path}` ends it")


def _list(where: StoreChoice, *, as_json: bool, is_confused: bool) -> None:
    if is_confused:
        raise InvalidInput("say what to unset", cure="pollux set --unset pool.seats")
    found = where.ask(lambda operations: operations.settings.list_settings())
    if as_json:
        print_json({"settings": found})
        return
    now = now_ms()
    print_items(
        found,
        {
            "option": lambda each: each.path,
            "value": lambda each: each.value,
            "by": lambda each: each.by,
            "when": lambda each: ago(each.at_ms, now=now),
            "meaning": lambda each: each.meaning,
        },
        none="nothing is changed for all nodes; `pollux config` shows every option",
    )
