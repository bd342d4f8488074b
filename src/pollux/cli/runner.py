"""The program: finds the command, runs it, and turns errors into a line and an exit code."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from typing import Any

import click

from pollux.cli import command_table
from pollux.errors import InvalidConfig, PolluxError, exit_code_of
from pollux.units import counted

HELP_OPTIONS = ("-h", "--help")
GLOBAL_OPTIONS = {  # options of nearly every command, which may also come before it: whether they take a value
    **dict.fromkeys(("--store", "-c", "--config", "--app", "--url", "--token"), True),
    **dict.fromkeys(("--json", "--verbose"), False),
}
OPTIONS_BEFORE = "pollux.options_before"  # in a context of click: those before the command


class TeachingCommand(click.Command):
    """A command whose docstring is its help, line by line: the examples stay as they are written."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before: list[str] = ctx.meta.get(OPTIONS_BEFORE, [])
        if before and not ctx.resilient_parsing:
            self._refuse_both(ctx, before, args)
        return super().parse_args(ctx, [*before, *args])

    def _refuse_both(self, ctx: click.Context, before: list[str], args: list[str]) -> None:
        """The same option before the command and after it, with another value."""
        first, second = (self.make_parser(ctx).parse_args(list(words))[0] for words in (before, args))
        for param in (each for each in self.params if isinstance(each, click.Option)):
            name = param.name or ""
            if name in first and name in second and first[name] != second[name]:
                what = f"{param.opts[-1]} was given twice, with different values"
                raise click.UsageError(f"{what}; give it once, before the command or after it", ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_text(self.help, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002  a line is a line
        return (self.help or "").strip().partition("\n")[0].rstrip(".")


class CommandGroup(click.Group):
    """The program itself: knows its commands by name and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(command_table.ENTRIES)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, rest = split_options(args)
        if before and not rest and not ctx.resilient_parsing:
            raise click.UsageError(f"no command came after {before[0]}", ctx)
        ctx.meta[OPTIONS_BEFORE] = before
        return super().parse_args(ctx, rest)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in command_table.ENTRIES:
            return None
        module, _, attribute = command_table.ENTRIES[cmd_name].home.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], command_table.ENTRIES)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        formatter.write(command_table.menu_text())


class ListingGroup(click.Group):
    """A group whose first command is a listing: `pollux jobs --group edge` means `pollux jobs ls --group edge`."""

    command_class = TeachingCommand

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        write_text(self.help, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, rest = split_options(args)
        if before and rest and rest[0] in self.commands:  # `pollux jobs --url X show home`
            ctx.meta[OPTIONS_BEFORE] = [*ctx.meta.get(OPTIONS_BEFORE, []), *before]
            args = rest
        is_bare = not args and not ctx.resilient_parsing  # a shell that asks what may follow means the group
        if is_bare or (args and args[0].startswith("-") and args[0] not in HELP_OPTIONS):
            args = ["ls" if "ls" in self.commands else "--help", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown(ctx, args[0], self.commands)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Its commands, and the options of the listing."""
        listing = self.commands.get("ls")
        found = super().shell_complete(ctx, incomplete)
        if listing is not None and incomplete.startswith("-"):
            found += [item for item in listing.shell_complete(ctx, incomplete) if item.value != "--help"]
        return found


def split_options(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The global options at the beginning, and the rest."""
    at = 0
    while at < len(args):
        name, sign, _ = args[at].partition("=")
        if name not in GLOBAL_OPTIONS:
            break
        at += 2 if GLOBAL_OPTIONS[name] and not sign else 1
    return list(args[:at]), list(args[at:])


def write_text(text: str | None, formatter: click.HelpFormatter) -> None:
    formatter.write_paragraph()
    for line in inspect.cleandoc(text or "").splitlines():
        formatter.write(f"  {line}\n" if line else "\n")


def refuse_unknown(ctx: click.Context, name: str, known: Any) -> None:
    if name in known or name.startswith("-") or ctx.resilient_parsing:
        return
    meant = command_table.MEANT.get(name, "")
    near = [meant] if meant in known else get_close_matches(name, known, n=1, cutoff=0.6)
    if name in command_table.ENTRIES:  # `pollux jobs pause`
        cure = f"did you mean `pollux {name}`?"
    elif near:
        cure = f"did you mean `{ctx.command_path} {near[0]}`?"
    elif "show" in known:
        cure = f"did you mean `{ctx.command_path} show {name}`?"
    else:
        cure = f"`{ctx.command_path} --help` lists them"
    raise click.UsageError(f"there is no command {name!r}; {cure}", ctx)


@click.group(cls=CommandGroup, context_settings={"help_option_names": list(HELP_OPTIONS)})
@click.version_option(package_name="pollux-scheduler", message="pollux %(version)s")
def program() -> None:
    """Not shown: the menu is the help."""


def _plainly(error: click.UsageError) -> str:
    """The message of click in one line, in words of ours."""
    return error.format_message().replace("\n\t", " ").replace("is not a valid integer range.", "is no whole number.")


def run_command(arguments: Sequence[str]) -> int:
    """Run the program; an error is one line on stderr with its cure, and never a traceback."""
    try:
        answer = program.main(list(arguments), prog_name="pollux", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", command_table.INTERRUPTED)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "pollux"
        what = f"{_plainly(error)}{_stray_file(arguments)}"
        return _complain(f"{what}\n`{command} --help` shows more", command_table.USAGE)
    except click.ClickException as error:
        return _complain(error.format_message(), command_table.USAGE)
    except BrokenPipeError:  # the reader closed the pipe, as in `pollux runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return command_table.FAILED
    except InvalidConfig as error:
        return complain_all(error)
    except PolluxError as error:
        return _complain(str(error), exit_code_of(error))
    except Exception as error:  # noqa: BLE001  the last fence: a person gets a sentence
        return _complain(*_unforeseen(error))
    return answer if isinstance(answer, int) else command_table.OK


def _stray_file(arguments: Sequence[str]) -> str:
    """`pollux check my.yaml`: a config that was named without its option."""
    for before, word in pairwise(["", *arguments]):
        if word.endswith((".yaml", ".yml")) and before not in ("-c", "--config"):
            return f"; did you mean `-c {word}`?"
    return ""


def complain_all(error: InvalidConfig) -> int:
    """Every problem of a config on its own line, then how many."""
    count = len(error.problems)
    lines = [str(problem) for problem in error.problems]
    return _complain("\n".join([*lines, counted(count, "problem")]), command_table.USAGE)


def _unforeseen(error: Exception) -> tuple[str, int]:
    if os.environ.get("POLLUX_DEBUG"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    cure = "this should not happen: POLLUX_DEBUG=1 shows where"
    return f"{what}; {cure}", command_table.FAILED


def _complain(what: str, code: int) -> int:
    from pollux.log_format import complaint

    click.echo(complaint(what), err=True)
    return code
