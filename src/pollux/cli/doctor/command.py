"""Command `pollux doctor`: the order of its checks and the form of its answer."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.command_table import FAILED
from pollux.cli.command_table import OK as FINE
from pollux.cli.doctor.finding import FAIL, OK, WARN, DoctorFinding, fail, of_health, ok
from pollux.cli.options import app_option, config_option, json_option, store_option, url_options
from pollux.cli.output import clean, now_ms, print_json
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import app_argument, ask_target, config_path, live_socket, node_url, socket_of, sqlite_path
from pollux.config import Config
from pollux.errors import PolluxError
from pollux.model import Node

if TYPE_CHECKING:
    from pollux.cli.target import Target
    from pollux.client.rpc_codec import Hello

OF_A_NODE = ("polling", "loop", "handlers")  # findings of a node about itself, as in `pollux health`
_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command(cls=TeachingCommand)
@config_option("The config; else ./pollux.yaml.")
@store_option
@app_option("A Pollux of your own code, and its store.")
@json_option
@url_options
def doctor(config: str | None, store: str | None, *, as_json: bool) -> int:
    """Check the machine, the config and the store; print what is wrong with each, and the cure.

    Nothing is changed, and no process is disturbed.  The exit code is 1 if something failed; warnings do not count.
    It looks from here: with --url at whether that node can be asked, not at the machine on which it runs.

    For example:
      pollux doctor
      pollux doctor -c pollux.yaml
      pollux doctor --app monitor:app
      pollux doctor --store sqlite:////var/lib/pollux/pollux.db --json
    """
    findings = list(_look(config_path(config), store, app_argument()))
    counts = {level: sum(finding.level == level for finding in findings) for level in (OK, WARN, FAIL)}
    if as_json:
        print_json({"findings": findings, "counts": counts})
    else:
        _print(findings, counts)
    return FAILED if counts[FAIL] else FINE


def _look(path: str | None, store: str | None, app: str | None) -> Iterator[DoctorFinding]:
    from pollux.cli.doctor import machine
    from pollux.cli.doctor.config import look_at_none, look_at_setup

    watch = machine.Stopwatch()
    loaded: Config | None
    if path is None:
        loaded, about_setup = look_at_none(store, app)
    else:
        loaded, about_setup = look_at_setup(path, store, app)
    target = _look_at_target(loaded, store)
    nodes: list[Node] = []
    about_store = [] if loaded is None or node_url(store) else list(_look_at_store(loaded, nodes))
    seats = target.seats or max((node.seats for node in nodes if node.host == platform.node()), default=0)
    yield from machine.look_at_machine(seats=seats or (Config() if loaded is None else loaded).seats)
    yield from about_setup
    yield from target.findings
    known = {finding.about for finding in target.findings}
    yield from (finding for finding in about_store if finding.about not in known)
    now = now_ms()
    yield machine.of_clock(watch, now)
    yield machine.of_ntp(is_kept=machine.is_synchronised())


class CommandTarget(NamedTuple):
    """The findings about the node or store that commands ask, and the seats of that node."""

    findings: list[DoctorFinding]
    seats: int = 0  # of that node


def _look_at_target(config: Config | None, store: str | None) -> CommandTarget:
    from pollux.client import address_of

    try:
        url = node_url(store)
        if not url and not store and config is not None:
            url = asyncio.run(live_socket(socket_of(config, config.store), config.store))
        if not url:
            return CommandTarget([ok("asked", "commands ask the store itself")])
        hello, document, nodes = ask_target(url, _of_node)
    except PolluxError as error:
        what, _, cure = str(error).rpartition("; ")
        return CommandTarget([fail("asked", what or str(error), cure if what else "see --url and POLLUX_URL")])
    seen = f"commands ask {address_of(url).shown}: Pollux {hello.version} on {hello.store}"
    asked = ok("asked", f"{seen}, which knows you as {hello.name} ({hello.role})")
    about_node = [of_health(found) for found in document["findings"] if found["name"] in OF_A_NODE]
    return CommandTarget([asked, *about_node], sum(node.seats for node in nodes if node.id == document["node"]))


async def _of_node(target: Target) -> tuple[Hello, dict[str, Any], list[Node]]:
    from pollux.client import Remote

    assert isinstance(target, Remote), "it has an address"
    assert target.hello is not None, "it was opened"
    status = target.operations.status
    return target.hello, await status.health_document(), await status.nodes()


def _look_at_store(config: Config, nodes: list[Node]) -> Iterator[DoctorFinding]:
    from pollux.cli.doctor.deployment import look_at_inside
    from pollux.cli.doctor.sqlite_file import look_at_place

    url, lag_ms = config.store, config.health_loop_lag_ms
    path = sqlite_path(url)
    if path is None and url.startswith("memory:"):
        yield ok("store", "memory: it lives inside the one process that makes it, and ends with it")
        return
    if path is None:
        from pollux.cli.doctor.deployment import look_at_server

        yield from look_at_server(url, nodes, now_ms=now_ms(), lag_ms=lag_ms)
        return
    path = Path(os.path.abspath(path))  # noqa: PTH100  links are part of what is looked at
    yield from look_at_place(path)
    yield from look_at_inside(path, nodes, now_ms=now_ms(), lag_ms=lag_ms)


def _print(findings: list[DoctorFinding], counts: dict[str, int]) -> None:
    width = max(len(finding.about) for finding in findings)
    for finding in findings:
        level = click.style(f"{finding.level:<4}", fg=_COLOURS[finding.level], bold=finding.level != OK)
        click.echo(f"{level}  {finding.about:<{width}}  {clean(finding.seen)}")
        if finding.cure:
            click.echo(f"{'':<{width + 8}}{'more' if finding.level == OK else 'cure'}: {clean(finding.cure)}")
    click.echo(f"\n{counts[OK]} ok, {counts[WARN]} to look at, {counts[FAIL]} failed")
