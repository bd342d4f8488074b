"""The verbs of the versions: which there are, and forget one."""

from __future__ import annotations

from pollux.model import Version
from pollux.store.contract import Answer
from pollux.store.memory.runs import counts
from pollux.store.memory.state import HeldTerm, VersionState


def versions(state: VersionState, now_ms: int) -> list[Version]:
    return [
        Version(each.version, counts(each), each.leadership.number, _leader(each, now_ms)) for each in state.there()
    ]


def drop_version(state: VersionState, number: int, now_ms: int) -> Answer:
    """The number of its term stays: terms only rise."""
    old = state.of(number)
    if not old.is_there:
        return Answer.LOST
    if old.job_count or old.held or old.ready or old.leased or _leader(old, now_ms):
        return Answer.CONFLICT
    old.entries.clear()
    old.ends = 0
    old.leadership = HeldTerm(number=old.leadership.number)
    old.is_there = False
    return Answer.OK


def _leader(state: VersionState, now_ms: int) -> str:
    return state.leadership.holder if state.leadership.until_ms > now_ms else ""
