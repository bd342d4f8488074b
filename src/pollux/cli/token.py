"""`pollux token`: create, list, revoke and rotate API tokens, and print curl commands that use one."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pollux.cli.options import json_option, store_options
from pollux.cli.output import ago, moment, notice, now_ms, print_items, print_json, private_file, span
from pollux.cli.runner import ListingGroup
from pollux.cli.target import StoreChoice
from pollux.errors import InvalidInput, NotFound
from pollux.units import HOUR_MS, counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.tokens import MadeToken

ROLES = ("viewer", "operator", "admin")
CURLRC = ".curlrc"
OURS = "# made by `pollux token --curl`"


class TokenCommand(ListingGroup):
    """`pollux token --curl` means `pollux token curl`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and "--curl" in args:
            args = ["curl", *(word for word in args if word != "--curl")]
        return super().parse_args(ctx, args)


@click.group(cls=TokenCommand)
def token() -> None:
    """Tokens for the HTTP API.  The store keeps their hashes alone: a token is shown once, when it is made.

    A viewer reads; an operator also adds, changes, runs, pauses, cancels; an admin may do everything.  Commands on the
    machine of the node need no token: they use its socket.

    For example:
      pollux token                                    who has one
      pollux token create --role viewer --name grafana
      pollux token create --role operator --expires 30d
      pollux token rotate grafana --overlap 1d        a new one; the old one ends tomorrow
      pollux token revoke grafana
      pollux token --curl                             a .curlrc, so that curl sends one to localhost
    """


@token.command("ls")
@json_option
@store_options
def ls(where: StoreChoice, *, as_json: bool) -> None:
    """List tokens: id, name, role, and when each was made, last used (to the hour) and ends.

    For example:
      pollux token ls
      pollux token ls --json
    """
    found = where.ask(lambda operations: operations.tokens.list_tokens())
    if as_json:
        print_json({"tokens": found})
        return
    now = now_ms()
    print_items(
        found,
        {
            "id": lambda each: each.id,
            "name": lambda each: each.name,
            "role": lambda each: each.role,
            "made": lambda each: ago(each.made_ms or None, now=now),
            "used": lambda each: _used(each.used_ms, now=now),
            "ends": lambda each: "expired" if each.is_over(now) else moment(each.expires_ms) or "never",
        },
        none="there are none; `pollux token create --role admin` makes one",
    )


def _used(used_ms: int | None, *, now: int) -> str:
    """The store has the hour."""
    if used_ms is None:
        return "never"
    hours = (now - used_ms) // HOUR_MS
    return f"{span(hours * HOUR_MS)} ago" if hours > 0 else "within the hour"


@token.command()
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may.")
@click.option("--name", default="", metavar="NAME", help="Whose it is; the audit log has it.")
@click.option("--expires", metavar="TIME", help="How long it is valid, like 30d; for ever.")
@json_option
@store_options
def create(role: str, name: str, expires: str | None, where: StoreChoice, *, as_json: bool) -> None:
    """Make a token and show it, only now.

    For example:
      pollux token create --role viewer --name grafana
      pollux token create --role operator --expires 30d > operator.token
    """

    async def created(operations: OperationsProtocol) -> tuple[MadeToken, list[str]]:
        made = await operations.tokens.create_token(role, name=name, expires=expires)
        same = [
            each.id
            for each in await operations.tokens.list_tokens()
            if name and each.name == name and not each.is_over(now_ms())
        ]
        return made, [each for each in same if each != made.token.id]

    made, others = where.ask(created)
    if others:
        words = f"{counted(len(others), 'other token')} called {name!r} ({', '.join(others[:5])}) as well"
        notice(f"there is {words}: `pollux token rotate` and `revoke` want the id")
    _show(made, as_json=as_json)


@token.command()
@click.argument("ref", metavar="ID|NAME")
@json_option
@store_options
def revoke(ref: str, where: StoreChoice, *, as_json: bool) -> None:
    """Revoke a token; every node refuses it within seconds.

    For example:
      pollux token revoke 1f2e3d4c
      pollux token revoke grafana
    """
    revoked = where.ask(lambda operations: operations.tokens.revoke_token(ref))
    if as_json:
        print_json({"revoked": revoked})
        return
    click.echo(f"revoked {revoked.id} ({revoked.name}, {revoked.role})")


@token.command()
@click.argument("ref", metavar="ID|NAME")
@click.option("--overlap", default="1h", show_default=True, metavar="TIME", help="How long the old one stays valid.")
@json_option
@store_options
def rotate(ref: str, overlap: str, where: StoreChoice, *, as_json: bool) -> None:
    """Make a new token in place of another, which stays valid for a while: long enough to hand the new one out.

    For example:
      pollux token rotate grafana
      pollux token rotate 1f2e3d4c --overlap 1d
    """
    _show(where.ask(lambda operations: operations.tokens.rotate_token(ref, overlap=overlap)), as_json=as_json)


@token.command()
@click.option("--role", type=click.Choice(ROLES), default="operator", show_default=True, help="What curl may.")
@click.option("--file", "name", type=click.Path(), default=CURLRC, show_default=True, help="Where to write it.")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Which hosts get the token; localhost.")
@click.option("--yes", is_flag=True, help="Overwrite a file that another program wrote.")
@json_option
@store_options
def curl(role: str, name: str, hosts: tuple[str, ...], where: StoreChoice, *, yes: bool, as_json: bool) -> None:
    """Write a .curlrc with which curl sends a token to localhost, and to no other host.  Also `pollux token --curl`.

    curl looks for a file of that name in CURL_HOME, then in your home folder.

    For example:
      pollux token --curl
      pollux token curl --role viewer --file ~/.curlrc
      export CURL_HOME=$PWD
      curl http://localhost:8060/api/v2/jobs
    """
    file = Path(name).absolute()
    before = _replaceable(file, yes=yes)
    made = where.ask(lambda operations: _renewed(operations, role, before))
    netrc = file.with_name(f"{file.name}-netrc")
    machines = hosts or ("localhost", "127.0.0.1", "::1")
    _write(netrc, "".join(f"machine {host} login pollux password {made.secret}\n" for host in machines))
    who = ", ".join(machines)
    _write(file, f'{OURS}: the token in that file goes to {who}, and to no other host\nnetrc-file = "{netrc}"\n')
    if as_json:
        print_json({"file": str(file), "netrc": str(netrc), "hosts": machines, "token": made.token})
        return
    click.echo(f"{file}: curl sends a token ({made.token.role}, id {made.token.id}) to {who}")
    if file.name == CURLRC and file.parent != Path.home():
        click.echo(f"for this shell: export CURL_HOME={file.parent}")
    elif file.name != CURLRC:
        click.echo(f"to use it: curl -K {file} ...")


async def _renewed(operations: OperationsProtocol, role: str, before: str) -> MadeToken:
    """A new token; the one that was in the file before is revoked."""
    made = await operations.tokens.create_token(role, name=f"curl:{_user()}")
    if before:
        with suppress(NotFound):  # it was revoked already, or is of another store
            await operations.tokens.revoke_token(before)
    return made


def _replaceable(file: Path, *, yes: bool) -> str:
    """The id of the token in a file that we wrote before; refused if another program wrote it."""
    from pollux.app.operations.tokens import id_of

    try:
        text = file.read_text("utf-8", "replace")[:10_000]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror}", cure="name another with --file") from error
    if text.startswith(OURS):
        try:
            return id_of(file.with_name(f"{file.name}-netrc").read_text("utf-8", "replace").split()[-1])
        except (OSError, IndexError):
            return ""
    if not yes and not (sys.stdin.isatty() and click.confirm(f"{file} was not made by us; overwrite it?")):
        raise InvalidInput(f"{file} is there, and was not made by us", cure="name another with --file, or add --yes")
    return ""


def _write(file: Path, text: str) -> None:
    try:
        with private_file(file) as target:
            target.write(text.encode())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}", cure="name another with --file") from error


def _show(made: MadeToken, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    click.echo(made.secret)
    ends = f", until {moment(made.token.expires_ms)}" if made.token.expires_ms else ""
    click.echo(f"{made.token.role}, id {made.token.id}{ends}: keep it now, it is not shown again", err=True)


def _user() -> str:
    from pollux.app.operations.context import default_actor

    return default_actor("cli").partition(":")[2] or "unknown"
