"""`pollux completion`: the shell script for tab completion, and the answers that it asks for.

The shell's script calls the program with `_POLLUX_COMPLETE` set.  Where that fails (no store, a store that is busy, a
config with mistakes), the answer is empty and quick: an error would disturb the command line that is being typed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import BashComplete, CompletionItem, ShellComplete, get_completion_class

from pollux.cli.output import now_ms
from pollux.cli.runner import TeachingCommand, program
from pollux.cli.target import StoreChoice
from pollux.store.contract import RunFilter

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

_T = TypeVar("_T")
VARIABLE = "_POLLUX_COMPLETE"
IDS_MAX = 100
SECONDS_MAX = 5.0
AFTER_ALL = "~"  # sorts after every character of an id
HOW = {
    "bash": 'eval "$(pollux completion bash)"            in ~/.bashrc',
    "zsh": 'eval "$(pollux completion zsh)"             in ~/.zshrc, after compinit',
    "fish": "pollux completion fish > ~/.config/fish/completions/pollux.fish",
}


class Bash(BashComplete):
    """Ids have `:` and `@` in them, at which bash breaks words: it gets the end of a word that it asked for."""

    source_template = """\
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            dir,*) compopt -o dirnames 2>/dev/null ;;
            file,*) compopt -o default 2>/dev/null ;;
            *) COMPREPLY+=("${line#*,}") ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        return str(self.source_template % self.source_vars())

    def get_completion_args(self) -> tuple[list[str], str]:
        words = click.shell_completion.split_arg_string(os.environ.get("COMP_LINE", ""))
        if os.environ.get("COMP_LINE", "").endswith((" ", "\t")) or len(words) < 2:
            return words[1:], ""
        return words[1:-1], words[-1]

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        items = self.get_completions(args, incomplete)
        breaks = [char for char in os.environ.get("COMP_WORDBREAKS", "") if char in ":@="]
        cut = max((incomplete.rfind(char) + 1 for char in breaks), default=0)
        return "\n".join(f"{item.type},{item.value[cut:]}" for item in items)


CLASSES: dict[str, type[ShellComplete]] = {"bash": Bash}


@click.command(cls=TeachingCommand)
@click.argument("shell", type=click.Choice(tuple(HOW)))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands, options, and the ids in the store.

    For example:
      pollux completion bash > ~/.local/share/bash-completion/completions/pollux
      pollux completion zsh > ~/.zfunc/_pollux
      pollux completion fish > ~/.config/fish/completions/pollux.fish
    """
    click.echo(_completer(shell).source())
    if sys.stdout.isatty():
        click.echo(f"to use it: {HOW[shell]}", err=True)


def complete(instruction: str) -> int:
    """Answer a shell's question; nothing at all if it cannot be answered."""
    shell, _, _ = instruction.partition("_")
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))  # a store that is locked would be waited for
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    with contextlib.suppress(Exception), open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):  # noqa: PTH123
        click.echo(_completer(shell).complete())
    return 0


def _completer(shell: str) -> ShellComplete:
    kind = CLASSES.get(shell) or get_completion_class(shell)
    assert kind is not None, shell
    return kind(program, {}, "pollux", VARIABLE)


def job_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Ids of jobs that begin so."""
    # Pages come in order of ids, so the wanted ones follow the last that sorts before them.
    after = f"{incomplete[:-1]}{chr(ord(incomplete[-1]) - 1)}{AFTER_ALL}" if incomplete else None
    page = _asked(ctx, lambda operations: operations.jobs.list_jobs(after=after, limit=IDS_MAX))
    return [CompletionItem(job.id, help=job.name) for job in page.jobs if job.id.startswith(incomplete)]


def run_ids_of(*states: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Ids of runs in these states that begin so, of the first page."""

    def run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        from pollux.app.operations.status import runs_in_state

        now = now_ms()
        page = _asked(
            ctx,
            lambda operations: runs_in_state(operations.runs, states, RunFilter(), now_ms=now, after=None, limit=1_000),
        )
        fitting = [run for run in page.runs if run.id.startswith(incomplete)][:IDS_MAX]
        return [CompletionItem(run.id, help=run.shown_state(now)) for run in fitting]

    return run_ids


def _asked(ctx: click.Context, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
    """The answer of the store or the node that the command itself would ask."""
    with ctx.scope(cleanup=False):  # it has the options that name them
        return StoreChoice(ctx.params.get("config"), ctx.params.get("store")).ask(question)
