"""Where do the rooms meet?  `Pollux`, and the verbs that everything outside asks with."""

from pollux.app.overview import JobRow, Overview
from pollux.app.pollux import Pollux
from pollux.app.process import listen_for_signals, run_to_end, threads_left
from pollux.app.verbs import Verbs

__all__ = ["JobRow", "Overview", "Pollux", "Verbs", "listen_for_signals", "run_to_end", "threads_left"]
