"""May they have that run?  What comes by the API names handlers that a node has, and commands only an admin's.

Whoever adds jobs or asks for runs from outside goes through here, by whatever route.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from pollux.app import Pollux
from pollux.errors import InvalidInput, did_you_mean
from pollux.model import Job
from pollux.secrets import MASK, texts_of
from pollux.server.roles import Role
from pollux.server.routing import RequestContext

EXEC = "exec"


async def known_handlers(verbs: Pollux, wanted: Collection[str]) -> frozenset[str]:
    """Those of this process; and of the living nodes, if something else is wanted."""
    ours = frozenset(verbs.handler_names()) | {EXEC}  # whether that is allowed is said in its own words
    if ours.issuperset(wanted):
        return ours
    return ours.union(*(node.handlers for node in await verbs.nodes()))


def check_author(desk: RequestContext, job: Job, known: frozenset[str]) -> None:
    """May they add or change this job?"""
    if job.handler == EXEC:
        desk.refuse_below(Role.ADMIN)
    if job.handler not in known:
        cure = did_you_mean(job.handler, known).strip("; ") or f"known are {', '.join(sorted(known - {EXEC})[:20])}"
        raise InvalidInput(f"no living node has a handler {job.handler!r}", where="handler", cure=cure)
    if words := desk.verbs.out_of_reach(job):
        raise InvalidInput(words, where="url", cure="declare the job in a file or code, or allow its network")
    for path, text in texts_of(job.params):
        if text == MASK:
            what = "it was hidden in an answer, and is not the value itself"
            raise InvalidInput(what, where=f"params.{path}", cure="send the value, or leave it out")


def check_asker(desk: RequestContext, job: Job, params: Mapping[str, Any] | None) -> None:
    """May they ask for a run of this job with these params?

    Those of a command could make it another one; a URL that comes with a run reaches what one by API does.
    """
    if params and job.handler == EXEC:
        desk.refuse_below(Role.ADMIN)
    if params and "url" in params and (words := desk.verbs.out_of_reach(replace(job, params=dict(params)))):
        cure = "name the URL in a job of a file or code, or allow its network"
        raise InvalidInput(words, where="params.url", cure=cure)
