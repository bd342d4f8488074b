"""Which Python object is meant by `module:attribute`?  Named only by files and the command line, never by data."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from pollux.errors import InvalidInput

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def load_object(spec: str, *, beside: Path | None = None) -> Any:
    """Import `package.module:attribute`; modules beside the configuration file are found too."""
    if not _SPEC.match(spec):
        raise InvalidInput(f"{spec!r} names no Python object", cure='write "module:attribute", like "reports:daily"')
    module_name, _, path = spec.partition(":")
    _look_in(beside or Path.cwd())
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"importing {module_name!r} raised {type(error).__name__}: {error}",
            cure="mend the module, or put it beside the configuration file or on PYTHONPATH",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = (
                ", ".join(sorted(n for n in vars(found) if not n.startswith("_"))[:20])
                if hasattr(found, "__dict__")
                else ""
            )
            raise InvalidInput(f"{module_name!r} has no {name!r}", cure=f"it has {names or 'nothing'}") from None
    return found


def _look_in(folder: Path) -> None:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)
