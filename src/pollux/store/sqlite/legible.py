"""What of a claim can be read?  A run that cannot be is dead; one whose job cannot be goes back, for a node that can.

Such a dead letter stays as somebody else wrote it: `pollux store check` names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pollux.model import Dead, Job, Run
from pollux.store.aside import Leased
from pollux.store.contract import Settlement
from pollux.store.legible import UNREADABLE
from pollux.store.relational.rows import Row
from pollux.store.shelf import JobShelf
from pollux.store.sqlite.leases import ID, JOB, SEQ, Taken

FENCE, TOKEN = 17, 18  # their places in a whole row


class Part(NamedTuple):
    runs: list[Run]
    jobs: dict[str, Job]
    dead: list[Settlement]
    aside: list[Leased]
    reasons: dict[str, str]  # why, by job


def legible_part(taken: Taken, run_of: Callable[[Row], Run], shelf: JobShelf, token: str) -> Part:
    part = Part([], {}, [], [], {})
    for job_id, job in taken.jobs.items():
        try:
            part.jobs[job_id] = shelf.job(job)
        except UNREADABLE as error:
            part.reasons[job_id] = str(error)
    for row in taken.runs:
        whole = taken.whole.get(row[SEQ])
        fence, own = (1, f"{token}:1") if whole is None else whole[FENCE : TOKEN + 1]
        if row[JOB] in part.reasons:
            part.aside.append(Leased(row[ID], own, row[JOB], fence))
            continue
        try:
            part.runs.append(run_of(row))
        except UNREADABLE as error:
            part.dead.append(Settlement(row[ID], own, Dead(f"it cannot be read ({error})")))
    return part
