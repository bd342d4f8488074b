"""The app: `Pollux`, its operations, and the process that runs it."""

from pollux.app.operations import Operations, OperationsProtocol
from pollux.app.operations.status import JobRow, Overview
from pollux.app.pollux import Pollux
from pollux.app.process import listen_for_signals, run_to_end, threads_left

__all__ = [
    "JobRow",
    "Operations",
    "OperationsProtocol",
    "Overview",
    "Pollux",
    "listen_for_signals",
    "run_to_end",
    "threads_left",
]
