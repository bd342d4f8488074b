"""RPC route of the `pollux` command line: each verb of the app by its name, with its arguments and errors.

Only for commands of the same version; programs use the other routes, which stay the same from version to version.
Roles, limits and the rules for jobs and runs of the API apply here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from inspect import signature
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from pollux.client.rpc_codec import LOOKS, PATH, VERSION_HEADER, Hello, file_mark, packed_answer, record_of, verb_of
from pollux.errors import InvalidInput, PolluxError, StoreError, did_you_mean
from pollux.model import API_SOURCE
from pollux.secrets import hide
from pollux.server.auth import Role, check_asker
from pollux.server.limits import BODY_MAX
from pollux.server.problems import Problem, problem_of
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.reading import read_bytes
from pollux.version import __version__

ROLES: Mapping[str, Role] = {
    **dict.fromkeys(LOOKS, Role.VIEWER),
    **dict.fromkeys(("accept", "enqueue", "enqueue_many", "run_now"), Role.OPERATOR),
    **dict.fromkeys(("cancel", "cancel_runs", "revive", "drop"), Role.OPERATOR),
    **dict.fromkeys(("pause", "resume", "delete_jobs", "move_jobs"), Role.OPERATOR),
    **dict.fromkeys(("drain_workers", "resume_workers", "trigger"), Role.OPERATOR),
    **dict.fromkeys(("set_setting", "unset_setting", "reload", "rollback"), Role.ADMIN),
    **dict.fromkeys(("file_in_force", "options_in_force"), Role.ADMIN),
    **dict.fromkeys(("create_token", "list_tokens", "revoke_token", "rotate_token"), Role.ADMIN),
    **dict.fromkeys(("finish_version", "dump", "load"), Role.ADMIN),
}

SEALED_S = 1.0  # a hello is short

routes = Routes("verbs")


@routes.raw("GET", PATH, Role.VIEWER, include_in_schema=False)
async def hello(context: RequestContext) -> Response:
    """The node's identity and that of the caller."""
    _refuse_other_versions(context)
    url = context.app.store_url
    answer = Hello(
        version=__version__,
        store=hide(url),
        file=file_mark(url),
        sealed=await _sealed(context),
        name=context.identity.name,
        role=context.identity.role.word,
        now_ms=await _store_now(context),
    )
    return _answer(msgspec.json.encode(answer))


async def _sealed(context: RequestContext) -> str:
    """Empty if the store does not answer now: the caller may ask for what needs no store, like the health."""
    try:
        async with asyncio.timeout(SEALED_S):
            return await context.app.sealed()
    except (StoreError, TimeoutError):
        return ""


async def _store_now(context: RequestContext) -> int:
    """0 if the store does not answer now."""
    try:
        async with asyncio.timeout(SEALED_S):
            return await context.operations.storage.store_now()
    except (StoreError, TimeoutError):
        return 0


@routes.raw("POST", f"{PATH}/{{verb}}", Role.VIEWER, include_in_schema=False)
async def ask(context: RequestContext) -> Response:
    """Call one verb.  An error carries its class, so that the client can raise it again."""
    _refuse_other_versions(context)
    name = context.request.path_params["verb"]
    if name not in ROLES:
        words = f"there is no verb {name!r}{did_you_mean(name, ROLES)}"
        raise Problem(404, "not found", words, cure="programs use the routes of /api/v2/docs")
    context.refuse_below(ROLES[name])
    verb = verb_of(name)
    act = getattr(getattr(context.operations, verb.group), name)
    try:
        arguments = verb.unpacked(await read_bytes(context.request, BODY_MAX))
        if (
            name == "load" and "peer" not in context.request.scope["state"]
        ):  # on the machine itself they may do it anyway
            _refuse_trust(arguments.get("records", ()))
        _refuse_missing(act, arguments)
        if arguments.get("params") and "job" in arguments:
            job, params = await context.operations.jobs.get_job(arguments["job"]), arguments["params"]
            for each in [params] if isinstance(params, Mapping) else params:
                check_asker(context, job, each)
        if verb.is_paged:
            return await _paged(act(**arguments))
        answer = await act(**arguments)
    except PolluxError as error:
        problem = problem_of(error)
        problem.more["error"] = record_of(error)
        return _versioned(problem.response())
    return _answer(packed_answer(answer, is_masked=context.identity.role < Role.ADMIN))


def _refuse_missing(verb: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature(verb).bind(**arguments)
    except TypeError as error:
        raise InvalidInput(f"wrong arguments: {error}", cure="use a `pollux` command") from None


async def _paged(pages: AsyncIterator[Any]) -> Response:
    """One page on each line; an error of the first one still gets its own status."""
    first = await anext(pages)

    async def lines() -> AsyncIterator[bytes]:
        yield msgspec.json.encode(first) + b"\n"
        async for page in pages:
            yield msgspec.json.encode(page) + b"\n"

    return _versioned(StreamingResponse(lines(), media_type="application/x-ndjson"))


def _refuse_trust(records: Any) -> None:
    """Refuse records of jobs of files or code: those may hold secrets and reach every network."""
    for kind, data in records:
        if kind == "job" and isinstance(data, dict) and data.get("source", API_SOURCE) != API_SOURCE:
            what = f"job {data.get('id')!r} is one of {data.get('source')!r}, and would be trusted as such"
            raise InvalidInput(what, cure="load it into the store itself: `pollux store load --store URL`")


def _refuse_other_versions(context: RequestContext) -> None:
    theirs = context.request.headers.get(VERSION_HEADER, "")
    if theirs != __version__:
        raise Problem(
            409,
            "version mismatch",
            f"this node is Pollux {__version__}, the caller is {theirs[:40] or 'not a pollux command'}",
            cure=f"install Pollux {__version__} there; programs use the routes of /api/v2/docs",
        )


def _answer(body: bytes) -> Response:
    return _versioned(Response(body, media_type="application/json"))


def _versioned(response: Response) -> Response:
    response.headers[VERSION_HEADER] = __version__
    return response
