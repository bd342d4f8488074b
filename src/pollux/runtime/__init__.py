"""The loops of a node, and `NodeRuntime`, which wires, starts and drains them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pollux.runtime.loop import Loop as Loop
    from pollux.runtime.loop import LoopStatus as LoopStatus
    from pollux.runtime.loop import Rest as Rest
    from pollux.runtime.node import NodeRuntime as NodeRuntime
    from pollux.runtime.node import NodeStatus as NodeStatus
    from pollux.runtime.options import RuntimeOptions as RuntimeOptions
    from pollux.runtime.stats import LatenessSnapshot as LatenessSnapshot

_HOMES = {
    "NodeRuntime": "node",
    "RuntimeOptions": "options",
    "LatenessSnapshot": "stats",
    "Loop": "loop",
    "LoopStatus": "loop",
    "Rest": "loop",
    "NodeStatus": "node",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Names are imported on first use: a child that runs one handler needs no loops."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
