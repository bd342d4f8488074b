"""Selection of jobs and runs by ids or a filter; what a filter selects is counted, confirmed and done in batches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pollux.cli.command_table import FAILED
from pollux.cli.options import ask
from pollux.cli.output import now_ms, say_unreadable
from pollux.errors import InvalidInput, NotFound, read_at
from pollux.units import counted, past_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

CHOSEN_MAX = 100_000  # by one command; the next one takes the rest
BATCH = 500
BAR_FROM = 500  # fewer are done before anybody could read a bar
LINES_MAX = 20  # answers told one by one; more are summed up
_Command = TypeVar("_Command", bound=Callable[..., Any])


def job_filter_options(command: _Command) -> _Command:
    """Jobs by what they are, instead of by id."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All there are."),
        click.option("--text", help="With this text in the id or name."),
        click.option("--source", help="Declared by this: file:pollux.yaml, code:shop, or api."),
        click.option("--tag", help="With this tag."),
        click.option("--target", help="Of this target."),
        click.option("--group", help="Of this group."),
    ):
        command = option(command)
    return command


def run_filter_options(command: _Command) -> _Command:
    """Runs by what they are, instead of by id."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All there are."),
        click.option("--target", help="Of this target."),
        click.option("--group", help="Of this group."),
        click.option("--job", "job_id", metavar="ID", help="Of this job."),
    ):
        command = option(command)
    return command


def dead_filter_options(command: _Command) -> _Command:
    command = click.option("--error", metavar="TEXT", help="With this text in the error.")(command)
    command = click.option("--since", metavar="WHEN", help="Died since: 2h ago, or a moment with its offset.")(command)
    return run_filter_options(command)


class Selection(NamedTuple):
    """What was said on the command line: ids, or the parts of a filter."""

    what: str  # "dead letter", "run", "job"
    ids: tuple[str, ...]
    parts: dict[str, Any]
    everything: bool
    yes: bool

    @property
    def is_named(self) -> bool:
        return bool(self.ids)


def choice_of(what: str, ids: tuple[str, ...], given: dict[str, Any]) -> Selection:
    """Exactly one of: ids, a filter, --all."""
    everything, yes = bool(given.pop("everything", False)), bool(given.pop("yes", False))
    parts = {name: value for name, value in given.items() if value is not None}
    if sum((bool(ids), bool(parts), everything)) != 1:
        cure = "give their ids, or filters, or --all, but only one of these"
        raise InvalidInput(f"say which {what}s", cure=cure)
    return Selection(what, ids, parts, everything, yes)


def since_ms(text: str) -> int:
    """`2h` means two hours ago; a moment means itself."""
    return read_at("--since", lambda told: past_ms(told, now_ms()), text)


def chosen_runs(url: str, choice: Selection, states: Sequence[str], *, verb: str) -> list[str]:
    """The ids that are meant; those of a filter were counted and confirmed."""
    if choice.is_named:
        return list(dict.fromkeys(choice.ids))
    from pollux.app.operations.status import runs_in_state
    from pollux.store.contract import RunFilter

    parts = dict(choice.parts)
    if "since" in parts:
        parts["finished_after_ms"] = since_ms(parts.pop("since"))
    where, now = RunFilter(**parts), now_ms()

    async def question(operations: OperationsProtocol) -> list[str]:
        return await _all(
            lambda after: runs_in_state(operations.runs, states, where, now_ms=now, after=after, limit=1_000), "runs"
        )

    return _confirmed(ask(url, question), choice, verb=verb)


def chosen_jobs(url: str, choice: Selection, *, verb: str) -> list[str]:
    if choice.is_named:
        return list(dict.fromkeys(choice.ids))
    from pollux.store.contract import JobFilter

    where = JobFilter(**choice.parts)

    async def question(operations: OperationsProtocol) -> list[str]:
        return await _all(lambda after: operations.jobs.list_jobs(where, after=after, limit=1_000), "jobs")

    return _confirmed(ask(url, question), choice, verb=verb)


async def _all(page_after: Callable[[str | None], Awaitable[Any]], kind: str) -> list[str]:
    ids: list[str] = []
    after: str | None = None
    while len(ids) < CHOSEN_MAX:
        page = await page_after(after)
        ids += [item.id for item in getattr(page, kind)]
        say_unreadable(page.unreadable, kind.removesuffix("s"))  # whether they are meant nobody knows
        after = page.next
        if after is None:
            return ids
    click.echo(f"more than {CHOSEN_MAX:,} are meant: the first {CHOSEN_MAX:,} are taken; repeat it", err=True)
    return ids[:CHOSEN_MAX]


def _confirmed(ids: list[str], choice: Selection, *, verb: str) -> list[str]:
    """Whoever names a filter is told how many that is, and asked, before anything is changed.

    Their number stands behind the verb, or in place of its dots: `move ... to version 2`.
    """
    if not ids or choice.yes:
        return ids
    verb, _, rest = verb.partition("...")
    deed = f"{verb.strip()} {counted(len(ids), choice.what)}{rest}"
    if not sys.stdin.isatty():
        raise InvalidInput(f"this would {deed}, and nobody is here to confirm it", cure="add --yes")
    if not click.confirm(f"{deed}?", err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(FAILED)
    return ids


def in_batches(
    url: str, ids: Sequence[str], act: Callable[[Any, list[str]], Awaitable[Sequence[Any]]], *, doing: str
) -> list[Any]:
    """Take them a batch at a time, with a bar if there are many; answers what `act` answered, in order."""

    async def question(operations: OperationsProtocol) -> list[Any]:
        answers: list[Any] = []
        with bar(doing, len(ids)) as step:
            for start in range(0, len(ids), BATCH):
                batch = list(ids[start : start + BATCH])
                answers += await act(operations, batch)
                step(len(batch))
        return answers

    return ask(url, question) if ids else []


@contextlib.contextmanager
def bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, if there is enough to do."""
    if total < BAR_FROM or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=total, label=doing, show_pos=True, file=sys.stderr) as line:
        yield line.update


def how_cancelled(url: str, answers: Sequence[Any]) -> dict[str, str]:
    """In a word, by the run's id: one that waited is over, one that runs was asked to stop.  Only few are looked at."""
    ids = [answer.id for answer in answers if answer.answer.value == "ok"]
    if not ids or len(answers) > LINES_MAX:
        return {}

    async def question(operations: OperationsProtocol) -> dict[str, Any]:
        found = {}
        for run_id in ids:
            with contextlib.suppress(NotFound):  # it ended, and is forgotten
                found[run_id] = await operations.runs.find_run(run_id)
        return found

    words = {"cancelled": "cancelled", "leased": "asked to stop"}
    states = {run_id: str(getattr(run, "state", "")) for run_id, run in ask(url, question).items()}
    return {run_id: words[state] for run_id, state in states.items() if state in words}  # unreadable ones have none


def print_answers(
    answers: Sequence[Any],
    *,
    done: str,
    why_not: dict[str, str],
    none: str,
    what: str,
    each: Mapping[str, str] | None = None,
) -> int:
    """Each answer on a line if there are few, in words of its own if it has some, else how many; the exit code."""
    words = [(answer, why_not.get(answer.answer.value, answer.answer.value)) for answer in answers]
    refused = [(answer, word) for answer, word in words if answer.answer.value != "ok"]
    if len(answers) <= LINES_MAX:
        for answer, word in words:
            is_ok = answer.answer.value == "ok"
            click.echo(f"run {answer.id}: {(each or {}).get(answer.id, done) if is_ok else word}", err=not is_ok)
    else:
        click.echo(f"{counted(len(answers) - len(refused), what)}: {done}")
        for reason in dict.fromkeys(word for _, word in refused):
            count = sum(word == reason for _, word in refused)
            click.echo(f"{counted(count, what)}: {reason}", err=True)
    if not answers:
        click.echo(none)
    return FAILED if refused else 0
