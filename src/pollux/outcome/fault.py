"""Classification of exceptions (transient or permanent) and their description in one bounded line.

The exceptions come from users' code and libraries: their messages may be of any size and content, and reading them may
raise.  Callers of this module get clean, bounded text in every case.
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
LINE_CHARS_MAX = 200  # of each line of a traceback, without the indent
TRACEBACK_CHARS_MAX = LINES_MAX * (LINE_CHARS_MAX + 5)
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  compared as text
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_CUT = "..."
# Line breaks and tabs become blanks, other control characters are removed: an error is one line wherever it is shown.
_REMOVED = (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F))
_BLANK = (9, 10, 11, 12, 13, 0x85, 0x2028, 0x2029)
_CONTROLS: dict[int, str | None] = {**dict.fromkeys(_REMOVED), **dict.fromkeys(_BLANK, " ")}


def classify(error: BaseException) -> Fault:
    """Permanent for a `Permanent`, or a group of nothing else; every other failure may be transient."""
    is_permanent = isinstance(error, Permanent) or all(isinstance(each, Permanent) for each in _members(error))
    return Fault.PERMANENT if is_permanent else Fault.TRANSIENT


def describe(error: BaseException, hide: Callable[[str], str] = str) -> str:
    """The exception and its causes in one bounded line: "LoginError: no session, from OSError: refused".

    A group is described with its members.  `hide` redacts secrets.
    """
    line = _type_and_message(error, hide)
    for cause, is_member in islice(_causes(error), CAUSES_MAX):
        words = _type_and_message(cause, hide)
        news = words if is_member else words.partition(": ")[2]  # the message of a group does not name the types
        if news and news not in line:
            line = one_line(f"{line}, from {words}")
    return line


def _causes(error: BaseException) -> Iterator[tuple[BaseException, bool]]:
    """The causes, nearest first, each with whether it is a member of a group; endless for a cycle of causes."""
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
            waiting += reversed(BaseExceptionGroup.exceptions.__get__(now))  # a subclass may override the property
        else:
            yield now


def _type_and_message(error: BaseException, hide: Callable[[str], str]) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a message that cannot be read must not hide the failure itself
        text = "(its message cannot be read)"
    words = one_line(hide(text))  # redacted before the cut, which could split a secret
    return one_line(f"{name}: {words}" if words else name)


def place_of(error: BaseException, own: str = "") -> str:
    """The location in the user's code: "shop.py:31 in fetch", or an empty text.  `own` as in `traceback_of`."""
    frames = _origin_frames(error, own)
    return one_line(place_words(*frames[-1])) if frames else ""


def place_words(file: str, line: int, function: str) -> str:
    return f"{PurePath(file).name}:{line} in {function}"


def traceback_of(
    error: BaseException, hide: Callable[[str], str], *, line_of: Callable[[str, int], str], own: str = ""
) -> str:
    """The last frames of the user's code at the origin of the error, each with its source line; bounded.

    The origin of an error that was raised from another one, while another one was handled, or for a group is that
    other one; the locations where it was raised again follow.  `own`: an installed package that counts as the user's.
    `line_of` returns the source of a line, `hide` redacts secrets.
    """
    lines: list[str] = []
    for frame in _origin_frames(error, own)[-FRAMES_MAX:]:
        lines += [str(frame), f"    {line_of(frame.file, frame.line).strip()}"]
    for outer in reversed(_chain(error)[:-1]):
        frames = _own_frames(outer, own)
        if lines and frames:
            lines.append(f"raised again as {type(outer).__name__}: {frames[-1]}")
    return trace_lines(lines, hide)


def trace_lines(lines: Iterable[str], hide: Callable[[str], str]) -> str:
    """Lines of a traceback as stored and shown: redacted, without control characters, bounded in number and length."""
    clean = [("    " if line.startswith("    ") else "", one_line(hide(line))) for line in islice(lines, LINES_MAX)]
    return "\n".join(f"{indent}{line[:LINE_CHARS_MAX]}" for indent, line in clean if line)


class _Frame(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


def _chain(error: BaseException) -> list[BaseException]:
    """The error, its cause, and so on; the last one is the origin."""
    chain = [error]
    while len(chain) <= CAUSES_MAX:
        now = chain[-1]
        before = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
        if before is None and isinstance(now, BaseExceptionGroup):
            before = next(_members(now))
        if before is None or any(before is each for each in chain):  # `==` of a user's exception may raise
            break
        chain.append(before)
    return chain


def _origin_frames(error: BaseException, own: str) -> list[_Frame]:
    """The user's frames of the origin; if it has none, those of the error raised from it."""
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
    """Whether the code is the user's: not ours, not Python's, and not of an installed package other than `own`."""
    if package == "pollux" or file.startswith("<frozen"):
        return False
    if own and package == own:
        return True
    return not file.startswith(_STDLIB) and not _INSTALLED.intersection(PurePath(file).parts)


def retry_after_s(error: BaseException) -> float | None:
    """The exception's `retry_after` in seconds, capped; None if there is none or it is no number."""
    try:
        seconds = getattr(error, "retry_after", None)
        if not isinstance(seconds, int | float) or not seconds >= 0:
            return None
        return float(min(seconds, RETRY_AFTER_MAX_MS / 1000))
    except Exception:  # noqa: BLE001  a property of a user's exception may raise anything
        return None


def one_line(text: str) -> str:
    """The text as one line of at most ERROR_CHARS_MAX characters, safe for any store and terminal."""
    clean = text[: ERROR_CHARS_MAX + 1].translate(_CONTROLS).encode("utf-8", "replace").decode().strip()
    return clean if len(text) <= ERROR_CHARS_MAX else clean[: ERROR_CHARS_MAX - len(_CUT)] + _CUT
