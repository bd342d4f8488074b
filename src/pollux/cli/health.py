"""`pollux health`: the findings of the health check, their cures, and the status as exit code."""

from __future__ import annotations

import click

from pollux.cli.command_table import FAILED, OK
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options, version_meant
from pollux.cli.output import print_json, print_table
from pollux.cli.runner import TeachingCommand

SAYS = {
    "healthy": "nothing to say",
    "degraded": "it works, and somebody should have a look",
    "unhealthy": "what should run does not",
}
OF_A_NODE = "whether a node polls and holds its file (polling, file) is known to it alone, and the store was asked"


@click.command(cls=TeachingCommand)
@json_option
@store_options
def health(config: str | None, store: str | None, *, as_json: bool) -> int:
    """Say how the deployment does: the store, the nodes, what is due, waits, is stale, dead or stopped; and the cures.

    A node that is asked tells of itself, too.  With --json it is the document of the API's /api/v2/scheduler/health.
    Exit code 0 also if somebody should have a look (degraded), 1 if what should run does not (unhealthy).

    For example:
      pollux health
      pollux health --url https://pollux.example
      pollux health --json
    """
    where = StoreChoice(config, store)
    url = existing_store(where)
    found = ask(url, lambda operations: operations.status.health_document(), version=version_meant(where, url))
    if as_json:
        print_json(found)
    else:
        rows = [[finding[name] for name in ("name", "level", "seen", "cure")] for finding in found["findings"]]
        print_table(("finding", "level", "seen", "cure"), rows)
        click.echo(f"\n{found['status']}: {SAYS.get(found['status'], '')}")
        if found["node"] is None:
            click.echo(f"pollux: {OF_A_NODE}", err=True)
    return FAILED if found["status"] == "unhealthy" else OK
