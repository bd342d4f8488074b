"""Checks of jobs and runs that come by the API: known handlers, roles, reachable networks.

Every route that adds jobs or enqueues runs uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from pollux.app import Operations
from pollux.errors import InvalidInput, did_you_mean
from pollux.model import Job
from pollux.secrets import MASK, texts_of
from pollux.server.roles import Role
from pollux.server.routing import RequestContext

EXEC = "exec"


async def known_handlers(operations: Operations, wanted: Collection[str]) -> frozenset[str]:
    """Handlers of this process; and of all live nodes, if others are wanted."""
    ours = frozenset(operations.jobs.handler_names()) | {
        EXEC
    }  # whether it is enabled is checked elsewhere, with its own error
    if ours.issuperset(wanted):
        return ours
    return ours.union(*(node.handlers for node in await operations.status.nodes()))


def check_author(desk: RequestContext, job: Job, known: frozenset[str]) -> None:
    """Raise if the caller may not add or change this job."""
    if job.handler == EXEC:
        desk.refuse_below(Role.ADMIN)
    if job.handler not in known:
        cure = did_you_mean(job.handler, known).strip("; ") or f"known are {', '.join(sorted(known - {EXEC})[:20])}"
        raise InvalidInput(f"no live node has a handler {job.handler!r}", where="handler", cure=cure)
    if words := desk.app.out_of_reach(job):
        raise InvalidInput(words, where="url", cure="declare the job in a file or code, or allow its network")
    for path, text in texts_of(job.params):
        if text == MASK:
            what = "it is the mask of a hidden value, not the value"
            raise InvalidInput(what, where=f"params.{path}", cure="send the value, or omit it")


def check_asker(desk: RequestContext, job: Job, params: Mapping[str, Any] | None) -> None:
    """Raise if the caller may not enqueue a run of this job with these params.

    Params can turn a command into another one; a URL in the params has the same limits as that of a job of the API.
    """
    if params and job.handler == EXEC:
        desk.refuse_below(Role.ADMIN)
    if params and "url" in params and (words := desk.app.out_of_reach(replace(job, params=dict(params)))):
        cure = "name the URL in a job of a file or code, or allow its network"
        raise InvalidInput(words, where="params.url", cure=cure)
