"""`pollux audit`: the log of changes by hand or API, and the check of its hash chain."""

from __future__ import annotations

import click

from pollux.cli.command_table import FAILED, OK
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import moment, print_json, print_table
from pollux.cli.runner import ListingGroup
from pollux.errors import InvalidInput
from pollux.units import counted


@click.group(cls=ListingGroup)
def audit() -> None:
    """Who changed what by hand or by API; and is the log whole?

    For example:
      pollux audit --limit 10           the newest lines
      pollux audit verify               walk its chain of hashes
    """


@audit.command("ls")
@click.option("--after", type=click.IntRange(0), help="Lines after this number, oldest first.")
@click.option("--before", type=click.IntRange(1), help="The last lines before this number.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Lines at most.")
@json_option
@store_options
def ls(
    after: int | None, before: int | None, limit: int, config: str | None, store: str | None, *, as_json: bool
) -> None:
    """Show who changed what by hand or by API: the newest lines, the latest at the end.

    The newest 100,000 lines are kept: see `history.audit` in the config.

    For example:
      pollux audit ls --limit 10
      pollux audit --before 120
      pollux audit --after 120 --json
    """
    if after is not None and before is not None:
        raise InvalidInput("--after and --before were both given", cure="give one of them")
    newest = after is None
    place = (before or 0) if after is None else after
    url = existing_store(StoreChoice(config, store))
    page = ask(url, lambda operations: operations.audit.list_audit(after=place, limit=limit, newest=newest))
    if as_json:
        print_json({"lines": page.lines, "next": page.next})
        return
    print_table(
        ("no", "when", "who", "did", "to", "detail"),
        ((str(n.seq), moment(n.at_ms), n.actor, n.action, n.subject, n.detail) for n in page.lines),
    )
    if page.next is not None:
        click.echo(f"there are {'older ones: add --before' if newest else 'more: add --after'} {page.next}", err=True)


@audit.command()
@click.option("--mark", default="", metavar="MARK", help="What an earlier walk printed: its line must still be there.")
@json_option
@store_options
def verify(mark: str, config: str | None, store: str | None, *, as_json: bool) -> int:
    """Walk the log: each line carries the hash over itself and the line before.  Names the first that does not fit.

    Old lines are pruned, so the first that is left is believed.  Lines cut off at the end leave a whole chain: keep the
    mark of the last line somewhere else, and give it to the next walk.

    For example:
      pollux audit verify
      pollux audit verify --mark 120:8c1f...
    """
    found = ask(existing_store(StoreChoice(config, store)), lambda operations: operations.audit.verify_audit(mark=mark))
    if as_json:
        print_json(found)
    elif found.is_whole:
        click.echo(f"whole: {counted(found.lines, 'line')}, {found.first} to {found.last}" if found.lines else "empty")
        if found.mark:
            click.echo(f"mark: {found.mark}")
    else:
        click.echo(f"broken: {found.broken}")
    return OK if found.is_whole else FAILED
