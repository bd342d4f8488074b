"""What kind of failure was that?  May trying again help, and how is it told in one line?

The exceptions come from strangers' code: their messages may be of any size, may hold anything, and may raise when they
are asked for.  Nothing of that gets past here.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import PurePath
from typing import NamedTuple

from pollux.errors import Permanent
from pollux.model import ERROR_CHARS_MAX, Fault
from pollux.outcome.verdict import RETRY_AFTER_MAX_MS

CAUSES_MAX = 3
FRAMES_MAX = 5  # of the user's code in a traceback
LINES_MAX = 2 * FRAMES_MAX + CAUSES_MAX
LINE_CHARS_MAX = 200  # of each of its lines, without the indent
TRACEBACK_CHARS_MAX = LINES_MAX * (LINE_CHARS_MAX + 5)
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  compared as text
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_CUT = "..."
# Line breaks and tabs become blanks, other control characters vanish; an error is one line wherever it is shown.
_VANISH = (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F))
_BLANK = (9, 10, 11, 12, 13, 0x85, 0x2028, 0x2029)
_CONTROLS: dict[int, str | None] = {**dict.fromkeys(_VANISH), **dict.fromkeys(_BLANK, " ")}


def classify(error: BaseException) -> Fault:
    """Permanent if the handler said so, in a group of every member; everything else may pass by itself."""
    is_permanent = isinstance(error, Permanent) or all(isinstance(each, Permanent) for each in _members(error))
    return Fault.PERMANENT if is_permanent else Fault.TRANSIENT


def describe(error: BaseException, hide: Callable[[str], str] = str) -> str:
    """The exception and what it was raised from in one bounded line: "LoginError: no session, from OSError: refused".

    A group is told with what is in it.  `hide` takes out what must not be seen.
    """
    told = _told(error, hide)
    for cause, is_member in islice(_causes(error), CAUSES_MAX):
        words = _told(cause, hide)
        news = words if is_member else words.partition(": ")[2]  # the message of a group names no type
        if news and news not in told:  # what is said already is not said again
            told = one_line(f"{told}, from {words}")
    return told


def _causes(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """What it was raised from, the nearest first, and whether that is a member of a group; endless if it is a ring."""
    waiting = deque([error])
    while waiting:
        now = waiting.popleft()
        found = [(each, True) for each in islice(_members(now), CAUSES_MAX) if each is not now]
        found += [(now.__cause__, False)] if now.__cause__ is not None else []
        yield from found
        waiting += [each for each, _ in found]


def _members(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, and of the groups in it; of any other exception itself."""
    waiting = [error]
    while waiting:
        now = waiting.pop()
        if isinstance(now, BaseExceptionGroup):
            waiting += reversed(BaseExceptionGroup.exceptions.__get__(now))  # a property of its own may tell anything
        else:
            yield now


def _told(error: BaseException, hide: Callable[[str], str]) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a message that cannot be had must not hide the failure itself
        text = "(its message cannot be read)"
    words = one_line(hide(text))  # before it is cut: half a secret is one, too
    return one_line(f"{name}: {words}" if words else name)


def place_of(error: BaseException, own: str = "") -> str:
    """Where it broke in the user's code: "shop.py:31 in fetch"; else nothing.  `own` as in `traceback_of`."""
    broke = _where_it_broke(error, own)
    return one_line(place_words(*broke[-1])) if broke else ""


def place_words(file: str, line: int, function: str) -> str:
    return f"{PurePath(file).name}:{line} in {function}"


def traceback_of(
    error: BaseException, hide: Callable[[str], str], *, line_of: Callable[[str, int], str], own: str = ""
) -> str:
    """The last frames of the user's code where the error broke, each with its source, as lines; bounded.

    An error that was raised from another one, while another one was handled, or for a group of them broke where that
    one did; where it was raised again is told behind.  `own`: a package that is the user's although it is installed.
    `line_of` gives the source of a line, `hide` takes out what must not be seen.
    """
    lines: list[str] = []
    for frame in _where_it_broke(error, own)[-FRAMES_MAX:]:
        lines += [str(frame), f"    {line_of(frame.file, frame.line).strip()}"]
    for outer in reversed(_chain(error)[:-1]):
        frames = _own_frames(outer, own)
        if lines and frames:
            lines.append(f"raised again as {type(outer).__name__}: {frames[-1]}")
    return trace_lines(lines, hide)


def trace_lines(lines: Iterable[str], hide: Callable[[str], str]) -> str:
    """Lines of a traceback as they may be kept and shown: as many and as long as we write them, and clean."""
    kept = [("    " if line.startswith("    ") else "", one_line(hide(line))) for line in islice(lines, LINES_MAX)]
    return "\n".join(f"{indent}{line[:LINE_CHARS_MAX]}" for indent, line in kept if line)


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


def _chain(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, and so on; the last is where it began."""
    chain = [error]
    while len(chain) <= CAUSES_MAX:
        now = chain[-1]
        before = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
        if before is None and isinstance(now, BaseExceptionGroup):
            before = next(_members(now))
        if before is None or any(before is each for each in chain):  # an `==` of its own may raise
            break
        chain.append(before)
    return chain


def _where_it_broke(error: BaseException, own: str) -> list[_Frame]:
    """The user's frames of the error that began it; of the one raised from it, if that has none."""
    found = (_own_frames(each, own) for each in reversed(_chain(error)))
    return next((frames for frames in found if frames), [])


def _own_frames(error: BaseException, own: str) -> list[_Frame]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        code, names = trace.tb_frame.f_code, trace.tb_frame.f_globals
        if is_own_code(code.co_filename, str(names.get("__name__", "")).partition(".")[0], own):
            frames.append(_Frame(code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return frames


def is_own_code(file: str, package: str, own: str = "") -> bool:
    """Is that the user's code?  Not ours, not Python's, and nothing that was installed, unless it is `own`."""
    if package == "pollux" or file.startswith("<frozen"):
        return False
    if own and package == own:
        return True
    return not file.startswith(_STDLIB) and not _INSTALLED.intersection(PurePath(file).parts)


def retry_after_s(error: BaseException) -> float | None:
    """How many seconds the source asked for, in whatever exception carries it; a number that is none is no wish."""
    try:
        seconds = getattr(error, "retry_after", None)
        if not isinstance(seconds, int | float) or not seconds >= 0:
            return None
        return float(min(seconds, RETRY_AFTER_MAX_MS / 1000))
    except Exception:  # noqa: BLE001  strangers' code: the failure itself is told all the same
        return None


def one_line(text: str) -> str:
    """One line of at most ERROR_CHARS_MAX characters that any store and terminal can take."""
    clean = text[: ERROR_CHARS_MAX + 1].translate(_CONTROLS).encode("utf-8", "replace").decode().strip()
    return clean if len(text) <= ERROR_CHARS_MAX else clean[: ERROR_CHARS_MAX - len(_CUT)] + _CUT
