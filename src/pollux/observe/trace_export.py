"""Export of spans: a thread of its own sends them in batches, and never holds up the engine.

    engine ── put ──▶ a bounded line ──▶ thread ── OTLP over HTTP ──▶ collector
                         │ full                        │ refused, or gone
                         └── dropped, counted ◀────────┘   said once, then at most once a minute

The thread sleeps while there is nothing to send.  A collector that is dead, slow or wrong costs spans and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pollux.log_format import safe
from pollux.observe.log_throttle import LogThrottle

WAITING_MAX = 10_000  # spans
BATCH_MAX = 256
GATHER_SECONDS = 1.0
FLUSH_SECONDS = 3.0  # what the last ones get when the node ends
WHY_CHARS_MAX = 300
_EXPORTERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.exporter.otlp.common.http")

Lost = Callable[[int, str], None]


class Exporter(Protocol):
    """What we use of OpenTelemetry's own."""

    def export(self, spans: Sequence[Any]) -> Any: ...

    def shutdown(self) -> None: ...


class ExportErrors(logging.Filter):
    """What the exporter says in our thread is ours to say, sparingly; what it says for others is theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: int | None = None
        self.words = ""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.words = record.getMessage()
        return False


class Export:
    """The line of steps and the thread that makes spans of them and sends them."""

    def __init__(
        self,
        exporter: Exporter,
        spans_of: Callable[[Sequence[Any]], Sequence[Any]],
        on_lost: Lost,
        *,
        waiting_max: int = WAITING_MAX,
        gather_seconds: float = GATHER_SECONDS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.exported = 0
        self.overflowed = 0  # there was no room for them: counted by the event loop
        self.refused = 0  # they could not be sent: counted by the thread
        self._exporter, self._spans_of, self._on_lost = exporter, spans_of, on_lost
        self._waiting_max, self._gather, self._flush = waiting_max, gather_seconds, flush_seconds
        self._waiting: deque[Any] = deque()
        self._bell = threading.Event()
        self._stopping = threading.Event()
        self._overheard, self._sparing, self._said = ExportErrors(), LogThrottle(), 0
        self._is_over = False
        self._thread = threading.Thread(target=self._labour, name="pollux-traces", daemon=True)

    @property
    def dropped(self) -> int:
        return self.overflowed + self.refused

    def counts(self) -> dict[str, int]:
        """What became of all spans that are no longer here, for the metrics."""
        return {"exported": self.exported, "dropped": self.overflowed, "failed": self.refused}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        for name in _EXPORTERS:
            logging.getLogger(name).addFilter(self._overheard)
        self._thread.start()

    def put(self, step: Any) -> None:
        """From the event loop; it never waits."""
        waiting = len(self._waiting)
        if waiting >= self._waiting_max:
            self.overflowed += 1
            return
        self._waiting.append(step)
        if not waiting:
            self._bell.set()

    def stop(self) -> None:
        """Send what is left, for as long as there is patience; called beside the event loop."""
        self._stopping.set()
        self._bell.set()
        self._thread.join(self._flush)
        self._is_over = True
        self._exporter.shutdown()  # ends the exporter's own retries
        self.overflowed += len(self._waiting)
        for name in _EXPORTERS:
            logging.getLogger(name).removeFilter(self._overheard)

    def _labour(self) -> None:
        self._overheard.thread = threading.get_ident()
        while not self._stopping.is_set():
            self._bell.wait()
            self._bell.clear()
            self._stopping.wait(self._gather)
            self._send_all()

    def _send_all(self) -> None:
        while self._waiting and not self._is_over:
            self._send([self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))])

    def _send(self, steps: Sequence[Any]) -> None:
        self._overheard.words = ""
        try:
            is_sent = self._exporter.export(self._spans_of(steps)).name == "SUCCESS"
        except Exception as error:  # noqa: BLE001  whatever a collector makes of it
            is_sent, self._overheard.words = False, f"{type(error).__name__}: {error}"
        if is_sent:
            self.exported += len(steps)
        else:
            self.refused += len(steps)
        self._say_lost()

    def _say_lost(self) -> None:
        unsaid = self.dropped - self._said
        if not unsaid or self._sparing.left_out("lost") is None:
            return
        self._said += unsaid
        why = self._overheard.words or f"more than {self._waiting_max} were waiting for the collector"
        self._on_lost(unsaid, safe(why, WHY_CHARS_MAX))
