"""`pollux store check`, `backup` and `restore`: is the file in order, and where is its copy?

They work on the database file itself, beside the processes that use it; other stores have tools of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pollux.cli import menu
from pollux.cli.commands import Taught
from pollux.cli.options import Where, existing_store, json_option, sqlite_path, store_options, store_url
from pollux.cli.progress import progress
from pollux.cli.show import clean, print_json
from pollux.errors import InvalidInput

if TYPE_CHECKING:
    from pollux.store.sqlite.check import Checked

FORCE = "Replace what is there."


@click.command(cls=Taught)
@click.option("--repair", "wants_repair", is_flag=True, help="Count again and build indexes again where that helps.")
@json_option
@store_options
def check(config: str | None, store: str | None, *, wants_repair: bool, as_json: bool) -> int:
    """Look whether the store's file is sound and every rule holds: counts, leases, records, feed, audit log.

    The store may be in use.  Exit code 1 if something is found.  With --repair, counts are counted again and indexes
    built again; nothing else is touched.

    For example:
      pollux store check
      pollux store check --store sqlite:///pollux.db --repair --json
    """
    from pollux.store.sqlite import check as checking

    path = _existing_file(Where(config, store))
    with progress() as step:
        found = checking.check(path, step)
    repaired = wants_repair and any(finding.can_repair for finding in found.findings)
    if repaired:
        checking.repair(path)
        with progress() as step:
            found = checking.check(path, step)
    if as_json:
        print_json({"checked": found, "repaired": repaired, "ok": not found.findings})
    else:
        _tell(found, repaired=repaired)
    return menu.FAILED if found.findings else menu.OK


@click.command(cls=Taught)
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

    path = _existing_file(Where(config, store))
    with progress() as step:
        copied = copy(path, file, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(
        f"copied {path} into {file}: {copied.jobs:,} jobs, {copied.runs:,} runs, {copied.notes:,} notes, "
        f"{copied.log:,} lines of audit; {copied.bytes:,} bytes, looked over",
        err=True,
    )


@click.command(cls=Taught)
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

    path = _file(Where(config, store))
    with progress() as step:
        copied = put_back(file, path, lambda done, total: step("copying", done, total), force=force)
    if as_json:
        print_json(copied)
        return
    click.echo(
        f"restored {path} from {file}: {copied.jobs:,} jobs, {copied.runs:,} runs, {copied.notes:,} notes, "
        f"{copied.log:,} lines of audit; leases given back: {copied.voided:,}",
        err=True,
    )


def _existing_file(where: Where) -> Path:
    existing_store(where)
    return _file(where)


def _file(where: Where) -> Path:
    url = store_url(where)
    path = sqlite_path(url)
    if path is None:
        raise InvalidInput(
            f"{url} is no file", where="store", cure="this is for sqlite:/// stores; `pollux store dump` is for all"
        )
    return path.absolute()


def _tell(found: Checked, *, repaired: bool) -> None:
    for finding in found.findings:
        click.echo(f"{finding.rule}: {finding.what} ({finding.count:,})")
        for line in finding.shown:
            click.echo(f"  {clean(line)}")
    if repaired:
        click.echo("counts were counted again and indexes built again", err=True)
    size = f"{found.jobs:,} jobs, {found.runs:,} runs, {found.notes:,} notes, {found.log:,} lines of audit"
    if not found.findings:
        click.echo(f"ok: {found.path} (schema {found.schema}): {size}")
        return
    cure = "`pollux store check --repair` can mend" if any(f.can_repair for f in found.findings) else "no repair for"
    click.echo(f"{cure} this; a backup can be put back with `pollux store restore`", err=True)
