"""Fast path of plain calls, which cost the server a fraction of the others.

A run is plain from start to end if nothing else happens to it: new, ready, without a key; claimed once,
by us; done, and nothing follows from it.  Then its next state is encoded here, and the scripts only compare
its stored state with the expected one.  If they differ, or a call is not plain, the verb's own script runs.

A plain state begins with its mark: `z` is 1 as long as the run waits, 2 while it is leased.  Every other script
removes the mark with its first change.  The place in an order, which only the server knows, is the last field: 14
digits that are added there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from pollux.model import SCHEDULER_VERSION, Cause, Done, End, Ended, Outcome, Run, RunState
from pollux.store.contract import RESULT_BYTES_MAX, RunsAlike, Settlement
from pollux.store.decoding import UNREADABLE
from pollux.store.limits import written
from pollux.store.redis import codec
from pollux.store.values import PRIORITIES

WAITS, LEASED = 1, 2
DIGITS_MAX = 2_000  # times of late whose digits are known: many runs come and end in the same millisecond
KNOWN_MAX = 20_000  # leased runs that a handle remembers; those before are settled by the verb's own script
PLACE_ZERO = 10**14  # times before 1970 have places, too
ORDER = "0" * 14
_READY, _DONE = RunState.READY, RunState.DONE

_encode = msgspec.msgpack.Encoder().encode


class FreshRun(Struct, omit_defaults=True, gc=False):
    """How a new run stands; the first three fields are as the claim expects them."""

    z: int
    st: RunState
    job: str
    due: int
    vis: int
    cause: Cause = Cause.SCHEDULE
    pr: int = 2
    v: int = SCHEDULER_VERSION
    q: str = ""


class FinalRun(Struct, omit_defaults=True, gc=False):
    """How a run stands that is done."""

    st: RunState
    job: str
    due: int
    vis: int
    fence: int
    tok: str
    beg: int
    fin: int
    cause: Cause = Cause.SCHEDULE
    pr: int = 2
    chg: bool | None = None
    res: str | None = None
    v: int = SCHEDULER_VERSION
    pq: str = ""


def _raw(data: bytes) -> msgspec.Raw:
    """Bytes that go as a text: the scripts know no other kind of them."""
    size = len(data)
    if size < 256:
        return msgspec.Raw(b"\xd9%c%b" % (size, data))
    return msgspec.Raw(b"\xdb%b%b" % (size.to_bytes(4, "big"), data))


@lru_cache(DIGITS_MAX)
def _digits(time_ms: int) -> str:
    return f"{time_ms + PLACE_ZERO:015d}"


# enqueue


def enqueue_of(runs: Sequence[Run], version: int) -> dict[str, Any] | None:
    """The call as `enqueue_plain.lua` takes it; None if one of the runs is not plain, or they do not go together."""
    ids, each = (runs.ids, [runs.one]) if isinstance(runs, RunsAlike) else ([run.id for run in runs], runs)
    groups = _groups(each, version) if ids and len(set(ids)) == len(ids) else None
    if groups is None:
        return None
    groups[-1][2] = len(ids)
    one, bodies = each[0], codec.bodies_of(runs)
    return {"ids": ids, "bodies": bodies, "groups": groups, "pr": one.priority, "vis": one.visible_ms, "v": version}


def _groups(runs: Sequence[Run], version: int) -> list[codec.Row] | None:
    """Those that are to stand alike, as the script takes them."""
    priority, visible_ms = runs[0].priority, runs[0].visible_ms
    if priority not in PRIORITIES:
        return None
    groups: list[codec.Row] = []
    like: tuple[Any, ...] = ()
    for n, run in enumerate(runs, 1):
        if not _is_new(run) or run.priority != priority or run.visible_ms != visible_ms:
            return None
        if (run.job_id, run.due_ms, run.cause) == like and run.scheduler_version == version:
            groups[-1][2] = n
        elif run.scheduler_version != version:
            return None
        else:
            like = (run.job_id, run.due_ms, run.cause)
            groups.append([run.job_id, n, n, _raw(_waiting(run)), _digits(run.due_ms)])
    return groups


def _is_new(run: Run) -> bool:
    return (
        run.state is _READY
        and run.key is None
        and not (run.gated or run.held_reason or run.fence or run.token or run.cancel or run.tried)
    )


def _waiting(run: Run) -> bytes:
    fresh = FreshRun(
        WAITS, _READY, run.job_id, run.due_ms, run.visible_ms, run.cause, run.priority, run.scheduler_version, ORDER
    )
    return _encode(fresh)[: -len(ORDER)]


def made_row(run: Run) -> codec.Row:
    """A run as `admit_row` takes it; a plain one also as it is to be written."""
    row = codec.checked_row(run)
    return [*row, _raw(_waiting(run))] if _is_new(run) else row


# claim and settle


class FastPathLeases:
    """The plain runs that this handle was given, as they stood then."""

    def __init__(self) -> None:
        self._known: dict[str, codec.RunHash] = {}

    def take(self, parts: list[bytes]) -> tuple[list[Run], dict[str, str]]:
        """The runs of a claim's answer: id, state, body, and again, behind something else.

        Those that cannot be read come by their ids, each with the reason.
        """
        known: dict[str, codec.RunHash] = self._known
        runs: list[Run] = []
        broken: dict[str, str] = {}
        for n in range(1, len(parts), 3):
            run_id = parts[n].decode()
            try:
                if not parts[n + 1]:  # the script itself could not read it, and tells which fields
                    raise ValueError(f"somebody else wrote its {parts[n + 2].decode()}")
                stand = codec.decode_stand(parts[n + 1])
                runs.append(codec.run_of(run_id, stand, parts[n + 2]))
            except UNREADABLE as error:
                broken[run_id] = f"it cannot be read ({error})"
                continue
            if stand.z == LEASED:
                known[run_id] = stand
            else:
                known.pop(run_id, None)
        while len(known) > KNOWN_MAX:
            del known[next(iter(known))]
        return runs, broken

    def forget(self, run_id: str) -> None:
        self._known.pop(run_id, None)

    def settle_of(self, settlements: Sequence[Settlement]) -> dict[str, Any] | None:
        """The call as `settle_plain.lua` takes it, None if there is more to it.  Its runs are forgotten either way."""
        known, items = self._known, []
        for settlement in settlements:
            run_id = settlement.run_id
            stand = known.pop(run_id, _UNKNOWN)
            if stand.tok == settlement.token and (outcome := _plain_outcome(settlement)) is not None:
                items.append((run_id, outcome, stand))
        version = items[0][2].v if items else SCHEDULER_VERSION
        if not items or len(items) < len(settlements) or any(item[2].v != version for item in items):
            return None
        return _settle_of(items, version)


def _plain_outcome(settlement: Settlement) -> Outcome | None:
    """The outcome of a run that is done, if nothing else follows."""
    verdict, outcome = settlement.verdict, settlement.outcome
    if (
        outcome is None
        or type(verdict) is not Done
        or verdict.failed
        or verdict.clears
        or outcome.error
        or outcome.crashed
        or settlement.follow_ups
        or settlement.notes
        or settlement.progress
    ):
        return None
    return outcome


_Item = tuple[str, Outcome, codec.RunHash]
_UNKNOWN = codec.RunHash(_READY, "", 0, tok="\0")  # no delivery has that token
# How the state of a leased plain run begins, behind its size and before the token; any other script changes it.
_GIVEN = b"\xa1z\x02\xa2st\xa6leased\xa5fence\x01\xa3tok"


def _settle_of(items: list[_Item], version: int) -> dict[str, Any]:
    """Runs in the order of (unchanged, job), so that what goes to one key goes in one piece.

    Those that end alike, as many of a moment do, are a lot: what they become is written down once.
    """
    ordered = sorted([(outcome.changed is False, stand.job, n) for n, (_, outcome, stand) in enumerate(items)])
    orders = [place + 1 for _, _, place in ordered]
    groups: list[codec.Row] = []
    lots: list[codec.Row] = []
    entries: list[list[str]] = [[], [], []]
    ids, ends = [], []
    like: tuple[bool, str] | None = None
    alike: tuple[Any, ...] | None = None
    for n, (is_unchanged, job, place) in enumerate(ordered, 1):
        run_id, outcome, stand = items[place]
        if like == (is_unchanged, job):
            groups[-1][2] = n
        else:
            like, alike = (is_unchanged, job), None
            groups.append([job, n, n])
        result, times = _result(run_id, outcome), (stand.due, stand.vis, outcome.started_ms, outcome.ended_ms)
        end = (times, stand.tok, stand.cause, stand.pr, outcome.changed, result)
        if end == alike:
            lots[-1][1] = n
        else:
            alike = end
            lots.append([n, n, *_lot(stand, outcome, result)])
        ids.append(run_id)
        entries[stand.pr - 1].append(stand.ent)
        ends.append(_end(run_id, stand, outcome))
    return {
        "ids": ids,
        "lots": lots,
        "groups": groups,
        "entries": entries,
        "orders": orders if orders != list(range(1, len(orders) + 1)) else [],
        "ends": _raw(_encode(Ended(tuple(ends)))),
        "plain": sum([not is_unchanged for is_unchanged, _, _ in ordered]),
        "v": version,
    }


def _lot(stand: codec.RunHash, outcome: Outcome, result: str | None) -> codec.Row:
    """How its runs stand until then and are to stand, when they ended, and when they were due."""
    given, final = _raw(_GIVEN + _encode(stand.tok)), _raw(_final(stand, outcome, result))
    return [given, final, _digits(outcome.ended_ms), _digits(stand.due)]


def _result(run_id: str, outcome: Outcome) -> str | None:
    result = outcome.result
    return None if result is None else written(result, RESULT_BYTES_MAX, "the result of run", run_id).decode()


def _final(stand: codec.RunHash, outcome: Outcome, result: str | None) -> bytes:
    final = FinalRun(
        _DONE,
        stand.job,
        stand.due,
        stand.vis,
        stand.fence,
        stand.tok,
        outcome.started_ms,
        outcome.ended_ms,
        stand.cause,
        stand.pr,
        outcome.changed,
        result,
        stand.v,
        ORDER,
    )
    return _encode(final)[: -len(ORDER)]


def _end(run_id: str, stand: codec.RunHash, outcome: Outcome) -> End:
    duration_ms = max(0, outcome.ended_ms - outcome.started_ms)
    return End(
        run_id,
        stand.job,
        _DONE,
        stand.cause,
        stand.due,
        outcome.ended_ms,
        duration_ms,
        changed=outcome.changed,
        fingerprint=outcome.fingerprint,
    )
