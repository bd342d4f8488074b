"""Pollux, a polling and job scheduler: the public names, each imported on first use.

from pollux import Pollux, every

app = Pollux()

@app.job(every("30s"))
async def tick(ctx): ...

app.run()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pollux.version import __version__ as __version__

if TYPE_CHECKING:
    from pollux.app import Pollux as Pollux
    from pollux.errors import Permanent as Permanent
    from pollux.errors import PolluxError as PolluxError
    from pollux.errors import Transient as Transient
    from pollux.model import Job as Job
    from pollux.model import Retry as Retry
    from pollux.model import Run as Run
    from pollux.registry import Changed as Changed
    from pollux.registry import Context as Context
    from pollux.registry import Observed as Observed
    from pollux.registry import Unchanged as Unchanged
    from pollux.schedule.builders import cron as cron
    from pollux.schedule.builders import every as every
    from pollux.schedule.builders import on_event as on_event
    from pollux.schedule.builders import once as once

_MODULES = {
    "Pollux": "pollux.app",
    "Permanent": "pollux.errors",
    "PolluxError": "pollux.errors",
    "Transient": "pollux.errors",
    "Job": "pollux.model",
    "Retry": "pollux.model",
    "Run": "pollux.model",
    "Changed": "pollux.registry",
    "Context": "pollux.registry",
    "Observed": "pollux.registry",
    "Unchanged": "pollux.registry",
    "cron": "pollux.schedule.builders",
    "every": "pollux.schedule.builders",
    "on_event": "pollux.schedule.builders",
    "once": "pollux.schedule.builders",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `pollux --help` is quick."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'pollux' has no attribute {name!r}")
