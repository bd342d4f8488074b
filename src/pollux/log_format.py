"""Log formatters: text for people, JSON for machines.

In every record, also of a user's handler or a library, secrets are redacted (`pollux.secrets`), then control, ANSI and
bidirectional characters are escaped, then the text is cut.  So no answer of a target can forge a line, control a
terminal or fill a disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from pollux.events import Event
from pollux.secrets import HIDDEN, MASK, hide, looks_secret
from pollux.units import printable

FIELD_CHARS_MAX = 2_000
TRACE_CHARS_MAX = 8_000
LINE_CHARS_MAX = 16_000
FIELDS_MAX = 40
CUT = "..."

_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m", "DEBUG": "\x1b[2m"}
_RESET = "\x1b[0m"
# Attributes of every record; all others come from `extra=`.
_STANDARD_ATTRIBUTES = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "event", "taskName"})


def safe(text: object, length: int = FIELD_CHARS_MAX) -> str:
    """The text on one line, redacted, escaped, and cut to `length` characters."""
    shown = printable(cut(hide(str(text)), length))
    return cut(shown, length)


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - len(CUT)]}{CUT}"


def complaint(what: str) -> str:
    """The last message of a program that ends with an error, redacted and escaped line by line."""
    return "\n".join(printable(line) for line in f"pollux: {hide(what)}".split("\n"))


class TextLines(logging.Formatter):
    """`2026-03-01 08:00:00,123 WARNING job home: ...`; a traceback follows on indented lines."""

    def __init__(self, *, datefmt: str | None = None, colours: bool = False) -> None:
        super().__init__(datefmt=datefmt)
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        run_id = getattr(record, "run_id", "")
        words = safe(message_of(record), LINE_CHARS_MAX // 2)
        words = f"run {safe(run_id)}: {words}" if run_id else words
        level = f"{record.levelname:<7}"
        colour = _COLOURS.get(record.levelname) if self._colours else None
        level = f"{colour}{level}{_RESET}" if colour else level
        lines = [f"{self.formatTime(record, self.datefmt)} {level} {words}"]
        lines += [f"    | {printable(line)}" for line in trace_of(self, record).splitlines()]
        return cut("\n".join(lines), LINE_CHARS_MAX)


class JsonLines(logging.Formatter):
    """One JSON object a line: `time level event message`, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None)
        fields: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "event": _name_of(event) if isinstance(event, Event) else "log",
            "message": safe(message_of(record)),
        }
        for name, value in _fields_of(record, event):
            fields.setdefault(name, value)
        trace = trace_of(self, record)
        if trace:
            fields["trace"] = cut("\n".join(printable(line) for line in trace.split("\n")), TRACE_CHARS_MAX)
        return _encoded(fields)


def write_lines(
    handler: logging.Handler, kind: str, level: int | str, *, datefmt: str | None = None, colours: bool = False
) -> None:
    """Send every log line of this process to `handler`, also Python's warnings and errors of threads."""
    handler.setFormatter(JsonLines() if kind == "json" else TextLines(datefmt=datefmt, colours=colours))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    threading.excepthook = _log_thread_error


def kind_written() -> str | None:
    """The kind of lines that this process writes (json or text); None before `write_lines`."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, JsonLines | TextLines):
            return "json" if isinstance(handler.formatter, JsonLines) else "text"
    return None


def _log_thread_error(args: threading.ExceptHookArgs) -> None:
    """Log the error that ended a thread, usually one that a handler started."""
    name = args.thread.name if args.thread is not None else "?"
    error = args.exc_value
    if error is not None and not isinstance(error, SystemExit):
        logging.getLogger("pollux.handler").error("the thread %s died", name, exc_info=error)


def message_of(record: logging.LogRecord) -> str:
    """The message of the record; its unformatted text if the arguments do not fit."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  any library may have written the record
        return f"{record.msg} (its arguments do not fit: {type(error).__name__})"


def trace_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of the record or its event, or an empty text; a long one keeps its end, which explains most."""
    event = getattr(record, "event", None)
    if isinstance(event, Event) and (trace := getattr(event, "traceback", "")):
        return hide(str(trace))
    if not record.exc_info:
        return ""
    try:
        text = hide(formatter.formatException(record.exc_info))
    except Exception as error:  # noqa: BLE001  an exception that cannot be shown
        return f"(its traceback cannot be shown: {type(error).__name__})"
    return text if len(text) <= TRACE_CHARS_MAX else f"{CUT}{text[-(TRACE_CHARS_MAX - len(CUT)) :]}"


def _fields_of(record: logging.LogRecord, event: object) -> Iterator[tuple[str, Any]]:
    if isinstance(event, Event):
        for name in event.__struct_fields__:
            value = getattr(event, name)
            if name == "traceback":
                continue  # formatted by `trace_of`
            yield name, [safe(each, 200) for each in value[:20]] if isinstance(value, tuple) else _value(value)
        return
    yield "logger", safe(record.name)
    extra = [name for name in vars(record) if name not in _STANDARD_ATTRIBUTES]
    for name in extra[:FIELDS_MAX]:
        value = vars(record)[name]
        yield safe(name, 100), MASK if looks_secret(name) and isinstance(value, str) else _value(value)


def _value(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        return safe(f"{type(value).__name__}: {value}")
    return safe(value if isinstance(value, str) else HIDDEN.hide_in(value))


def _encoded(fields: dict[str, Any]) -> str:
    """The object in one line; its longest texts are cut until it fits."""
    while True:
        line = msgspec.json.encode(fields).decode("utf-8")
        if len(line) <= LINE_CHARS_MAX:
            return line
        longest = max(fields, key=lambda name: len(fields[name]) if isinstance(fields[name], str) else 0)
        fields[longest] = cut(fields[longest], max(100, len(fields[longest]) // 2))


def _moment(seconds: float) -> str:
    whole = int(seconds)
    clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{clock}.{int((seconds - whole) * 1000):03d}Z"


def _name_of(event: Event) -> str:
    """`run_settled` for `RunSettled`."""
    name = type(event).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
