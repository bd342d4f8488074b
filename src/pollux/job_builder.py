"""Construction and validation of a `Job` from user input, shared by Python, YAML and the API.

All problems are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from pollux import schedule as schedules
from pollux.errors import InvalidConfig, InvalidInput, did_you_mean, problems_of, read_at
from pollux.ids import check_id
from pollux.model import API_SOURCE, Isolate, Job, Misfire, Overlap, Retry, Schedule, definition
from pollux.model.job import check_params, priority_of
from pollux.outcome import validate_retry
from pollux.secrets import check_references
from pollux.units import DAY_MS, duration_ms

NAME_MAX = 200
SOURCE_MAX = 1_000
TAGS_MAX = 50
TIMEOUT_MAX_MS = 7 * DAY_MS
JOB_OPTIONS = (
    "name",
    "params",
    "priority",
    "group",
    "target",
    "timeout",
    "retry",
    "overlap",
    "misfire",
    "isolate",
    "enabled",
    "tags",
    "source_id",
)
_SCHEDULE_WORDS = {  # option of the file: how it is written in code
    "interval": 'every("30s")',
    "cron": 'cron("0 6 * * *")',
    "tz": 'cron("0 6 * * *", tz="Europe/Berlin")',
    "once": "once()",
    "at": 'once("2026-12-01T06:00:00+01:00")',
}
_RETRY_OPTIONS = ("attempts", "base", "factor", "max", "jitter")
_T = TypeVar("_T")


def job_of(
    *,
    id: str,
    handler: str,
    schedule: Schedule | None = None,
    source: str = API_SOURCE,
    release: int = 0,
    **options: Any,
) -> Job:
    """The job of these options; raises `InvalidInput`, or `InvalidConfig` with every problem found."""
    problems: list[InvalidInput] = []

    def read(where: str, convert: Callable[[Any], Any], value: Any) -> Any:
        try:
            return convert(value)
        except InvalidInput as error:
            problems.extend(problems_of(error.at(where)))
            return None

    problems += _unknown(options)
    job_id = read("id", check_id, id) or "x"
    read("schedule", lambda value: _check_schedule(value, job_id), schedule)
    fields = {"handler": read("handler", lambda name: _text(name, at_least=1), handler)}
    if options.get("params") is not None:
        fields["params"] = read("params", lambda value: _params(value, source), options["params"])
    for name, (field, convert) in _READERS.items():
        if (value := options.get(name)) is not None:
            fields[field] = read(name, convert, value)
    if problems:
        raise problems[0] if len(problems) == 1 else InvalidConfig(problems)
    return Job(id=job_id, schedule=schedule, source=source, release=release, **fields)


def check_job(job: object) -> Job:
    """The job itself, checked as by `job_of`, for one constructed by hand; an error names the job."""
    if not isinstance(job, Job):
        cure = "make it with pollux.job_builder.job_of(id=..., handler=..., schedule=...)"
        raise InvalidInput(f"a job is a Job, not {type(job).__name__}", cure=cure)
    try:
        check_id(job.id)
        _params(job.params, job.source)
        _check_kinds(job)
        _text(job.handler, at_least=1)
        _check_schedule(job.schedule, job.id)
        priority_of(job.priority)
        timeout_of(job.timeout_ms / 1000)
        read_at("retry", validate_retry, job.retry)
        _check_words(job)
    except InvalidInput as error:
        raise error.at(f"job {str(job.id)[:60]!r}") from None
    return job


def _check_kinds(job: Job) -> None:
    """Check that every field has its type: a job that is written and cannot be decoded again would block readers."""
    rule: object = job.retry
    if not isinstance(rule, Retry):
        raise InvalidInput(f"{rule!r} is not a retry rule", where="retry", cure="give one, like Retry(attempts_max=5)")
    try:
        msgspec.json.decode(msgspec.json.encode(definition(job)), type=Job)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(
            f"it cannot be used: {error}", cure="make jobs with the fields and kinds of `Job`"
        ) from error
    if not 0 <= job.release < 2**63:
        raise InvalidInput(f"{job.release} is no release", where="release", cure="count releases from 0")


def _check_words(job: Job) -> None:
    for field, check in (("name", _text), ("group", _name), ("target", _text), ("source_id", _text), ("tags", _tags)):
        try:
            check(getattr(job, field))
        except InvalidInput as error:
            raise error.at(field) from None
    if not (job.source and len(job.source) <= SOURCE_MAX and job.source.isprintable()):
        raise InvalidInput(
            f"{job.source[:60]!r} cannot be used", where="source", cure=f"give 1 to {SOURCE_MAX} printable characters"
        )


def check_stop(*, group: str | None = None, target: str | None = None) -> None:
    """Check that the names can be those of a group or of a target."""
    if group is not None:
        check_id(group, what="group")
    if target is not None:
        _text(target, at_least=1)


def timeout_of(value: Any) -> int:
    ms = duration_ms(value)
    if not 1 <= ms <= TIMEOUT_MAX_MS:
        raise InvalidInput(f"a timeout of {value!r} cannot work", cure="give more than nothing and at most 7d")
    return ms


def retry_of(value: object) -> Retry:
    """A number of attempts, a mapping, a `Retry`, or False for a single try."""
    if isinstance(value, Retry):
        return validate_retry(value)
    if value is False:
        return Retry(attempts_max=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return validate_retry(Retry(attempts_max=value))
    if not isinstance(value, Mapping):
        raise InvalidInput(
            f"{value!r} is not a retry rule", cure="write a number of attempts, or {attempts: 5, base: 5s}"
        )
    for name in value:
        if name not in _RETRY_OPTIONS:
            raise InvalidInput(
                f"unknown key {name!r}{did_you_mean(name, _RETRY_OPTIONS)}",
                cure=f"a retry has {', '.join(_RETRY_OPTIONS)}",
            )
    usual = Retry()
    return validate_retry(
        Retry(
            attempts_max=value.get("attempts", usual.attempts_max),
            base_ms=read_at("base", duration_ms, value["base"]) if "base" in value else usual.base_ms,
            factor=value.get("factor", usual.factor),
            max_ms=read_at("max", duration_ms, value["max"]) if "max" in value else usual.max_ms,
            jitter=value.get("jitter", usual.jitter),
        )
    )


def _unknown(options: Mapping[str, Any]) -> list[InvalidInput]:
    return [_unknown_option(name) for name in options if name not in JOB_OPTIONS]


def _unknown_option(name: str) -> InvalidInput:
    """The error for an option that does not exist.

    Options of a schedule get a cure of their own: in code a schedule is a value, the first argument.
    """
    for word, example in _SCHEDULE_WORDS.items():
        if name == word or did_you_mean(name, (word,)):
            return InvalidInput(f"unknown option {name!r}", cure=f"give the schedule as the first argument: {example}")
    return InvalidInput(
        f"unknown option {name!r}{did_you_mean(name, JOB_OPTIONS)}", cure=f"a job has {', '.join(JOB_OPTIONS)}"
    )


def _check_schedule(value: object, job_id: str) -> None:
    if value is None:
        return
    if not isinstance(value, Schedule):
        raise InvalidInput(
            f"{value!r} is not a schedule", cure='write every("30s"), cron("0 6 * * *"), once() or on_event()'
        )
    schedules.validate(value, job_id)


def _params(value: object, source: str) -> dict[str, Any]:
    plain = check_params(value)
    check_references(plain, source)
    return plain


def _text(value: object, *, at_least: int = 0) -> str:
    if not isinstance(value, str) or not at_least <= len(value) <= NAME_MAX or not value.isprintable():
        raise InvalidInput(
            f"{str(value)[:60]!r} cannot be used", cure=f"give {at_least} to {NAME_MAX} printable characters"
        )
    return value


def _name(value: object) -> str:
    return check_id(value, what="name") if value else ""


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{value!r} is neither true nor false", cure="write true or false")
    return value


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f"tags are {value!r}, not a list", cure="write [fast, eu]")
    tags = tuple(_text(tag, at_least=1) for tag in value)
    if len(tags) > TAGS_MAX:
        raise InvalidInput(f"{len(tags)} tags are too many", cure=f"at most {TAGS_MAX}")
    return tags


def _choice(kind: type[_T]) -> Callable[[Any], _T]:
    choices = [str(member) for member in kind]  # type: ignore[attr-defined]

    def read(value: Any) -> _T:
        if isinstance(value, str) and value in choices:
            return kind(value)  # type: ignore[call-arg]
        raise InvalidInput(
            f"{value!r} is unknown{did_you_mean(value, choices)}", cure=f"write one of {', '.join(choices)}"
        )

    return read


# The field of each option (but `params`), and its reader.
_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _text),
    "priority": ("priority", priority_of),
    "group": ("group", _name),
    "target": ("target", _text),
    "timeout": ("timeout_ms", timeout_of),
    "retry": ("retry", retry_of),
    "overlap": ("overlap", _choice(Overlap)),
    "misfire": ("misfire", _choice(Misfire)),
    "isolate": ("isolate", _choice(Isolate)),
    "enabled": ("enabled", _flag),
    "tags": ("tags", _tags),
    "source_id": ("source_id", _text),
}
