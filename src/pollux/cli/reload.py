"""`pollux reload`: apply a changed config file, show what it would change, or roll it back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pollux.cli.check import as_option, place_for, print_place
from pollux.cli.config import is_same_file, reading
from pollux.cli.options import json_option, store_options
from pollux.cli.output import clean, moment, notice, print_json, print_table
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import (
    CONFIG_HERE,
    HELLO_S,
    StoreChoice,
    address_of_target,
    answer_of,
    ask,
    config_path,
    find_code_here,
    load_leniently,
    may_open,
    node_or_store,
    node_url,
    place_of_target,
    print_target,
    store_lacks,
    target_at,
    warn_of_mistakes,
)
from pollux.client import is_address, socket_url
from pollux.config import Config, load_config
from pollux.config.file_history import SavedText, last_texts
from pollux.config.load import digest_of, file_source
from pollux.errors import Conflict, InvalidConfig, InvalidInput, PolluxError, StoreRefused
from pollux.secrets import hide
from pollux.store.local_files import SOCKET, state_folder
from pollux.store.urls import place_of
from pollux.units import format_size

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.reload import ReloadResult

COMMANDLINE = click.core.ParameterSource.COMMANDLINE
SOCKETS_MAX = 20  # that are asked
TEXT_BYTES_MAX = 490_000  # of a text that a node is asked about: as JSON at most twice as long
_T = TypeVar("_T")


@click.command(cls=TeachingCommand)
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@click.option("--rollback", is_flag=True, help="Put the text before back into the file, and apply it.")
@click.option("--to", metavar="DIGEST", help="With --rollback: the text of this digest; a few characters will do.")
@click.option("--versions", is_flag=True, help="List the texts of the file that were applied.")
@click.option("--replace", is_flag=True, help="Also if most jobs are removed, or jobs that a living node declares.")
@as_option
@json_option
@store_options
def reload(
    to: str | None,
    as_file: str | None,
    where: StoreChoice,
    *,
    dry_run: bool,
    rollback: bool,
    versions: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Read the config file again and apply it: + added, ~ changed, - removed, ! needs a restart.

    Everything is checked before anything is written: a file with a mistake changes nothing, and the exit code is 2.
    Jobs that did not change keep their due times and their memory; jobs that came by API or code stay.  A node that
    runs does it itself (it also watches its file, and reloads on SIGHUP); without one the jobs are written to the
    store, which is made if it is not there yet.
    With --dry-run -c a node is asked what another text would change, before that is put into its file.

    A text whose set of jobs the file never had is refused (exit code 1) if it would take away jobs which a living node
    declares from another text of that name (without a node of this file: one that it had, too), or more than half of
    them (and at least five), unless its `release` is higher or --replace is given.

    For example:
      pollux reload --dry-run
      pollux reload --dry-run -c new.yaml
      pollux reload -c pollux.yaml
      pollux reload --rollback
      pollux reload --versions
    """
    if sum((dry_run, rollback, versions)) > 1 or (to and not rollback):
        raise InvalidInput("these do not go together", cure="give one of --dry-run, --rollback [--to D], --versions")
    if versions and replace:
        raise InvalidInput("--replace is about what changes", cure="leave it out with --versions")
    if as_file and not dry_run:
        raise InvalidInput("--as is about what would change", cure="give it with --dry-run")
    if versions:
        kept = _asked(where, lambda operations: operations.config_file.file_versions(), looks=True)
        _print_versions(kept, as_json=as_json)
        return
    if rollback:
        answer = _asked(where, lambda operations: operations.config_file.rollback(to, replace=replace))
    else:
        answer = _reloaded(where, file_source(as_file) if as_file else "", dry_run=dry_run, replace=replace)
    _print_changes(answer, as_json=as_json)
    if answer.refused and not replace:
        raise Conflict(f"{answer.source}: {answer.refused}", cure="it would be refused without --replace")
    if rollback and not as_json:
        saved = f"; what it held is in {answer.aside}" if answer.aside else ""
        click.echo(clean(f"{answer.path} has an earlier text again{saved}"))


def _reloaded(where: StoreChoice, source: str, *, dry_run: bool, replace: bool) -> ReloadResult:
    """A node gets the text or the digest of the file here, so that it cannot mean another file of that name."""
    url = _target_url(where, None)
    if is_address(url):
        print_target(url)
        sent = _sent(where, source, dry_run=dry_run)
        return ask(url, lambda operations: operations.config_file.reload(dry_run=dry_run, replace=replace, **sent))

    path = _path(where)
    arguments = {"store": where.store}
    config = load_config(path, environ=os.environ, arguments=arguments)  # all mistakes at once
    if not where.store:
        _print_elsewhere(path, url)
    if dry_run and not source and (source := place_for(config, url)):
        print_place(config, source)
    config = load_config(path, environ=os.environ, arguments=arguments, with_jobs=False, source=source)
    if dry_run:
        config = _options_of(path, config, looks=True)  # otherwise the store is made, as a start would
    return _alone(config, lambda operations: operations.config_file.reload(dry_run=dry_run, replace=replace))


def _sent(where: StoreChoice, source: str, *, dry_run: bool) -> dict[str, str]:
    """The file here, as a node gets it; one that was named by its address only if the command line names the file."""
    path = config_path(where.config)
    if node_url(where.store) and not _is_config_argument():
        path = None
    if path is None:
        if source:
            raise InvalidInput("there is no file to look at", cure="name it with -c")
        return {}
    text = _text_at(path)
    return {"text": text, "called": path, "source": source} if dry_run else {"only": digest_of(text.encode())}


def _asked(where: StoreChoice, question: Callable[[OperationsProtocol], Awaitable[_T]], *, looks: bool = False) -> _T:
    """A node that reads this file if one answers here, else the file and the store; the file may have mistakes."""
    if (named := node_url(where.store)) and _is_config_argument():
        what = f"{named} has the texts of the file that it reads itself, and not those of {where.config}"
        cure = "leave -c out, or ask on the machine of that file, without --url and POLLUX_URL"
        raise InvalidInput(what, where="config", cure=cure)
    lost = None if named else _lost(where)
    try:
        url = _target_url(where, lost)
    except InvalidConfig as error:
        cure = "name it with --store, as in: pollux reload --rollback -c pollux.yaml --store sqlite:///pollux.db"
        what = "the file cannot be read, so that its store is unknown"
        raise InvalidInput(what, where=str(where.config or ""), cure=cure) from error
    if is_address(url):
        path = None if named else config_path(where.config) if lost is None else lost.path
        answer = _of_node(url, path, question)
        if answer is not None:
            return answer
        notice(f"the node that answers here does not read {path}: it is not asked")
    if lost is None:
        lost = load_leniently(_path(where), {"store": where.store})[0]
    return _alone(_options_of(lost.path, lost, looks=looks), question)


def _target_url(where: StoreChoice, lost: Config | None) -> str:
    if lost is None:
        return asyncio.run(address_of_target(place_of_target(where)))
    return lost.store if where.store else asyncio.run(node_or_store(lost))


def _is_config_argument() -> bool:
    """By an argument, not only by the environment."""
    return click.get_current_context().get_parameter_source("config") is COMMANDLINE


def _of_node(url: str, path: str | None, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T | None:
    """The answer of the node; None if a file is meant that it does not read: it would do it to its own."""

    async def asked(operations: OperationsProtocol) -> _T | None:
        return await question(operations) if path is None or await reading(operations, path) is not None else None

    print_target(url)
    return ask(url, asked)


def _lost(where: StoreChoice) -> Config | None:
    """The options of a file that was removed, by the last text that was applied, if that is kept beside it."""
    path = where.config or CONFIG_HERE
    kept = [] if Path(path).exists() else last_texts(path)
    if len(kept) != 1:
        return None
    notice(f"{path} was removed; the text of it that was applied last is {kept[0].path}")
    find_code_here()
    config, wrong = load_leniently(path, {"store": where.store}, raw=kept[0].read())
    if wrong is not None:
        warn_of_mistakes(path, wrong)
    return config


def _path(where: StoreChoice) -> str:
    path = config_path(where.config)
    if path is None:
        cure = "name it with -c (and its store with --store if the file was removed), or create ./pollux.yaml"
        raise InvalidInput("there is no file to read again", cure=cure)
    find_code_here()
    return path


def _options_of(path: str, config: Config, *, looks: bool) -> Config:
    """The options of the file, without its jobs: those are read with it again."""
    if not store_lacks(config.store):
        return config
    if not looks:
        raise StoreRefused(f"there is no store {hide(config.store)} yet; `pollux serve -c {path}` makes it")
    return load_config(path, environ=os.environ, arguments={"store": "memory://"}, with_jobs=False)


def _alone(config: Config, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
    from pollux.app import Pollux
    from pollux.app.operations.context import default_actor

    app = Pollux.from_config(config)
    return asyncio.run(answer_of(app, lambda _: question(app.operations.as_actor(default_actor("cli")))))


def _print_elsewhere(path: str, url: str) -> None:
    """Print if a node here reads this very file and works on another store than the file names by now."""
    for socket in _sockets_near(path):
        file, other = asyncio.run(_file_and_store(socket)) if may_open(socket) else ("", "")
        if file and is_same_file(file, path) and place_of(other) != place_of(hide(url)):
            words = f"a node reads {path} and works on {other}: it stays there until it is restarted"
            notice(f"{words}; this is about {hide(url)}")
            return


def _sockets_near(path: str) -> list[Path]:
    """Where nodes that may read the file listen: stores are kept beside it, or their sockets in the user's folder."""
    folders = dict.fromkeys((Path(path).absolute().parent, Path.cwd(), state_folder()))
    return [each for folder in folders for each in sorted(folder.glob(f"*{SOCKET}"))][:SOCKETS_MAX]


async def _file_and_store(socket: Path) -> tuple[str, str]:
    """Which file the node there reads, if any, and on which store it works."""
    target = target_at(socket_url(socket), "hello")
    try:
        async with asyncio.timeout(HELLO_S):
            await target.open(sealed=True)
            found = await target.operations.config_file.file_in_force()
            return found.path, target.store_url
    except (PolluxError, TimeoutError):
        return "", ""
    finally:
        await target.close()


def _text_at(path: str) -> str:
    """The text of a file, for a node to look at."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"it cannot be read: {error.strerror}", where=path, cure="name a readable file") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("it is not text in UTF-8", where=path, cure="save it as UTF-8") from error
    if len(raw) > TEXT_BYTES_MAX:
        what = f"it is bigger than {format_size(TEXT_BYTES_MAX)}, too big to be shown to a node"
        raise InvalidInput(what, where=path, cure="compare it with the store itself: pollux check --diff")
    return text


def _print_changes(answer: ReloadResult, *, as_json: bool) -> None:
    if as_json:
        print_json({"reloaded": answer})
        return
    if answer.draft:
        whose = answer.path if Path(answer.path).name == answer.source.removeprefix("file:") else answer.source
        notice(f"{answer.draft} in the place of {whose}, as the node sees it:")
    for line in answer.lines:
        click.echo(clean(line))
    for change in answer.needs_restart:
        click.echo(clean(f"! {change}  needs a restart"))
    for name in answer.unseen:
        click.echo(clean(f"? python {name}  is not imported to look at it; `pollux check` does that"))
    if answer.is_empty:
        name = clean(answer.draft or answer.path)
        click.echo(f"{name}: of jobs and options nothing {'would change' if answer.is_dry else 'changed'}")
    elif not answer.is_dry:
        click.echo(clean(f"{answer.path} holds: {answer.words()}"))


def _print_versions(kept: list[SavedText], *, as_json: bool) -> None:
    if as_json:
        print_json({"versions": kept})
        return
    print_table(
        ("digest", "applied", "text"), ((each.digest, moment(each.at_ms), each.path) for each in reversed(kept))
    )
    if not kept:
        click.echo("no text was applied yet; they are kept from the first `pollux serve` on", err=True)
