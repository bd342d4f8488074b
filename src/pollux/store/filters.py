"""Filters of jobs and runs, for stores that compare values rather than rows."""

from __future__ import annotations

from collections.abc import Callable

from pollux.errors import InvalidInput
from pollux.model import Job, Run
from pollux.store.contract import JobFilter, RunFilter


def job_fits(job: Job, where: JobFilter) -> bool:
    return (
        (where.group is None or job.group == where.group)
        and (where.target is None or job.target == where.target)
        and (where.tag is None or where.tag in job.tags)
        and (where.source is None or job.source == where.source)
        and (where.handler is None or job.handler == where.handler)
        and (where.text is None or where.text in job.id or where.text in job.name)
        and (where.scheduler_version is None or job.scheduler_version == where.scheduler_version)
        and (where.priority is None or job.priority == where.priority)
        and (where.source_id is None or job.source_id == where.source_id)
        and (where.enabled is None or job.enabled == where.enabled)
    )


def run_filter(where: RunFilter) -> Callable[[Run], bool]:
    states = frozenset(where.states)

    def fits(run: Run) -> bool:
        return (
            (not states or run.state in states)
            and (where.job_id is None or run.job_id == where.job_id)
            and (where.group is None or run.group == where.group)
            and (where.target is None or run.target == where.target)
            and (where.failed is None or run.failed == where.failed)
            and (
                where.finished_after_ms is None
                or (run.finished_ms is not None and run.finished_ms > where.finished_after_ms)
            )
            and (where.error is None or where.error in run.error or where.error in run.traceback)
            and (where.scheduler_version is None or run.scheduler_version == where.scheduler_version)
        )

    return fits


def run_place(after: str | None) -> tuple[tuple[int, str] | None, int | None]:
    """The position of a cursor: the pair (due, id) before the next live run, or the number above the next finished one.

    Cursors are `live:<due>:<id>` and `past:<number>` of the last run of a page.
    """
    if after is None:
        return None, None
    kind, _, place = after.partition(":")
    number, _, rest = place.partition(":")
    digits = number.removeprefix("-") if kind == "live" else number
    if kind in {"live", "past"} and digits.isdecimal() and digits.isascii():
        return (None, int(number)) if kind == "past" else ((int(number), rest), None)
    raise InvalidInput(f"{after!r} is no place in a list of runs", cure="use what the page before answered as next")
