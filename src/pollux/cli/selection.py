"""Selection of jobs and runs by ids or a filter; what a filter selects is counted, confirmed and done in batches."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import wraps
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pollux.cli.command_table import FAILED
from pollux.cli.completion import job_ids
from pollux.cli.options import applied
from pollux.cli.output import now_ms, print_unreadable, progress
from pollux.errors import InvalidInput, NotFound, Unreadable, read_at
from pollux.store.contract import JobFilter, JobPage, RunAnswer, RunFilter, RunPage
from pollux.units import counted, past_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

CHOSEN_MAX = 100_000  # by one command; the next one takes the rest
BATCH = 500
LINES_MAX = 20  # answers that are printed one by one; more are summed up
_Command = TypeVar("_Command", bound=Callable[..., Any])
_Page = TypeVar("_Page", "JobPage", "RunPage")
_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")

_group = click.option("--group", help="Of this group.")
_target = click.option("--target", help="Of this target.")


def job_filter(command: _Command) -> _Command:
    return applied(
        command,
        _group,
        _target,
        click.option("--tag", help="With this tag."),
        click.option("--source", help="Declared by this: file:pollux.yaml, code:shop, or api."),
        click.option("--text", help="With this text in the id or name."),
    )


def run_filter(command: _Command) -> _Command:
    job = click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Of this job.")
    return applied(command, job, _group, _target)


def dead_filter(command: _Command) -> _Command:
    return applied(
        command,
        run_filter,
        click.option("--error", metavar="TEXT", help="With this text in the error."),
        click.option("--since", metavar="WHEN", help="Died since: 2h ago, or a moment with its offset."),
    )


FILTER_PARTS = ("job_id", "group", "target", "tag", "source", "text", "error", "since", "scheduler_version")


class Selection(NamedTuple):
    """What the command line selects: ids, the parts of a filter, or everything."""

    what: str  # "dead letter", "run", "job"
    ids: tuple[str, ...]
    parts: dict[str, Any]
    everything: bool
    yes: bool

    @property
    def is_named(self) -> bool:
        return bool(self.ids)

    @property
    def is_empty(self) -> bool:
        return not (self.ids or self.parts or self.everything)

    def as_options(self) -> str:
        """What selects the same again on a command line."""
        return "--all" if self.everything else " ".join(f"--{name} {quote(str(to))}" for name, to in self.parts.items())

    def check(self) -> None:
        """Refuse all but one of: ids, a filter, --all."""
        if sum((bool(self.ids), bool(self.parts), self.everything)) != 1:
            cure = "give their ids, or filters, or --all, but only one of these"
            raise InvalidInput(f"it is not clear which {self.what}s are meant", cure=cure)


def selecting(
    what: str, selected_by: Callable[[Any], Any], *, complete: Callable[..., Any] = job_ids, may_be_empty: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`[ID]...`, the options of a filter, `--all` and `--yes`; given to the command as `choice`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(ids: tuple[str, ...], *, everything: bool, yes: bool, **given: Any) -> Any:
            found = {name: given.pop(name) for name in FILTER_PARTS if name in given}
            parts = {name: value for name, value in found.items() if value is not None}
            choice = Selection(what, tuple(dict.fromkeys(ids)), parts, everything, yes)
            if not (may_be_empty and choice.is_empty):
                choice.check()
            return command(choice=choice, **given)

        return applied(
            run,
            click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete),
            selected_by,
            click.option("--all", "everything", is_flag=True, help="All there are."),
            click.option("--yes", is_flag=True, help="Do not ask."),
        )

    return add


def since_ms(text: str) -> int:
    """`2h` means two hours ago; a moment means itself."""
    return read_at("--since", lambda given: past_ms(given, now_ms()), text)


async def chosen_runs(
    operations: OperationsProtocol, choice: Selection, states: Sequence[str], *, verb: str
) -> list[str]:
    """The ids of the selected runs; those of a filter were counted and confirmed."""
    from pollux.app.operations.status import runs_in_state

    parts, now = dict(choice.parts), now_ms()
    if "since" in parts:
        parts["finished_after_ms"] = since_ms(parts.pop("since"))
    where = RunFilter(**parts)

    async def page(after: str | None) -> RunPage:
        return await runs_in_state(operations.runs, states, where, now_ms=now, after=after, limit=1_000)

    return await _chosen(page, choice, "run", verb=verb)


async def chosen_jobs(operations: OperationsProtocol, choice: Selection, *, verb: str) -> list[str]:
    """The ids of the selected jobs; those of a filter were counted and confirmed."""
    where = JobFilter(**choice.parts)

    async def page(after: str | None) -> JobPage:
        return await operations.jobs.list_jobs(where, after=after, limit=1_000)

    return await _chosen(page, choice, "job", verb=verb)


async def _chosen(
    page_after: Callable[[str | None], Awaitable[_Page]], choice: Selection, kind: str, *, verb: str
) -> list[str]:
    if choice.is_named:
        return list(choice.ids)
    ids: list[str] = []
    async for page in pages(page_after):
        ids += [item.id for item in getattr(page, f"{kind}s")]
        print_unreadable(page.unreadable, kind)  # whether the filter selects them is unknown
        if len(ids) >= CHOSEN_MAX and page.next is not None:
            click.echo(f"more than {CHOSEN_MAX:,} are meant: the first {CHOSEN_MAX:,} are taken; repeat it", err=True)
            break
    return await _confirmed(ids[:CHOSEN_MAX], choice, verb=verb)


async def pages(page_after: Callable[[str | None], Awaitable[_Page]]) -> AsyncIterator[_Page]:
    """All pages of a listing, each from the cursor of the one before."""
    after: str | None = None
    while True:
        page = await page_after(after)
        yield page
        after = page.next
        if after is None:
            return


async def _confirmed(ids: list[str], choice: Selection, *, verb: str) -> list[str]:
    """The ids, after a question that names their number, which replaces the dots of `move ... to version 2`."""
    if not ids or choice.yes:
        return ids
    verb, _, rest = verb.partition("...")
    deed = f"{verb.strip()} {counted(len(ids), choice.what)}{rest}"
    if not sys.stdin.isatty():
        raise InvalidInput(f"this would {deed}, and there is no terminal to confirm it", cure="add --yes")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's would end nothing before the answer
    try:
        is_confirmed = click.confirm(f"{deed}?", err=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if not is_confirmed:
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(FAILED)
    await asyncio.sleep(0.01)  # the loop stood still: let it see the connections that were closed meanwhile
    return ids


async def in_batches(
    ids: Sequence[_Item], act: Callable[[list[_Item]], Awaitable[Sequence[_Answer]]], *, doing: str
) -> list[_Answer]:
    """The answers of `act` on a batch at a time, in order, with a progress bar if there are many ids."""
    answers: list[_Answer] = []
    with progress(total=len(ids)) as show:
        for start in range(0, len(ids), BATCH):
            answers += await act(list(ids[start : start + BATCH]))
            done = min(start + BATCH, len(ids))
            show(f"{doing}: {done:,} of {len(ids):,}", done, len(ids))
    return answers


async def print_unreadable_jobs(operations: OperationsProtocol, ids: Sequence[str]) -> None:
    """Name those of the jobs that cannot be read here; the ids were enough for what was done to them."""
    found = zip(ids, await operations.jobs.jobs_by_id(list(ids)), strict=True) if ids else ()
    for job_id in [job_id for job_id, job in found if job is None]:
        with contextlib.suppress(NotFound):  # it was deleted in between
            if isinstance(job := await operations.jobs.find_job(job_id), Unreadable):
                print_unreadable([job])


async def how_cancelled(operations: OperationsProtocol, answers: Sequence[RunAnswer]) -> dict[str, str]:
    """In a word, by the run's id: a waiting run is over, a running one was asked to stop.  Only a few are read."""
    ids = [answer.id for answer in answers if answer.answer.value == "ok"]
    found: dict[str, str] = {}
    for run_id in ids if len(answers) <= LINES_MAX else ():
        with contextlib.suppress(NotFound):  # it ended, and is forgotten
            found[run_id] = str(getattr(await operations.runs.find_run(run_id), "state", ""))
    words = {"cancelled": "cancelled", "leased": "asked to stop"}
    return {run_id: words[state] for run_id, state in found.items() if state in words}  # unreadable ones have none


def print_answers(
    answers: Sequence[RunAnswer],
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
