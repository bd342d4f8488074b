"""`pollux store check`, `backup` and `restore`: the checks and copies of a store.

Backup and restore work on the database file itself, beside the processes that use it; servers have tools of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pollux.cli import command_table
from pollux.cli.options import StoreChoice, json_option, own_store, sqlite_path, store_options, store_url
from pollux.cli.output import Show, clean, print_json, progress
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import refuse_url
from pollux.errors import InvalidInput
from pollux.secrets import hide
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.store.check_report import CheckReport

FOREIGN = "foreign"  # the rule that keys of others break
FILLED = "move"  # and that which a store breaks that holds only a part
FORCE = "Replace what is there."
OF_A_FILE = "backup and restore work on the database file itself"


@click.command(cls=TeachingCommand)
@click.option("--repair", "wants_repair", is_flag=True, help="Count again and build indexes again where that helps.")
@json_option
@store_options
def check(config: str | None, store: str | None, *, wants_repair: bool, as_json: bool) -> int:
    """Look whether a store is sound and every rule holds: counts, places, leases, records, feed, audit log.

    The store may be in use.  Exit code 1 if something is found.  With --repair, what can be told from the runs
    themselves is written anew (counts, indexes, places in lines); nothing else is touched.

    For example:
      pollux store check
      pollux store check --store sqlite:///pollux.db --repair --json
      pollux store check --store redis://localhost:6379/0
    """
    look, mend = _checks(own_store(StoreChoice(config, store), "check reads the store itself, row by row"))
    with progress() as step:
        found = look(step)
    repaired = wants_repair and any(finding.can_repair for finding in found.findings)
    if repaired:
        mend()
        with progress() as step:
            found = look(step)
    if as_json:
        print_json({"checked": found, "repaired": repaired, "ok": not found.findings})
    else:
        _tell(found, repaired=repaired)
    return command_table.FAILED if found.findings else command_table.OK


@click.command(cls=TeachingCommand)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=FORCE)
@json_option
@store_options
def backup(file: Path, config: str | None, store: str | None, *, force: bool, as_json: bool) -> None:
    """Copy the store, as it is at one moment, into a file.  Everybody may go on working meanwhile.

    The file appears when it is complete, on disk and looked over; only its owner may read it.

    For example:
      pollux store backup pollux-backup.db
      pollux store backup nightly.db --store sqlite:////var/lib/pollux/pollux.db --force
    """
    from pollux.store.sqlite.backup import backup as copy

    path = _existing_file(StoreChoice(config, store))
    with progress() as step:
        copied = copy(path, file, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(f"copied {path} into {file}: {_size(copied)}; {counted(copied.bytes, 'byte')}, looked over", err=True)


@click.command(cls=TeachingCommand)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=FORCE)
@json_option
@store_options
def restore(file: Path, config: str | None, store: str | None, *, force: bool, as_json: bool) -> None:
    """Put a backup in the store's place.  No process may use the store; what is there is replaced only with --force.

    What was running when the copy was made is ready again and uncharged.

    For example:
      pollux store restore pollux-backup.db --store sqlite:///new.db
      pollux store restore nightly.db --force
    """
    from pollux.store.sqlite.backup import restore as put_back

    path = _file(StoreChoice(config, store))
    with progress() as step:
        copied = put_back(file, path, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(f"restored {path} from {file}: {_size(copied)}; leases given back: {copied.voided:,}", err=True)


def _checks(url: str) -> tuple[Callable[[Show], CheckReport], Callable[[], None]]:
    """How this store is looked at, and how it is repaired."""
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


def _tell(found: CheckReport, *, repaired: bool) -> None:
    for finding in found.findings:
        click.echo(f"{finding.rule}: {finding.what} ({finding.count:,})")
        for line in finding.shown:
            click.echo(f"  {clean(line)}")
    if repaired:
        words = "what can be told from the runs themselves was written anew (counts, indexes, places), "
        click.echo(f"{words}what was only to be seen is forgotten", err=True)
    if not found.findings:
        click.echo(f"ok: {found.path} (schema {found.schema}): {_size(found)}")
        return
    for cure in _cures(found):
        click.echo(cure, err=True)


def _cures(found: CheckReport) -> Iterator[str]:
    """What is not ours is theirs to delete: neither a repair nor a backup would help."""
    if any(finding.rule == FOREIGN for finding in found.findings):
        yield "delete the keys that are not ours (`redis-cli DEL KEY`), or choose another ?prefix= or ?namespace="
    ours = [finding for finding in found.findings if finding.rule != FOREIGN]
    if any(finding.rule == FILLED for finding in ours):
        yield "complete the move that fills it, or throw away what came: `pollux store drop`"
    ours = [finding for finding in ours if finding.rule != FILLED]
    if any(finding.can_repair for finding in ours):
        yield "`pollux store check --repair` mends what can be told from the runs themselves, or was only to be seen"
    if not all(finding.can_repair for finding in ours):
        yield "no repair for the rest: correct or delete it, or put a backup back"
