"""Answers to a program that asked for a run or put a job: new, there already, refused, or waiting for a handler.

The same id again is the same run: what was asked for beside it the second time is not laid over it, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from pollux.errors import Conflict, InvalidInput, StoreTimeout, did_you_mean
from pollux.model import LIVE, Job, Run, RunState
from pollux.observe.logs import say_handler_unknown, say_kept
from pollux.registry import Registry
from pollux.store.contract import Store
from pollux.store.decoding import as_far

_PARTS = {"payload": "params", "key": "key", "priority": "priority"}  # of a run: what people call them

_OPTIONS = ("params", "id", "key", "at", "delay", "priority", "connection")


class RunAccepted(Struct, frozen=True):
    """The answer to whoever asks for a run."""

    run: Run  # as it is now
    is_new: bool = True  # False: a run of this id was there already
    kept: tuple[str, ...] = ()  # of that run: what it keeps although something else was asked for

    def in_words(self, *, revive: str) -> str:
        """What became of what was asked for; `revive` is how a dead run is let run again where it was asked."""
        if self.is_new:
            return "the run is accepted"
        words = f"run {self.run.id} exists already and is {self.run.state.value}"
        if self.kept:
            words += f"; its {' and '.join(self.kept)} were kept, and what was sent now was dropped"
        return f"{words}; to run it again: {revive}" if self.run.state is RunState.DEAD else words


def refuse_unknown(names: Iterable[str]) -> None:
    """Arguments of the function are easily given as arguments of `enqueue`."""
    for name in names:
        hint = did_you_mean(name, _OPTIONS)
        cure = f'the arguments of the function are params: enqueue(job, {{"{name}": ...}})'
        known = f"it takes {', '.join(_OPTIONS)}"
        raise InvalidInput(f"enqueue() has no option {name!r}{hint}", cure=known if hint else cure)


def said(accepted: RunAccepted) -> Run:
    """The run, for a caller who gets nothing else: what it asked for and did not get is logged."""
    if accepted.kept:
        say_kept(accepted.run.id, accepted.in_words(revive=f"await app.revive([{accepted.run.id!r}])"))
    return accepted.run


@contextmanager
def named_if_unanswered(run: Run) -> Iterator[None]:
    """If no answer comes in time, whoever asked for the run is told by which id to look for it and to ask again."""
    try:
        yield
    except StoreTimeout as error:
        what = f"run {run.id} of job {run.job_id} may have been accepted"
        cure = f"`pollux runs show {run.id}` tells, and the same id asks for the same run"
        raise StoreTimeout(f"{what}: {error}; {cure}") from error


def there_already(asked: Run, there: Run) -> RunAccepted:
    """A run of that id is there; what of it differs from what was asked for?  It must be one of the same job."""
    if there.job_id != asked.job_id:
        raise Conflict(f"run {asked.id} is one of job {there.job_id!r}, not of {asked.job_id!r}", cure="use another id")
    kept = [word for name, word in _PARTS.items() if (getattr(asked, name) or None) != (getattr(there, name) or None)]
    return RunAccepted(there, is_new=False, kept=tuple(kept))


async def overlapped(store: Store, job: Job, run_id: str, *, anyway: str) -> Conflict:
    """The refusal of a run because another, `run_id`, was live; `anyway` is how a caller runs the job all the same.

    The other may have ended since: its state is read after the refusal.  One that cannot be read counts as live.
    """
    [run], spoilt = await as_far(store.get_runs([run_id]))
    state = "unreadable" if spoilt else "removed" if run is None else str(run.state)
    found = {"run_id": run_id, "run_state": state}
    if not spoilt and (run is None or run.state not in LIVE):
        return Conflict(f"job {job.id!r} had a live run, {run_id}, which has just ended", found=found, cure="ask again")
    cure = f"wait for it, cancel it, or run the job anyway: {anyway}"
    return Conflict(f"job {job.id!r} has a live run, {run_id} ({state})", found=found, cure=cure)


async def say_unknown_handlers(store: Store, registry: Registry, jobs: Sequence[Job]) -> None:
    """Log a warning for each handler that neither this program nor a living node has; nothing is refused for it."""
    first = {job.handler: job.id for job in reversed(jobs) if registry.get(job.handler) is None}
    if not first:
        return
    known = {name for node in await store.nodes() for name in node.handlers}
    for handler, job_id in first.items():
        if handler not in known:
            say_handler_unknown(job_id, handler, did_you_mean(handler, {*known, *registry.names()}).rstrip("?"))
