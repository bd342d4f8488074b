"""Which job does a body mean?  Older words and ours become one job, by the same rules as a file's.

Two words for one thing may both be there if they say the same.  What this version cannot do is refused, not stored.
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
_KINDS = {  # the schedule's words, and what `schedule_type` calls them
    "interval": ("interval",),
    "cron": ("cron",),
    "at": ("once",),
    "once": ("immediate", "once"),
    "event": ("event",),
}
_SCHEDULE = ("schedule_type", "cron_expression", "cron", "tz", "interval", "start", "spread", "at", "once", "event")
CheckParams = Callable[[str, Mapping[str, Any]], None]  # raises `InvalidInput` for what a handler cannot use
_BELONGS = {"tz": "cron", "start": "interval", "spread": "interval"}


class _Reading:
    """One body, and all that is wrong with it."""

    def __init__(self, body: JobBody) -> None:
        self.body = body
        self.problems: list[InvalidInput] = []
        self.words = {"params": word_of_params(body)}  # our word for a thing -> the word that the body used

    def refuse(self, where: str, what: str, cure: str = "") -> None:
        self.problems.append(InvalidInput(what, where=where, cure=cure))

    def tell(self, error: InvalidInput, where: str = "") -> None:
        """Take over what others found, with the words of the body."""
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
        """One thing that has two names."""
        mine, other = getattr(self.body, ours), getattr(self.body, theirs)
        if mine is not None and other is not None and mine != other:
            self.refuse(theirs, f"{theirs} and {ours} say different things", "keep one of them")
        self.words[ours] = theirs if mine is None else ours
        return other if mine is None else mine


def job_of_body(body: JobBody, job_id: str, check: CheckParams) -> Job:
    """The job, or `InvalidInput`, or `InvalidConfig` with everything that is wrong.

    What its handler thinks of the params is asked by whoever puts the job; here only if something else is wrong.
    """
    reading = _Reading(body)
    for name in NOT_YET:
        if getattr(body, name):
            reading.refuse(name, "not in this version: the job would not wait for it", "leave it out")
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
    """What is wrong with the fields that are of their kind, as far as that does not follow from the others."""
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
    """Where the params stand in a body."""
    if body.http is not None or body.exec is not None:
        return "http" if body.http is not None else "exec"
    return "url" if body.url is not None and not body.params else "params"


def place_in(where: str, word: str) -> str:
    """A place in the params, `where`, as the body names them: by `word`."""
    rest = where.removeprefix("params").removeprefix(".")
    return word if word == "url" and rest in {"", "url"} else ".".join(part for part in (word, rest) if part)


def _handler(reading: _Reading) -> tuple[str | None, dict[str, Any]]:
    """Which code, with which params."""
    body = reading.body
    if body.http is not None and body.exec is not None:
        reading.refuse("exec", "http and exec cannot both be its handler", "keep one of them")
        return None, {}
    if body.http is not None:
        return _built_in(reading, URL_HANDLER, {"url": body.http} if isinstance(body.http, str) else body.http)
    if body.exec is not None:
        return _built_in(reading, "exec", body.exec if isinstance(body.exec, dict) else {"argv": body.exec})
    handler = body.handler or (URL_HANDLER if body.url is not None else None)
    if handler is None:
        cure = 'say "url": "https://...", or "handler": the name of one that a node has'
        reading.refuse("handler", "nothing says what to run", cure)
        return None, {}
    params = dict(body.params or {})
    if body.url is not None and handler != URL_HANDLER:
        reading.refuse("url", f"handler {handler!r} polls no URL by itself", 'put it into "params"')
    elif body.url is not None and params.setdefault("url", body.url) != body.url:
        reading.refuse("url", "url and params.url say different things", "keep one of them")
    return handler, params


def _built_in(reading: _Reading, name: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    body = reading.body
    if body.handler not in (None, name):
        reading.refuse("handler", f"handler {body.handler!r} beside {name}", "keep one of them")
    for other in ("params", "url"):
        if getattr(body, other) is not None:
            reading.refuse(other, f"{other} beside {name}", f"write it under {name}")
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
        reading.refuse(kinds[1], f"{' and '.join(kinds)} cannot both say when", "keep one of them")
        for each in kinds:
            _judge(reading, each, line)
        return None
    kind = kinds[0] if kinds else ""
    if not _fits_type(reading, kind):
        _judge(reading, kind, line)
        return None
    for modifier, owner in _BELONGS.items():
        if getattr(body, modifier) is not None and kind != owner:
            reading.refuse(modifier, f"it means nothing without {owner}", f"take it away, or give the job {owner}")
    reading.words["schedule"] = reading.words.get(kind, kind)
    try:
        return _made(kind, body, line)
    except InvalidInput as error:
        reading.tell(error, "schedule")
        return None


def _judge(reading: _Reading, kind: str, line: str) -> None:
    """What is wrong with a word for when that cannot hold anyway."""
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
    """Does `schedule_type`, if it is there, say the same as the rest?"""
    said = reading.body.schedule_type
    if said is None or (said == "manual" and not kind) or said in _KINDS.get(kind, ()):
        return True
    if said == "manual":
        reading.refuse("schedule_type", f"it is manual, but {kind} says when", f"leave out {kind}")
    elif kind:
        reading.refuse("schedule_type", f"it is {said}, but {kind} says when", "keep one of them")
    else:
        missing = {"cron": "cron_expression", "interval": "interval", "once": "at"}.get(said, said)
        reading.refuse(missing, f"schedule_type is {said}, and {missing} is missing", f"say {missing}")
    return False


def _retry(retry: bool | int | RetryBody | None) -> Any:  # noqa: FBT001  as it came
    if isinstance(retry, RetryBody):
        return msgspec.to_builtins(retry)
    return None if retry is True else retry
