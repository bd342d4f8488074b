"""The node's own script in an isolated child: loaded once, however many handlers of it are called there."""

import sys

import pytest

from pollux.runtime.child import SCRIPT, find
from pollux.runtime.child_protocol import FunctionRef

ONCE = """
import builtins
assert not hasattr(builtins, "was_run_before"), "run twice"
builtins.was_run_before = True


def work(ctx):
    return "done"
"""


@pytest.fixture(autouse=True)
def as_before():
    import builtins

    yield
    sys.modules.pop(SCRIPT, None)
    if hasattr(builtins, "was_run_before"):
        del builtins.was_run_before


def test_a_script_is_run_once(tmp_path):
    """A child is used again: what registers itself when the script runs would do so twice."""
    (tmp_path / "app.py").write_text(ONCE)
    place = FunctionRef(module="", script=str(tmp_path / "app.py"), path="work")
    assert find(place) is find(place)


def test_a_script_that_failed_is_tried_again(tmp_path):
    (tmp_path / "app.py").write_text("raise RuntimeError('not yet')")
    place = FunctionRef(module="", script=str(tmp_path / "app.py"), path="work")
    with pytest.raises(RuntimeError):
        find(place)
    (tmp_path / "app.py").write_text(ONCE)
    assert find(place)(None) == "done"
