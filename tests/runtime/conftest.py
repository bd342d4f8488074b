"""Fixtures of the runtime tests: a folder with a file to read, and an app in memory."""

import sys

import pytest

from pollux import Pollux
from tests.runtime.reload_world import FIRST, WORK


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file and the code that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("reload_work", None)
    (tmp_path / "reload_work.py").write_text(WORK)
    (tmp_path / "reload_exits.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "p.yaml").write_text(FIRST)
    yield tmp_path
    sys.modules.pop("reload_work", None)
    sys.modules.pop("reload_later", None)


@pytest.fixture
def app() -> Pollux:
    return Pollux("memory://", name="shop")
