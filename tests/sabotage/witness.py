"""Plugin of pytest that refuses any source but the broken copy."""

import os
from pathlib import Path

import pollux


def pytest_configure():
    root = Path(os.environ["POLLUX_SABOTAGE_ROOT"])
    loaded = Path(pollux.__file__)
    assert loaded.is_relative_to(root), f"{loaded} would be tested, not the broken copy in {root}"
