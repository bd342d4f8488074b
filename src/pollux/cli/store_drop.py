"""`pollux store drop`: delete all that is in a store, such as the part of a move that was abandoned."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from pollux.cli.command_table import FAILED
from pollux.cli.options import StoreChoice, existing_store, sqlite_path
from pollux.cli.output import print_json
from pollux.cli.runner import TeachingCommand
from pollux.cli.store_move import opened, refuse_memory
from pollux.errors import Conflict, InvalidInput
from pollux.secrets import hide
from pollux.units import counted, shell_word

if TYPE_CHECKING:
    from pollux.store.contract import Counts, Store


@click.command(cls=TeachingCommand)
@click.argument("url", metavar="URL")
@click.option("--force", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of words.")
def drop(url: str, *, force: bool, as_json: bool) -> None:
    """Throw away a store with all that is in it: files, keys or tables of ours, and nothing else.

    Refused while nodes live on it, and for the source of a move that is under way.  It asks for the store's name first.

    For example:
      pollux store drop redis://new:6379/0
      pollux store drop sqlite:///pollux.db --force
    """
    refuse_memory(url)
    existing_store(StoreChoice(None, url))
    counts = asyncio.run(_looked_at(url))
    if not force:
        _confirm(hide(url), counts)
    left = _dropped(url)
    if as_json:
        print_json({"dropped": hide(url), "jobs": counts.jobs, "runs": _live(counts), "left": left})
        return
    click.echo(f"dropped {hide(url)}: {_size(counts)}")
    if left:
        click.echo(f"{left:,} beside it {'is' if left == 1 else 'are'} not of this store, and stayed")


async def _looked_at(url: str) -> Counts:
    """How much would go; refused where somebody needs it."""
    async with opened(url) as store:
        await _refuse_needed(store, hide(url))
        return await store.counts(all_versions=True)


async def _refuse_needed(store: Store, name: str) -> None:
    from pollux.store.move_marks import marks_of

    if nodes := [node.id for node in await store.nodes()]:
        lives, more = "node lives" if len(nodes) == 1 else "nodes live", ", ..." if len(nodes) > 5 else ""
        raise Conflict(
            f"{len(nodes)} {lives} on {name} ({', '.join(nodes[:5])}{more}); nothing was dropped; stop them first (one "
            "that was killed is seen for some seconds more)"
        )
    mark = (await marks_of(store)).to
    if mark is not None and not mark.is_over:
        raise Conflict(
            f"{name} is being moved to {mark.other}, which is not whole yet; nothing was dropped; complete the move, "
            f"or give it up first: `pollux store unseal {shell_word(name)}`"
        )


def _confirm(name: str, counts: Counts) -> None:
    if not sys.stdin.isatty():
        what = f"this would drop {name}: {_size(counts)}, and nobody is here to confirm it"
        raise InvalidInput(what, cure="add --force")
    click.echo(f"this drops {name} for good: {_size(counts)}", err=True)
    if click.prompt("its name once more", default="", show_default=False, err=True).strip() != name:
        click.echo("nothing was dropped", err=True)
        raise click.exceptions.Exit(FAILED)


def _dropped(url: str) -> int:
    path = sqlite_path(url)
    if path is not None:
        import pollux.store.sqlite.drop as of_file

        return of_file.drop(path.absolute())
    if url.startswith("postgres"):
        import pollux.store.postgres.drop as of_postgres

        return asyncio.run(of_postgres.drop(url))
    import pollux.store.redis.drop as of_redis

    return asyncio.run(of_redis.drop(url))


def _size(counts: Counts) -> str:
    parts = counted(counts.jobs, "job"), counted(_live(counts), "live run"), counted(counts.dead, "dead letter")
    return ", ".join(parts)


def _live(counts: Counts) -> int:
    return counts.held + counts.ready + counts.leased
