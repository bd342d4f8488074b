"""Job from a request body, by the same rules as for a config file.

Two names of one field may both be sent if their values are equal.  Features that this version lacks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pollux.errors import InvalidConfig, InvalidInput, problems_of
from pollux.job_builder import job_of
from pollux.model import API_SOURCE, Job, Schedule
from pollux.schedule import builders, validate
from pollux.server.schemas.jobs import JobBody, RetryBody
from pollux.server.schemas.reading import UnfitBody

URL_HANDLER = "http"
NOT_YET = ("depends_on", "trigger_webhook", "trigger_channel")
_PLAIN = ("name", "priority", "group", "target", "overlap", "misfire", "isolate", "tags", "source_id")
_KINDS = {  # schedule field -> values of `schedule_type`
    "interval": ("interval",),
    "cron": ("cron",),
    "at": ("once",),
    "once": ("immediate", "once"),
    "event": ("event",),
}
_SCHEDULE = ("schedule_type", "cron_expression", "cron", "tz", "interval", "start", "spread", "at", "once", "event")
CheckParams = Callable[
    [str, Mapping[str, Any]], None
]  # raises `InvalidInput` for params that a handler does not accept
_BELONGS = {"tz": "cron", "start": "interval", "spread": "interval"}


class _Reading:
    """One body and the list of its problems."""

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.problems: list[InvalidInput] = []
        self.words = {"params": word_of_params(body)}  # our name of a field -> the name in the body

    def refuse(self, where: str, what: str, cure: str = "") -> None:
        self.problems.append(InvalidInput(what, where=where, cure=cure))

    def tell(self, error: InvalidInput, where: str = "") -> None:
        """Add the problems of an error, with the field names of the body."""
        for one in problems_of(error):
            path = (one.at(where) if where else one).where.split(".")
            if path[0] == "schedule" and path[-1] in _BELONGS:
                path = path[-1:]
            elif path[0] == "schedule":
                path = [self.words.get("schedule", "")]
            elif path[0] == "params":
                path = [place_in(".".join(path), self.words["params"])]
            else:
                path[0] = self.words.get(path[0], path[0])
            self.problems.append(InvalidInput(one.what, where=".".join(path), cure=one.cure))

    def same(self, ours: str, theirs: str) -> Any:
        """The value of a field that has two names."""
        mine, other = getattr(self.body, ours), getattr(self.body, theirs)
        if mine is not None and other is not None and mine != other:
            self.refuse(theirs, f"{theirs} and {ours} differ", "keep one of them")
        self.words[ours] = theirs if mine is None else ours
        return other if mine is None else mine


def job_of_body(body: JobBody, job_id: str, check: CheckParams) -> Job:
    """The job, or `InvalidInput`, or `InvalidConfig` with every problem.

    The put itself checks the params against the handler; here they are checked only if there are other problems.
    """
    reading = _Reading(body)
    for name in NOT_YET:
        if getattr(body, name):
            reading.refuse(name, "not supported in this version", "omit it")
    handler, params = _handler(reading)
    schedule = _schedule(reading)
    given: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(body, name)) is not None}
    given["params"] = params
    if (enabled := reading.same("enabled", "schedule_enabled")) is not None:
        given["enabled"] = enabled
    if (timeout := reading.same("timeout", "timeout_seconds")) is not None:
        given["timeout"] = timeout
    if (retry := _retry(body.retry)) is not None:
        given["retry"] = retry
    try:
        job = job_of(id=job_id, handler=handler or "x", schedule=schedule, source=API_SOURCE, **given)
    except InvalidInput as error:
        reading.tell(error)
    if reading.problems:
        _check_params(reading, handler, params, check)
        raise reading.problems[0] if len(reading.problems) == 1 else InvalidConfig(reading.problems)
    return job


def also_wrong(unfit: UnfitBody) -> list[InvalidInput]:
    """Problems of the decoded fields that do not follow from the undecoded ones."""
    bad = {problem.where.partition(".")[0] for problem in unfit.problems}
    try:
        job_of_body(unfit.partial, unfit.partial.id or "x", lambda *_: None)
    except InvalidInput as error:
        found = problems_of(error)
    else:
        return []
    doubted = {"handler"} if bad & {"url", "http", "exec", "handler"} else set()
    doubted |= set(_SCHEDULE) if bad & set(_SCHEDULE) else set()
    return [problem for problem in found if problem.where.partition(".")[0] not in bad | doubted]


def word_of_params(body: JobBody) -> str:
    """The field of the body that has the params."""
    if body.http is not None or body.exec is not None:
        return "http" if body.http is not None else "exec"
    return "url" if body.url is not None and not body.params else "params"


def place_in(where: str, word: str) -> str:
    """The place `where` in the params, with the field name `word` of the body."""
    rest = where.removeprefix("params").removeprefix(".")
    return word if word == "url" and rest in {"", "url"} else ".".join(part for part in (word, rest) if part)


def _handler(reading: _Reading) -> tuple[str | None, dict[str, Any]]:
    """The handler and its params."""
    body = reading.body
    if body.http is not None and body.exec is not None:
        reading.refuse("exec", "http and exec exclude each other", "keep one of them")
        return None, {}
    if body.http is not None:
        return _built_in(reading, URL_HANDLER, {"url": body.http} if isinstance(body.http, str) else body.http)
    if body.exec is not None:
        return _built_in(reading, "exec", body.exec if isinstance(body.exec, dict) else {"argv": body.exec})
    handler = body.handler or (URL_HANDLER if body.url is not None else None)
    if handler is None:
        cure = 'send "url": "https://...", or "handler": the name of one that a node has'
        reading.refuse("handler", "nothing to run is named", cure)
        return None, {}
    params = dict(body.params or {})
    if body.url is not None and handler != URL_HANDLER:
        reading.refuse("url", f"handler {handler!r} has no url", 'send it in "params"')
    elif body.url is not None and params.setdefault("url", body.url) != body.url:
        reading.refuse("url", "url and params.url differ", "keep one of them")
    return handler, params


def _built_in(reading: _Reading, name: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    body = reading.body
    if body.handler not in (None, name):
        reading.refuse("handler", f"handler {body.handler!r} contradicts {name}", "keep one of them")
    for other in ("params", "url"):
        if getattr(body, other) is not None:
            reading.refuse(other, f"{other} is not allowed with {name}", f"send it inside {name}")
    return name, dict(params)


def _check_params(reading: _Reading, handler: str | None, params: Mapping[str, Any], check: CheckParams) -> None:
    try:
        if handler is not None:
            check(handler, params)
    except InvalidInput as error:
        reading.tell(error, "params")


def _kinds(body: JobBody) -> list[str]:
    cron = body.cron_expression if body.cron is None else body.cron
    said: Mapping[str, Any] = {
        "interval": body.interval,
        "cron": cron,
        "at": body.at,
        "once": body.once or None,
        "event": body.event or None,
    }
    named = [name for name, value in said.items() if value is not None]
    by_type = {"immediate": "once", "event": "event"}.get(body.schedule_type or "")
    return named or ([by_type] if by_type else [])


def _schedule(reading: _Reading) -> Schedule | None:
    body = reading.body
    line = reading.same("cron", "cron_expression")
    kinds = _kinds(body)
    if len(kinds) > 1:
        reading.refuse(kinds[1], f"{' and '.join(kinds)} exclude each other", "keep one of them")
        for each in kinds:
            _judge(reading, each, line)
        return None
    kind = kinds[0] if kinds else ""
    if not _fits_type(reading, kind):
        _judge(reading, kind, line)
        return None
    for modifier, owner in _BELONGS.items():
        if getattr(body, modifier) is not None and kind != owner:
            reading.refuse(modifier, f"it needs {owner}", f"omit it, or send {owner}")
    reading.words["schedule"] = reading.words.get(kind, kind)
    try:
        return _made(kind, body, line)
    except InvalidInput as error:
        reading.tell(error, "schedule")
        return None


def _judge(reading: _Reading, kind: str, line: str) -> None:
    """Check a schedule field that is refused anyway, for its own problems."""
    reading.words["schedule"] = reading.words.get(kind, kind)
    try:
        made = _made(kind, reading.body, line)
        if made is not None:
            validate(made, reading.body.id or "x")
    except InvalidInput as error:
        reading.tell(error, "schedule")


def _made(kind: str, body: JobBody, line: str) -> Schedule | None:
    match kind:
        case "interval":
            return builders.every(body.interval or 0, start=body.start, spread=body.spread is not False)
        case "cron":
            return builders.cron(line, tz=body.tz or "UTC")
        case "at":
            return builders.once(body.at)
        case "once":
            return builders.once()
        case "event":
            return builders.on_event()
    return None


def _fits_type(reading: _Reading, kind: str) -> bool:
    """Does `schedule_type`, if sent, match the other fields?"""
    said = reading.body.schedule_type
    if said is None or (said == "manual" and not kind) or said in _KINDS.get(kind, ()):
        return True
    if said == "manual":
        reading.refuse("schedule_type", f"it is manual, but {kind} is a schedule", f"omit {kind}")
    elif kind:
        reading.refuse("schedule_type", f"it is {said}, but {kind} is sent", "keep one of them")
    else:
        missing = {"cron": "cron_expression", "interval": "interval", "once": "at"}.get(said, said)
        reading.refuse(missing, f"schedule_type is {said}, but {missing} is missing", f"send {missing}")
    return False


def _retry(retry: bool | int | RetryBody | None) -> Any:  # noqa: FBT001  as it came
    if isinstance(retry, RetryBody):
        return msgspec.to_builtins(retry)
    return None if retry is True else retry
