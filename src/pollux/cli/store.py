"""`pollux store dump` and `load`: a whole store as one file.  Commands on the database file are in `store_files`.

The file has one JSON document a line: a head, then `[kind, data]` records in an order that can be loaded, then an end
with their number, so that a file that was cut short is known.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from pollux.cli import store_drop, store_files, store_move
from pollux.cli.options import StoreChoice, ask_target, existing_store, store_options, store_url
from pollux.cli.runner import ListingGroup
from pollux.cli.target import node_url
from pollux.errors import Conflict, InvalidInput
from pollux.secrets import hide
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.cli.target import Target

FORMAT = 1
BATCH = 1_000
Report = Callable[[int], None]


@click.group(cls=ListingGroup)
def store() -> None:
    """Look whether a store is in order, back it up, put it back, move it; dump it into text, load it into another.

    For example:
      pollux store check
      pollux store backup pollux-backup.db
      pollux store restore pollux-backup.db --force
      pollux store move sqlite:///pollux.db redis://localhost:6379/0
      pollux store dump all.jsonl
      pollux store load all.jsonl --store sqlite:///new.db
    """


store.add_command(store_files.check)
store.add_command(store_files.backup)
store.add_command(store_files.restore)
store.add_command(store_move.move)
store.add_command(store_move.unseal)
store.add_command(store_drop.drop)


@store.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite the file if it is there.")
@store_options
def dump(file: Path, config: str | None, store: str | None, *, force: bool) -> None:
    """Write everything (jobs, runs, notes, audit log) into a file; "-" is the standard output.

    The file appears when it is complete; only its owner may read it.  Leases do not travel: what runs meanwhile is
    ready in the copy.

    For example:
      pollux store dump backup.jsonl
      pollux store dump - | gzip > backup.jsonl.gz
    """
    if str(file) != "-" and file.exists() and not force:
        raise Conflict(f"the file {file} is there already; name another, or add --force")
    url = existing_store(StoreChoice(config, store))
    with _opened_for_writing(file) as target, _progress("dumping") as report:
        count, name = ask_target(url, lambda source: _dump(source, target, report))
    click.echo(f"dumped {counted(count, 'record')} of {hide(name)} into {file}", err=True)


@store.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@store_options
def load(file: Path, config: str | None, store: str | None) -> None:
    """Write what was dumped into a store, where there is nothing of the same id; "-" is the standard input.

    Loading twice changes nothing, so a load that was interrupted is simply repeated.

    For example:
      pollux store load backup.jsonl --store sqlite:///new.db
    """
    url = node_url(store) or store_url(StoreChoice(config, store))
    if url.startswith("memory:"):
        raise InvalidInput("a memory store ends with this command", cure="name another with --store")
    with _opened_for_reading(file) as source, _progress("loading") as report:
        total, new, name = ask_target(url, lambda target: _load(target, source, str(file), report))
    click.echo(f"loaded {counted(total, 'record')} of {file} into {hide(name)}; {new} were new", err=True)


async def _dump(source: Target, file: IO[bytes], report: Report) -> tuple[int, str]:
    count = 0
    file.write(_line({"pollux": "dump", "format": FORMAT}))
    async for page in source.operations.storage.dump():
        for record in page.records:
            file.write(_line(record))
        count += len(page.records)
        report(count)
    file.write(_line({"records": count}))
    return count, source.store_url


async def _load(target: Target, source: IO[bytes], name: str, report: Report) -> tuple[int, int, str]:
    total = new = 0
    batch: list[tuple[str, Any]] = []
    for record in _records(source, name):
        batch.append(record)
        if len(batch) == BATCH:
            new += await target.operations.storage.load(batch)
            total += len(batch)
            report(total)
            batch = []
    if batch:
        new += await target.operations.storage.load(batch)
    return total + len(batch), new, target.store_url


def _records(source: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    """The records between head and end; whatever else stands there is refused by its line."""
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
    """A file that takes its name only when it is complete; only its owner may read it."""
    if str(file) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    partial = file.with_name(f"{file.name}.part")
    try:
        partial.unlink(missing_ok=True)  # of one that was cut off, perhaps readable for others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
        partial.replace(file)
    except OSError as error:
        raise Conflict(f"the file {file} cannot be written: {error.strerror}; name another") from error
    finally:
        partial.unlink(missing_ok=True)


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


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Report]:
    """A line that counts, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ...") as status:
        yield lambda count: status.update(f"{what}: {count:,} records")
