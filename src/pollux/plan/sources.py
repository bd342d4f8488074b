"""Whose is a job, and does anybody of theirs live?  For those who want to take it away, and for those who watch.

A job belongs to the source that declared it: `file:pollux.yaml`, `code:shop`, or `api`.  While a node of that source
lives, a job that is deleted comes back with its next start or reload.  Once none lives the jobs stay all the same: a
restart takes its time, and must find what was due meanwhile.  They wait until a node comes back, or somebody takes them
away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pollux.model import API_SOURCE, Job, Node


def is_backed(job: Job, nodes: Iterable[Node]) -> bool:
    """Would a living node put it back if it were deleted?  One of an older release changes nothing."""
    if job.source == API_SOURCE or not job.declared:
        return False
    declared = (each for node in nodes for each in node.declares)
    return any(each.source == job.source and each.release >= job.release for each in declared)


def forsaken(jobs: Iterable[Job], nodes: Collection[Node]) -> dict[str, list[str]]:
    """By source: jobs that nobody who lives declares or could run.

    One whose handler a node of somebody else knows runs there, and is no worry.  While no node lives at all nobody has
    left anybody: all of them wait.
    """
    if not nodes:
        return {}
    handlers = {name for node in nodes for name in node.handlers}
    found: dict[str, list[str]] = {}
    for job in jobs:
        is_wanted = job.source != API_SOURCE and job.declared and job.enabled
        if is_wanted and job.handler not in handlers and not is_backed(job, nodes):
            found.setdefault(job.source, []).append(job.id)
    return found
