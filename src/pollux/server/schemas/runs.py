"""Schemas of runs: times as text, values without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from pollux.errors import InvalidInput, Unreadable, placed, read_at
from pollux.model import SCHEDULED, VERSION_MAX, Run, RunState, as_it_is
from pollux.secrets import HIDDEN, hide
from pollux.server.schemas.jobs import Duration, JobId, JobRef, Moment, PriorityWord, moment
from pollux.store.contract import RunFilter
from pollux.units import moment_ms

RunStateWord = Literal["scheduled", "held", "ready", "leased", "done", "dead", "cancelled"]
FAILED = "failed"
RunStateAsked = Annotated[
    Literal[RunStateWord, "failed"],
    Meta(
        description="`scheduled`: held or ready runs whose `visible_at` is in the future, `held` and `ready`: others; "
        "`failed`: runs that are `done` and failed"
    ),
]
RUN_CURSOR = r"^(live:-?[0-9]{1,15}:[ -~]{0,300}|past:-?[0-9]{1,29}(:[0-9]{1,18})?)$"
OTHER_CURSOR = "a cursor that is not from a page of this store"
Cursor = Annotated[str, Meta(pattern=RUN_CURSOR, description="`next` of the previous page")]
Limit = Annotated[int, Meta(ge=1, le=1_000)]
Text = Annotated[str, Meta(max_length=200)]


Traceback = Annotated[list[str], Meta(description="of the error: the last frames of your code, as lines")]


class TriedView(Struct, frozen=True):
    """A failed attempt."""

    delivery: Annotated[int, Meta(description="0: the last one before the run was revived")]
    started_at: str | None
    ended_at: str | None
    error: str
    traceback: Traceback


class RunView(Struct, frozen=True, kw_only=True, gc=False):
    """A run."""

    id: str
    job_id: str
    state: Annotated[RunStateWord, Meta(description="`scheduled`: held or ready, with `visible_at` in the future")]
    cause: str
    due_at: str | None
    visible_at: str | None
    started_at: str | None
    finished_at: str | None
    duration_ms: int | None
    priority: int
    group: str
    target: str
    key: str | None
    params: dict[str, Any] | None
    held_reason: str
    attempt: Annotated[int, Meta(description="the current or last attempt, counted from 1, as the handler sees it")]
    deliveries: int
    lease_losses: int
    node: str
    cancel: str
    progress: str
    failed: bool
    changed: bool | None
    error: str
    traceback: Traceback
    result: Any
    tried: list[TriedView]
    deaths: Annotated[
        int, Meta(description="how many dead letters this one represents, including itself; 0 if it is none")
    ]
    scheduler_version: int


class AcceptedView(RunView, frozen=True, kw_only=True, gc=False):
    """An enqueued run, with a message about it."""

    message: str


class UnreadableView(Struct, frozen=True):
    """A job or run that this node cannot decode: written by a newer release, or edited by hand."""

    id: str
    reason: str


class RunList(Struct, frozen=True, omit_defaults=True):
    runs: list[RunView]
    next: str | None
    unreadable: list[UnreadableView] = []  # matching ones that cannot be decoded; omitted if empty


def unreadable_views(found: Sequence[Unreadable]) -> list[UnreadableView]:
    return [UnreadableView(each.name, hide(each.why)) for each in found]


class RunQuery(Struct, frozen=True, forbid_unknown_fields=True):
    state: RunStateAsked | UnsetType = UNSET
    job_id: Text | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    target: Text | UnsetType = UNSET
    failed: bool | UnsetType = UNSET
    error: Annotated[str, Meta(max_length=1_000, description="part of the error")] | UnsetType = UNSET
    since: Annotated[Moment, Meta(description="finished after this time")] | UnsetType = UNSET
    scheduler_version: Annotated[int, Meta(ge=1, le=VERSION_MAX)] | UnsetType = UNSET
    cursor: Cursor | UnsetType = UNSET
    limit: Limit = 100


class RunBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run to enqueue, now or later."""

    job_id: JobRef
    params: dict[str, Any] | None = None
    id: JobId | None = None
    key: Annotated[str, Meta(max_length=200, description="at most one live run may have it")] | None = None
    at: Moment | None = None
    delay: Duration | None = None
    priority: PriorityWord | None = None


class ReasonBody(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=1_000)] | None = None


# Fields of a view that have the same name and value in the run.
_SAME = (
    *("id", "job_id", "priority", "group", "target", "key", "lease_losses", "failed", "changed", "scheduler_version"),
)


def accepted_view(run: Run, now_ms: int, message: str) -> AcceptedView:
    return AcceptedView(**asdict(run_view(run, now_ms)), message=message)


def run_view(run: Run, now_ms: int) -> RunView:
    """The run as it is shown; `now_ms` decides whether it is `scheduled`."""
    run = as_it_is(run)
    took = None if run.started_ms is None or run.finished_ms is None else max(0, run.finished_ms - run.started_ms)
    return RunView(
        state=run.shown_state(now_ms),  # type: ignore[arg-type]
        cause=run.cause.value,
        due_at=moment(run.due_ms),
        visible_at=moment(run.visible_ms),
        started_at=moment(run.started_ms),
        finished_at=moment(run.finished_ms),
        duration_ms=took,
        params=HIDDEN.hide_in(run.payload),
        held_reason=hide(run.held_reason),
        attempt=run.attempt + 1,
        deliveries=run.fence,
        node=run.owner,
        cancel=hide(run.cancel),
        progress=hide(run.progress),
        error=hide(run.error),
        traceback=hide(run.traceback).splitlines(),
        result=HIDDEN.hide_in(run.result),
        tried=[
            TriedView(
                each.fence,
                moment(each.started_ms),
                moment(each.ended_ms),
                hide(each.error),
                hide(each.traceback).splitlines(),
            )
            for each in run.tried
        ],
        deaths=run.dead_letters,
        **{name: getattr(run, name) for name in _SAME},
    )


@contextmanager
def of_cursor() -> Iterator[None]:
    """Name `cursor` as the place of an error that a page read raises."""
    try:
        yield
    except InvalidInput as error:
        raise placed(error, "cursor") from None


def or_none(value: Any) -> Any:
    """The value of a query parameter, or None."""
    return None if value is UNSET else value


def set_fields(query: Struct, *names: str) -> dict[str, Any]:
    """The parameters of these names that a query has."""
    return {name: value for name in names if (value := getattr(query, name)) is not UNSET}


def states_of(query: RunQuery) -> tuple[str, ...]:
    """The shown states that a query asks for; none: all."""
    if not isinstance(query.state, str):
        return ()
    return ("done" if query.state == FAILED else query.state,)


def run_filter_of(query: RunQuery) -> RunFilter:
    states: tuple[RunState, ...] = ()
    since = or_none(query.since)
    is_failed = query.state == FAILED
    if is_failed and query.failed is False:
        what, cure = "state=failed contradicts failed=false", "omit one of them"
        raise InvalidInput(what, where="failed", cure=cure)
    if isinstance(query.state, str) and query.state != SCHEDULED:
        states = (RunState.DONE if is_failed else RunState(query.state),)
    return RunFilter(
        states=states,
        **set_fields(query, "job_id", "group", "target", "error", "scheduler_version"),
        failed=True if is_failed else or_none(query.failed),
        finished_after_ms=None if since is None else read_at("since", moment_ms, since),
    )
