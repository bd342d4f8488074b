"""What went wrong?  Every error that Pollux raises on purpose, in one tree.

    PolluxError
    ├── InvalidInput       a value from outside is wrong: what, where, and the cure
    │   └── InvalidConfig  several of them in one file or put
    ├── NotFound           no such job, run or handler
    ├── Conflict           the thing exists, but not as the caller believed
    ├── Transient          raised by a handler: try again (perhaps not before `retry_after`)
    ├── Permanent          raised by a handler: trying again cannot help
    ├── Postponed          raised by a built-in handler before it began: later, and no failure
    └── StoreError         the store said no, or nothing at all
        ├── StoreAway      nobody answers there, or not yet: it may come
        ├── StoreBusy      somebody else holds the write lock past our deadline
        ├── StoreTimeout   no answer in time: the call may have taken effect; repeat it with the same ids
        ├── StoreFull      no room: disk or a line
        ├── Illegible      records that cannot be read: which, and the answer without them
        └── StoreRefused   this file or server is not ours to use (foreign, newer, unreadable, too old)
            └── StoreMoved nobody works on it any more, or not yet: it was moved elsewhere, or is being filled

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
    """A value that came from outside cannot be used; nothing was changed."""

    def __init__(self, what: str, *, where: str = "", cure: str = "") -> None:
        self.what, self.where, self.cure = what, where, cure
        super().__init__(what, where, cure)

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}; {self.cure}" if self.cure else head

    def at(self, where: str) -> InvalidInput:
        """The same complaint, said of a more precise place."""
        return InvalidInput(self.what, where=f"{where}.{self.where}" if self.where else where, cure=self.cure)


class InvalidConfig(InvalidInput):
    """All that is wrong with one file or one put, so that it can be mended in one go."""

    def __init__(self, problems: Sequence[InvalidInput]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def at(self, where: str) -> InvalidConfig:
        return InvalidConfig([problem.at(where) for problem in self.problems])


def problems_of(error: InvalidInput) -> tuple[InvalidInput, ...]:
    """The error itself, or all that it is made of."""
    return error.problems if isinstance(error, InvalidConfig) else (error,)


def read_at(where: str, read: Callable[[_T], _Read], value: _T) -> _Read:
    """What `read` makes of the value; a complaint says where the value stands."""
    try:
        return read(value)
    except InvalidInput as error:
        raise placed(error, where) from error


def check_number(where: str, value: object) -> None:
    """Whoever reads options from text or an environment easily forgets what they are."""
    if isinstance(value, str):
        raise InvalidInput(f"{value[:60]!r} is no number", where=where, cure="write it without quotes, or use int(...)")


def placed(error: InvalidInput, where: str) -> InvalidInput:
    """The same complaints, one or many, said of that place."""
    found = problems_of(error.at(where))
    return found[0] if len(found) == 1 else InvalidConfig(found)


class NotFound(PolluxError):
    """The thing named does not exist."""

    def __init__(self, kind: str, name: str, *, cure: str = "") -> None:
        self.kind, self.name, self.cure = kind, name, cure
        self.what = f"there is no {kind} {name!r}"
        super().__init__(f"{self.what}; {cure}" if cure else self.what)


class Conflict(PolluxError):
    """The thing exists, but not as the caller believed; nothing was changed.  `found`: how it is, for programs."""

    def __init__(self, what: str = "", *, found: Mapping[str, Any] | None = None, cure: str = "") -> None:
        self.what, self.found, self.cure = what, dict(found or {}), cure
        super().__init__(f"{what}; {cure}" if cure else what)


class Transient(PolluxError):
    """Raise it in a handler when trying again may help; `retry_after` (seconds) says not before when."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Permanent(PolluxError):
    """Raise it in a handler when trying again cannot help."""


class Postponed(PolluxError):
    """The handler could not begin yet: the run goes back uncharged, and comes again `after_s` seconds later."""

    def __init__(self, reason: str, *, after_s: float) -> None:
        self.reason, self.after_s = reason, after_s
        super().__init__(reason)


class StoreError(PolluxError):
    """The store said no, or nothing at all."""


class StoreAway(StoreError):
    """Nobody answers at the store's address, or it is still starting: it may come, and then the call will do."""


class StoreBusy(StoreError):
    """Somebody else held the write lock past our deadline; nothing was changed."""


class StoreTimeout(StoreError):
    """No answer came in time: the call may have taken effect, so repeat it with the same ids."""


class StoreFull(StoreError):
    """There is no room: the disk or a line is full; nothing was changed."""


class Unreadable(NamedTuple):
    """A record that cannot be read: its id or key, and why; of a job also what stands beside its definition."""

    name: str
    why: str
    version: int | None = None
    due_ms: int | None = None


class Illegible(StoreError):
    """Somebody else wrote these records, or a newer release did.  `rest`: what the call answers without them."""

    def __init__(self, kind: str, unreadable: Sequence[Unreadable], rest: Any) -> None:
        self.kind, self.unreadable, self.rest = kind, tuple(unreadable), rest
        name, why, *_ = unreadable[0]
        more = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
        super().__init__(cannot_be_read(f"{kind} {name!r}", why) + more)


def cannot_be_read(what: str, why: object) -> str:
    """In words, with the cure."""
    return (
        f"{what} cannot be read ({why}): somebody else wrote it, or a newer release; `pollux store check` lists "
        "all of them; correct or delete it"
    )


class StoreRefused(StoreError):
    """This file or server is not ours to use; nothing was changed."""


class StoreMoved(StoreRefused):
    """The store was moved elsewhere, or is being filled: one may look at it; nothing was changed."""

    def __init__(self, what: str = "", *, cure: str = "") -> None:
        self.what, self.cure = what, cure
        super().__init__(f"{what}; {cure}" if cure else what)


def exit_code_of(error: PolluxError) -> int:
    """How a process ends that could not go on: 2 for what it was told wrongly, 3 for its store, 1 for all else."""
    match error:
        case InvalidInput():
            return 2
        case StoreError():
            return 3
        case _:
            return 1


# What other schedulers call it, where no spelling leads to our word.
_ELSEWHERE = {
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
    """`; did you mean "interval"?`, or nothing if nothing is near."""
    from difflib import get_close_matches  # costs more than the rest of this module, and is rarely wanted

    known = list(choices)
    close = [foreign_word(word, known)] if foreign_word(word, known) else get_close_matches(str(word), known, 1, 0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def foreign_word(word: object, choices: Iterable[str]) -> str:
    """Which of these another scheduler calls so; nothing if none does."""
    known = set(choices)
    return next((ours for ours, theirs in _ELSEWHERE.items() if word in theirs and ours in known), "")


def system_words(error: BaseException) -> str:
    """Why there is no way to a server, as the system says it; how Python or a library put it is nobody's business."""
    if hasattr(error, "library"):  # an SSLError, whose number is not the system's
        return re.sub(r"^\[[^]]*\] | \(_ssl\.c:\d+\)$", "", str(error))
    if isinstance(error, OSError):
        if error.errno:
            return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)  # below: a name of no host
        if numbers := re.findall(r"\[Errno (\d+)\]", str(error)):  # asyncio's, of several addresses
            return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return (str(error).splitlines() or ["the connection was lost"])[0][:300]
