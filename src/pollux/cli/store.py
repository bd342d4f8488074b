"""`pollux store`: check, back up and restore a store, and dump and load it as one file.

Backup and restore work on the database file itself, beside the processes that use it; servers have tools of their own.

A dump has one JSON document a line: a head, then `[kind, data]` records in an order that can be loaded, then an end
with their number, so that a file that was cut short is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from pollux.cli import command_table, store_move
from pollux.cli.options import json_option, store_options
from pollux.cli.output import Show, clean, print_json, private_file, progress
from pollux.cli.runner import ListingGroup
from pollux.cli.target import StoreChoice, ask_target, node_url, own_store, refuse_url, sqlite_path, store_url
from pollux.errors import Conflict, InvalidInput
from pollux.secrets import hide
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.cli.target import Target
    from pollux.store.check_report import CheckReport

FORMAT = 1
BATCH = 1_000
FOREIGN = "foreign"  # the rule that keys of other programs break
FILLED = "move"  # the rule that a store breaks which holds only a part
OF_A_FILE = "backup and restore work on the database file itself"
force_option = click.option("--force", is_flag=True, help="Replace what is there.")
file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.group(cls=ListingGroup)
def store() -> None:
    """Check a store, back it up, restore it, move it; dump it into text, load it into another.

    For example:
      pollux store check
      pollux store backup pollux-backup.db
      pollux store restore pollux-backup.db --force
      pollux store move sqlite:///pollux.db redis://localhost:6379/0
      pollux store dump all.jsonl
      pollux store load all.jsonl --store sqlite:///new.db
    """


store.add_command(store_move.move)
store.add_command(store_move.unseal)
store.add_command(store_move.drop)


@store.command()
@click.option("--repair", "wants_repair", is_flag=True, help="Count again and build indexes again where that helps.")
@json_option
@store_options
def check(where: StoreChoice, *, wants_repair: bool, as_json: bool) -> int:
    """Check that a store is sound and every rule holds: counts, places, leases, records, feed, audit log.

    The store may be in use.  Exit code 1 if something is found.  With --repair, what follows from the runs
    themselves is written anew (counts, indexes, places in lines); nothing else is touched.

    For example:
      pollux store check
      pollux store check --store sqlite:///pollux.db --repair --json
      pollux store check --store redis://localhost:6379/0
    """
    read, mend = _checks(own_store(where, "check reads the store itself, row by row"))
    with progress() as step:
        found = read(step)
    repaired = wants_repair and any(finding.can_repair for finding in found.findings)
    if repaired:
        mend()
        with progress() as step:
            found = read(step)
    if as_json:
        print_json({"checked": found, "repaired": repaired, "ok": not found.findings})
    else:
        _print_report(found, repaired=repaired)
    return command_table.FAILED if found.findings else command_table.OK


@store.command()
@file_argument
@force_option
@json_option
@store_options
def backup(file: Path, where: StoreChoice, *, force: bool, as_json: bool) -> None:
    """Copy the store, as it is at one moment, into a file.  Processes may use the store meanwhile.

    The file appears when it is complete, on disk and checked; only its owner may read it.

    For example:
      pollux store backup pollux-backup.db
      pollux store backup nightly.db --store sqlite:////var/lib/pollux/pollux.db --force
    """
    from pollux.store.sqlite.backup import backup as copy

    path = _existing_file(where)
    with progress() as step:
        copied = copy(path, file, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(f"copied {path} into {file}: {_size(copied)}; {counted(copied.bytes, 'byte')}, checked", err=True)


@store.command()
@file_argument
@force_option
@json_option
@store_options
def restore(file: Path, where: StoreChoice, *, force: bool, as_json: bool) -> None:
    """Put a backup in the store's place.  No process may use the store; what is there is replaced only with --force.

    What was running when the copy was made is ready again and uncharged.

    For example:
      pollux store restore pollux-backup.db --store sqlite:///new.db
      pollux store restore nightly.db --force
    """
    from pollux.store.sqlite.backup import restore as put_back

    path = _file(where)
    with progress() as step:
        copied = put_back(file, path, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(f"restored {path} from {file}: {_size(copied)}; leases given back: {copied.voided:,}", err=True)


def _checks(url: str) -> tuple[Callable[[Show], CheckReport], Callable[[], None]]:
    """How this store is checked, and how it is repaired."""
    path = sqlite_path(url)
    if path is not None:
        import pollux.store.sqlite.check as of_file

        file = path.absolute()
        return lambda step: of_file.check(file, step), lambda: of_file.repair(file)
    if url.startswith("postgres"):
        import pollux.store.postgres.check as of_postgres

        return lambda step: asyncio.run(of_postgres.check(url, step)), lambda: asyncio.run(of_postgres.repair(url))
    import pollux.store.redis.check as of_redis

    return lambda step: asyncio.run(of_redis.check(url, step)), lambda: asyncio.run(of_redis.repair(url))


def _existing_file(where: StoreChoice) -> Path:
    """Whether a server is there does not matter: it is no file."""
    refuse_url(where.store, OF_A_FILE)
    if store_url(where).startswith(("sqlite:", "memory:")):
        own_store(where, OF_A_FILE)
    return _file(where)


def _file(where: StoreChoice) -> Path:
    refuse_url(where.store, OF_A_FILE)
    url = store_url(where)
    path = sqlite_path(url)
    if path is None:
        raise InvalidInput(f"{hide(url)} is no file", where="store", cure=_own_tools(url))
    return path.absolute()


def _own_tools(url: str) -> str:
    """What to use instead, for stores that are no file."""
    ours = "`pollux store dump` and `load` are for all stores"
    if url.startswith("postgres"):
        return f"back the server up with its own tools (pg_dump, pg_basebackup and archived WAL); {ours}"
    if url.startswith("memory:"):
        return f"this is for sqlite:/// stores; {ours}"
    return f"back the server up with its own tools (copies of its append-only or RDB files, BGSAVE); {ours}"


def _size(store: Any) -> str:
    """How much is in a store, or in a copy of one."""
    parts = counted(store.jobs, "job"), counted(store.runs, "run"), counted(store.notes, "note")
    return f"{', '.join(parts)}, {counted(store.log, 'line')} of audit"


def _print_report(found: CheckReport, *, repaired: bool) -> None:
    for finding in found.findings:
        click.echo(f"{finding.rule}: {finding.what} ({finding.count:,})")
        for line in finding.shown:
            click.echo(f"  {clean(line)}")
    if repaired:
        words = "what follows from the runs themselves was written anew (counts, indexes, places), "
        click.echo(f"{words}what was only marked as seen is cleared", err=True)
    if not found.findings:
        click.echo(f"ok: {found.path} (schema {found.schema}): {_size(found)}")
        return
    for cure in _cures(found):
        click.echo(cure, err=True)


def _cures(found: CheckReport) -> Iterator[str]:
    """Keys of other programs are deleted by hand: neither a repair nor a backup would help."""
    if any(finding.rule == FOREIGN for finding in found.findings):
        yield "delete the keys that are not ours (`redis-cli DEL KEY`), or choose another ?prefix= or ?namespace="
    ours = [finding for finding in found.findings if finding.rule != FOREIGN]
    if any(finding.rule == FILLED for finding in ours):
        yield "complete the move that fills it, or delete what came: `pollux store drop`"
    ours = [finding for finding in ours if finding.rule != FILLED]
    if any(finding.can_repair for finding in ours):
        yield "`pollux store check --repair` repairs what follows from the runs themselves, or was only marked as seen"
    if not all(finding.can_repair for finding in ours):
        yield "no repair for the rest: correct or delete it, or put a backup back"


@store.command()
@file_argument
@force_option
@store_options
def dump(file: Path, where: StoreChoice, *, force: bool) -> None:
    """Write everything (jobs, runs, notes, audit log) into a file; "-" is the standard output.

    The file appears when it is complete; only its owner may read it.  Leases do not travel: what runs meanwhile is
    ready in the copy.

    For example:
      pollux store dump backup.jsonl
      pollux store dump - | gzip > backup.jsonl.gz
    """
    if str(file) != "-" and file.exists() and not force:
        raise Conflict(f"the file {file} is there already; name another, or add --force")
    with _opened_for_writing(file) as target, progress() as show:
        count, name = where.ask_target(lambda source: _dump(source, target, show))
    click.echo(f"dumped {counted(count, 'record')} of {hide(name)} into {file}", err=True)


@store.command()
@file_argument
@store_options
def load(file: Path, where: StoreChoice) -> None:
    """Write what was dumped into a store, where there is nothing of the same id; "-" is the standard input.

    Loading twice changes nothing, so a load that was interrupted is simply repeated.

    For example:
      pollux store load backup.jsonl --store sqlite:///new.db
    """
    url = node_url(where.store) or store_url(where)
    if url.startswith("memory:"):
        raise InvalidInput("a memory store ends with this command", cure="name another with --store")
    with _opened_for_reading(file) as source, progress() as show:
        total, new, name = ask_target(url, lambda target: _load(target, source, str(file), show))
    click.echo(f"loaded {counted(total, 'record')} of {file} into {hide(name)}; {new} were new", err=True)


async def _dump(source: Target, file: IO[bytes], show: Show) -> tuple[int, str]:
    count = 0
    file.write(_line({"pollux": "dump", "format": FORMAT}))
    async for page in source.operations.storage.dump():
        for record in page.records:
            file.write(_line(record))
        count += len(page.records)
        show(f"dumping: {count:,} records", count, 0)
    file.write(_line({"records": count}))
    return count, source.store_url


async def _load(target: Target, source: IO[bytes], name: str, show: Show) -> tuple[int, int, str]:
    total = new = 0
    records = _records(source, name)
    while batch := list(islice(records, BATCH)):
        new += await target.operations.storage.load(batch)
        total += len(batch)
        show(f"loading: {total:,} records", total, 0)
    return total, new, target.store_url


def _records(source: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    """The records between head and end; any other line is refused by its number."""
    count, ended = 0, False
    for number, line in enumerate(source, start=1):
        where = f"{name}:{number}"
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise InvalidInput("this line is no JSON", where=where, cure="dump anew") from error
        if number == 1:
            if not isinstance(entry, dict) or entry.get("pollux") != "dump" or entry.get("format") != FORMAT:
                raise InvalidInput(
                    "this is no dump that can be read", where=where, cure="make it with `pollux store dump`"
                )
        elif isinstance(entry, dict) and entry.get("records") == count and not ended:
            ended = True
        elif isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and not ended:
            count += 1
            yield entry[0], entry[1]
        else:
            raise InvalidInput("this line is no record", where=where, cure="dump anew")
    if not ended:
        raise InvalidInput(
            "the file was cut short", where=name, cure="what was there is loaded; dump anew for the rest"
        )


def _line(entry: object) -> bytes:
    return msgspec.json.encode(entry) + b"\n"


@contextlib.contextmanager
def _opened_for_writing(file: Path) -> Iterator[IO[bytes]]:
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with private_file(file) as target:
            yield target
    except OSError as error:
        raise Conflict(f"the file {file} cannot be written: {error.strerror}; name another") from error


@contextlib.contextmanager
def _opened_for_reading(file: Path) -> Iterator[IO[bytes]]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise Conflict(f"the file {file} cannot be read: {error.strerror}; name another") from error
    with source:
        yield source
