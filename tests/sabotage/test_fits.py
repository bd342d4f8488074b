"""Is the list of sabotages still true?  Each patch fits its source exactly once, and every test it names exists."""

import ast

import pytest

from tests.sabotage import witness
from tests.sabotage.catalogue import SABOTAGES
from tests.sabotage.copy import REPOSITORY, Misfit, Patch, broken_copy, misfits, patched

# The conformance suite is shipped with the package; the test files of the stores only name it.
SHIPPED = "".join(path.read_text() for path in (REPOSITORY / "src/pollux/testing/conformance").glob("*.py"))


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_every_patch_still_fits_and_leaves_a_program(sabotage):
    assert misfits(sabotage) == []
    texts = {}
    for patch in sabotage.patches:
        text = texts.get(patch.file) or (REPOSITORY / "src" / "pollux" / patch.file).read_text()
        texts[patch.file] = patched(text, patch)
    for file, text in texts.items():
        if file.endswith(".py"):
            ast.parse(text, file)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.name)
def test_every_test_it_names_exists(sabotage):
    assert sabotage.tests
    for test in sabotage.tests:
        file, *names = test.split("[")[0].split("::")
        text = (REPOSITORY / file).read_text() + SHIPPED
        assert [name for name in names if name not in text] == []


def test_names_are_unique():
    names = [sabotage.name for sabotage in SABOTAGES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("text", ["", "a b a"], ids=["gone", "twice"])
def test_a_patch_that_does_not_fit_once_is_refused(text):
    with pytest.raises(Misfit, match="no longer fits"):
        patched(text, Patch("x.py", "a", "c"))


def test_the_witness_refuses_a_source_that_is_not_the_broken_one(tmp_path, monkeypatch):
    monkeypatch.setenv("POLLUX_SABOTAGE_ROOT", str(tmp_path))
    with pytest.raises(AssertionError, match="would be tested, not the broken copy"):
        witness.pytest_configure()


def test_a_patch_changes_the_copy_and_not_the_source():
    source = (REPOSITORY / "src" / "pollux" / "ids.py").read_text()
    with broken_copy([Patch("ids.py", "ID_MAX = 200", "ID_MAX = 2")]) as root:
        assert "ID_MAX = 2\n" in (root / "src" / "pollux" / "ids.py").read_text()
    assert (REPOSITORY / "src" / "pollux" / "ids.py").read_text() == source
