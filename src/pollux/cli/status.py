"""`pollux health`, `why`, `nodes` and `audit`: the state of a deployment, and who changed it."""

from __future__ import annotations

import click

from pollux.cli.command_table import FAILED, OK
from pollux.cli.completion import job_ids
from pollux.cli.options import json_option, store_options
from pollux.cli.output import ago, full, moment, notice, now_ms, print_items, print_json, print_pairs, print_table, span
from pollux.cli.runner import ListingGroup, TeachingCommand
from pollux.cli.target import OpenedStore, StoreChoice, Target
from pollux.config import Config
from pollux.errors import InvalidInput
from pollux.model import Declares, Drained, Node, role_of
from pollux.units import counted

STATUS_WORDS = {
    "healthy": "no finding",
    "degraded": "it works, and should be looked at",
    "unhealthy": "what should run does not",
}
OF_A_NODE = "whether a node polls and holds its file (polling, file) only that node knows, and the store was asked"
SILENT_MS = 20_000  # nodes beat every 15 s


@click.command(cls=TeachingCommand)
@json_option
@store_options
def health(where: StoreChoice, *, as_json: bool) -> int:
    """Check the deployment: the store, the nodes, what is due, waits, is stale, dead or stopped; and the cures.

    A node that is asked adds findings about itself.  With --json it is the document of the API's
    /api/v2/scheduler/health.  Exit code 0 also if it should be looked at (degraded), 1 if what should run does not
    (unhealthy).

    For example:
      pollux health
      pollux health --url https://pollux.example
      pollux health --json
    """
    found = where.ask_target(lambda target: target.operations.status.health_document(), made=_app_of_version)
    if as_json:
        print_json(found)
    else:
        rows = [[finding[name] for name in ("name", "level", "seen", "cure")] for finding in found["findings"]]
        print_table(("finding", "level", "seen", "cure"), rows)
        click.echo(f"\n{found['status']}: {STATUS_WORDS.get(found['status'], '')}")
        if found["node"] is None:
            notice(OF_A_NODE)
    return FAILED if found["status"] == "unhealthy" else OK


def _app_of_version(url: str, config: Config) -> Target:
    """The health check of a store has the limits of an app, and is about one version."""
    from pollux.app import Pollux
    from pollux.app.operations.context import default_actor

    return Pollux(url, actor=default_actor("cli"), scheduler_version=config.scheduler_version)


@click.command(cls=TeachingCommand)
@click.argument("ref", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def why(ref: str, where: StoreChoice, *, as_json: bool) -> None:
    """Explain why a job or run does not run (or that it does), when it is expected, and what to do.

    For example:
      pollux why home
      pollux why home@1790000000000 --json
    """
    answer = where.ask(lambda operations: operations.status.why(ref))
    if as_json:
        print_json({"id": ref, "why": answer})
        return
    expected = ago(answer.expected_ms, now=now_ms())
    print_pairs((("answer", answer.answer), ("reason", answer.reason), ("expected", expected), ("cure", answer.cure)))


@click.command(cls=TeachingCommand)
@json_option
@store_options
def nodes(where: StoreChoice, *, as_json: bool) -> None:
    """List the processes that live on this store: seats, handlers, which code they have, and which of them leads.

    Each is the leader (of its term, and since when), on standby (it takes over when the leader ends), a worker, which
    never leads, or silent: it led, its term has ended, and there was no heartbeat since.

    SERVES is the scheduler version that it plans or runs for, POLLUX the release of the program itself.
    What a node declares is listed by source: its release, and how many jobs.  With --json each source has a mark, too:
    nodes of one release whose marks differ have different code.

    For example:
      pollux nodes
      pollux nodes --json
    """
    found, drained, is_sealed, starts = where.ask_target(_nodes_and_drains)
    if as_json:
        rows = [full(node) | {"role": role_of(node)} for node in found]
        print_json({"nodes": rows, "leaders": [node.id for node in found if node.leads], "drained": drained})
        return
    now = now_ms()
    print_items(
        found,
        {
            "id": lambda node: node.id,
            "host": lambda node: node.host,
            "pid": lambda node: node.pid,
            "seats": _seats,
            "leads": lambda node: _leads(node, now, is_sealed=is_sealed),
            "handlers": lambda node: len(node.handlers),
            "declares": lambda node: ", ".join(_declared(source) for source in node.declares),
            "serves": lambda node: node.scheduler_version,
            "started": lambda node: ago(node.started_ms, now=now),
            "seen": lambda node: _seen(node, now),
            "pollux": lambda node: node.version,
        },
        none=f"no node lives; start one with {starts}",
    )
    for each in drained:
        click.echo(f"{each}: nothing is claimed; {each.ends}", err=True)


async def _nodes_and_drains(target: Target) -> tuple[list[Node], list[Drained], bool, str]:
    """The nodes, the drains, whether the store was moved elsewhere, and the command that starts a node of it."""
    from pollux.app.operations.status import nodes_now
    from pollux.app.process import starts_of

    operations = target.operations
    found, drained = await nodes_now(operations), await operations.workers.drained_workers()
    starts = await starts_of(target.store) if isinstance(target, OpenedStore) and not found else ()
    return found, drained, bool(await target.sealed()), " or ".join(dict.fromkeys(map(str, starts))) or "`pollux serve`"


def _seats(node: Node) -> str:
    """`1/4`; a node that is ending claims nothing more, and waits for what runs."""
    taken = f"{node.busy}/{node.seats}" if node.seats else str(node.busy or "-")
    return f"{taken} draining" if node.draining else taken


def _leads(node: Node, now: int, *, is_sealed: bool) -> str:
    """`term 3, 5m`, or its role.  Where the store was moved elsewhere no standby takes over."""
    if node.leads:
        return f"term {node.leads}, {span(now - node.leads_ms)}"
    role = role_of(node)
    return "-" if is_sealed and role == "standby" else role


def _seen(node: Node, now: int) -> str:
    """The last heartbeat; a node that misses one may be dead, and its runs wait for their leases to end."""
    silent_ms = now - node.beat_ms
    return f"silent {span(silent_ms)}" if silent_ms > SILENT_MS else ago(node.beat_ms, now=now)


def _declared(source: Declares) -> str:
    """`code:shop release 7 (3 jobs)`"""
    release = f" release {source.release}" if source.release else ""
    return f"{source.source}{release} ({counted(source.jobs, 'job')})"


@click.group(cls=ListingGroup)
def audit() -> None:
    """List who changed what by hand or by API, and verify that the log is whole.

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
def ls(after: int | None, before: int | None, limit: int, where: StoreChoice, *, as_json: bool) -> None:
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
    page = where.ask(lambda operations: operations.audit.list_audit(after=place, limit=limit, newest=newest))
    if as_json:
        print_json({"lines": page.lines, "next": page.next})
        return
    print_items(
        page.lines,
        {
            "no": lambda line: line.seq,
            "when": lambda line: moment(line.at_ms),
            "who": lambda line: line.actor,
            "did": lambda line: line.action,
            "to": lambda line: line.subject,
            "detail": lambda line: line.detail,
        },
    )
    if page.next is not None:
        click.echo(f"there are {'older ones: add --before' if newest else 'more: add --after'} {page.next}", err=True)


@audit.command()
@click.option("--mark", default="", metavar="MARK", help="What an earlier walk printed: its line must still be there.")
@json_option
@store_options
def verify(mark: str, where: StoreChoice, *, as_json: bool) -> int:
    """Walk the log: each line carries the hash over itself and the line before.  Names the first that does not match.

    Old lines are pruned, so the first that is left is trusted.  Lines cut off at the end leave a whole chain: keep the
    mark of the last line somewhere else, and give it to the next walk.

    For example:
      pollux audit verify
      pollux audit verify --mark 120:8c1f...
    """
    found = where.ask(lambda operations: operations.audit.verify_audit(mark=mark))
    if as_json:
        print_json(found)
    elif found.is_whole:
        click.echo(f"whole: {counted(found.lines, 'line')}, {found.first} to {found.last}" if found.lines else "empty")
        if found.mark:
            click.echo(f"mark: {found.mark}")
    else:
        click.echo(f"broken: {found.broken}")
    return OK if found.is_whole else FAILED
