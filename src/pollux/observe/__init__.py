"""Logs, metrics, health and traces: listeners on the event bus; all wording of logs lives here."""

from pollux.observe.logs import attach_logs

__all__ = ["attach_logs"]
