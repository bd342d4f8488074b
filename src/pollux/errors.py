"""The tree of all errors that Pollux raises on purpose.

    PolluxError
    ├── InvalidInput       invalid value from outside: what, where, and the cure
    │   └── InvalidConfig  several of them in one file or put
    ├── NotFound           no such job, run or handler
    ├── Conflict           the object exists in another state or revision than expected
    ├── Transient          raised by a handler: retry (not before `retry_after`, if set)
    ├── Permanent          raised by a handler: a retry cannot help
    ├── Postponed          raised by a built-in handler before it began: run later, not a failure
    └── StoreError         the store refused the call or did not answer
        ├── StoreAway      no server at the address, or it is still starting: retry
        ├── StoreBusy      another process holds the write lock past our deadline
        ├── StoreTimeout   no answer in time: the call may have taken effect; repeat it with the same ids
        ├── StoreFull      disk or queue full
        ├── Illegible      records that cannot be decoded: which, and the result without them
        └── StoreRefused   file or server that must not be used (foreign, newer, unreadable, too old)
            └── StoreMoved read-only: the store was moved elsewhere, or is the target of a move in progress

A foreign exception is always the `__cause__`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

_T = TypeVar("_T")
_Read = TypeVar("_Read")


class PolluxError(Exception):
    """The root of everything that Pollux raises on purpose."""


class InvalidInput(PolluxError):
    """Invalid value from outside; nothing was changed."""

    def __init__(self, what: str, *, where: str = "", cure: str = "") -> None:
        self.what, self.where, self.cure = what, where, cure
        super().__init__(what, where, cure)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.cure}" if self.cure else head

    def at(self, where: str) -> InvalidInput:
        """The same error with a more precise location."""
        return InvalidInput(self.what, where=f"{where}.{self.where}" if self.where else where, cure=self.cure)


class InvalidConfig(InvalidInput):
    """All problems of one file or one put together, so that they can be corrected at once."""

    def __init__(self, problems: Sequence[InvalidInput]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def at(self, where: str) -> InvalidConfig:
        return InvalidConfig([problem.at(where) for problem in self.problems])


def problems_of(error: InvalidInput) -> tuple[InvalidInput, ...]:
    """The error itself, or its parts if it has several."""
    return error.problems if isinstance(error, InvalidConfig) else (error,)


def read_at(where: str, read: Callable[[_T], _Read], value: _T) -> _Read:
    """The result of `read(value)`; an `InvalidInput` gets the location `where`."""
    try:
        return read(value)
    except InvalidInput as error:
        raise placed(error, where) from error


def check_number(where: str, value: object) -> None:
    """Refuse text where a number is expected: values read from an environment are often left unconverted."""
    if isinstance(value, str):
        raise InvalidInput(f"{value[:60]!r} is no number", where=where, cure="write it without quotes, or use int(...)")


def placed(error: InvalidInput, where: str) -> InvalidInput:
    """The same error, one or many, with the location `where`."""
    found = problems_of(error.at(where))
    return found[0] if len(found) == 1 else InvalidConfig(found)


class NotFound(PolluxError):
    """The object of this name does not exist."""

    def __init__(self, kind: str, name: str, *, cure: str = "") -> None:
        self.kind, self.name, self.cure = kind, name, cure
        self.what = f"there is no {kind} {name!r}"
        super().__init__(f"{self.what}; {cure}" if cure else self.what)


class Conflict(PolluxError):
    """The object exists in another state or revision than expected; nothing was changed.

    `found`: its current state, for programs.
    """

    def __init__(self, what: str = "", *, found: Mapping[str, Any] | None = None, cure: str = "") -> None:
        self.what, self.found, self.cure = what, dict(found or {}), cure
        super().__init__(f"{what}; {cure}" if cure else what)


class Transient(PolluxError):
    """Raise it in a handler when a retry may help, after at least `retry_after` seconds."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Permanent(PolluxError):
    """Raise it in a handler when a retry cannot help."""


class Postponed(PolluxError):
    """The handler could not begin yet: the run is retried after `after_s` seconds, without counting an attempt."""

    def __init__(self, reason: str, *, after_s: float) -> None:
        self.reason, self.after_s = reason, after_s
        super().__init__(reason)


class StoreError(PolluxError):
    """The store refused the call or did not answer."""


class StoreAway(StoreError):
    """No server at the store's address, or it is still starting: the call can be retried."""


class StoreBusy(StoreError):
    """Another process held the write lock past our deadline; nothing was changed."""


class StoreTimeout(StoreError):
    """No answer came in time: the call may have taken effect, so repeat it with the same ids."""


class StoreFull(StoreError):
    """The disk or a queue is full; nothing was changed."""


class Unreadable(NamedTuple):
    """A record that cannot be decoded: its id or key, and why; of a job also columns outside its definition."""

    name: str
    why: str
    version: int | None = None
    due_ms: int | None = None


class Illegible(StoreError):
    """Records that cannot be decoded: another program or a newer release wrote them.

    `rest`: the result of the call without them.
    """

    def __init__(self, kind: str, unreadable: Sequence[Unreadable], rest: Any) -> None:
        self.kind, self.unreadable, self.rest = kind, tuple(unreadable), rest
        name, why, *_ = unreadable[0]
        more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
        super().__init__(cannot_be_read(f"{kind} {name!r}", why) + more)


def cannot_be_read(what: str, why: object) -> str:
    """The error text, with the cure."""
    return (
        f"{what} cannot be read ({why}): another program or a newer release wrote it; `pollux store check` lists "
        "all of them; correct or delete it"
    )


class StoreRefused(StoreError):
    """This file or server must not be used (foreign, newer, unreadable, too old); nothing was changed."""


class StoreMoved(StoreRefused):
    """The store was moved elsewhere or is the target of a move in progress: it is read-only; nothing was changed."""

    def __init__(self, what: str = "", *, cure: str = "") -> None:
        self.what, self.cure = what, cure
        super().__init__(f"{what}; {cure}" if cure else what)


def exit_code_of(error: PolluxError) -> int:
    """The exit code of a process for an error: 2 for invalid input, 3 for its store, 1 for all else."""
    match error:
        case InvalidInput():
            return 2
        case StoreError():
            return 3
        case _:
            return 1


# Names that other schedulers use, where they are not spelt alike.
_FOREIGN_WORDS = {
    "seats": ("workers", "max_workers", "num_workers", "concurrency", "threads", "pool_size"),
    "tz": ("timezone", "time_zone", "zone"),
    "python": ("func", "function", "callable", "module", "handler", "task"),
    "http": ("url", "uri"),
    "store": ("url", "uri", "dsn", "database", "database_url", "broker", "backend"),
    "exec": ("command", "cmd", "shell", "script"),
    "params": ("args", "kwargs", "arguments", "payload"),
    "interval": ("every", "seconds", "minutes", "hours", "period", "frequency"),
    "cron": ("crontab", "cron_expression"),
    "at": ("run_date", "when", "eta"),
    "retry": ("max_retries", "attempts", "backoff"),
    "overlap": ("max_instances", "concurrency_policy"),
    "misfire": ("misfire_grace_time", "coalesce", "catchup"),
    "group": ("queue", "pool"),
    "target": ("host", "domain"),
}


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    """`; did you mean "interval"?`, or an empty text if no choice is similar."""
    from difflib import get_close_matches  # imported here: it costs more than the rest of this module

    known = list(choices)
    close = [foreign_word(word, known)] if foreign_word(word, known) else get_close_matches(str(word), known, 1, 0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def foreign_word(word: object, choices: Iterable[str]) -> str:
    """The choice that another scheduler calls by this word, or an empty text."""
    known = set(choices)
    return next((ours for ours, theirs in _FOREIGN_WORDS.items() if word in theirs and ours in known), "")


def system_words(error: BaseException) -> str:
    """Why a connection failed, in the operating system's words, without those of Python or a library."""
    if hasattr(error, "library"):  # an SSLError, whose number is not the system's
        return re.sub(r"^\[[^]]*\] | \(_ssl\.c:\d+\)$", "", str(error))
    if isinstance(error, OSError):
        if error.errno:
            return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)  # negative: name resolution
        if numbers := re.findall(r"\[Errno (\d+)\]", str(error)):  # asyncio joins the errors of several addresses
            return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return (str(error).splitlines() or ["the connection was lost"])[0][:300]
