"""Sabotage catalogue fits the code: each patch fits its source exactly once, and every test it names exists."""

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


STORES = ("memory", "sqlite", "redis", "postgres")
UNSHARED = "nobody else can write into the memory of our own process"
ONE_WAY = "it has one way for all of them, which is broken in the row without the second name"
IN_A_STREAM = "no other store has its line in a stream"
BY_RING = "no other store claims for somebody who waits"
REPLICATED = "PostgreSQL answers for its replicas itself, and a file or a process has none"
# Where a family has no row for a store, and why.
ABSENT = {
    "S1.plain": (("memory", "sqlite", "redis"), ONE_WAY),
    "S5.plain": (("memory", "sqlite", "redis"), ONE_WAY),
    "S4.learn": (("memory", "sqlite", "redis"), ONE_WAY),
    "S6.kept-learn": (("memory", "sqlite", "redis"), ONE_WAY),
    "S7": (("memory",), "a call is one step of one process, and what would be half done dies with it"),
    "S8": (("memory", "redis", "postgres"), "no other store writes to a disk by itself"),
    "S8.pragma": (("memory", "redis", "postgres"), "no other store writes to a disk by itself"),
    "early": (("memory", "redis", "postgres"), "the server answers for itself when it has committed"),
    "S12": (("memory", "sqlite", "postgres"), IN_A_STREAM),
    "alike": (("memory",), "it takes them as the list that they are"),
    "offer": (("memory", "sqlite", "postgres"), BY_RING),
    "offer.cut": (("memory", "sqlite", "postgres"), BY_RING),
    "wait": (("memory", "sqlite", "postgres"), REPLICATED),
    "wait.promoted": (("memory", "sqlite", "postgres"), REPLICATED),
    "rollback": (("memory", "sqlite", "postgres"), REPLICATED),
    "spoilt": (("memory",), UNSHARED),
    "spoilt.number": (("memory",), UNSHARED),
    "aside": (("memory",), UNSHARED),
    "legible.entry": (("memory",), UNSHARED),
    "legible.jobs": (("memory",), UNSHARED),
    "legible.number": (("memory",), UNSHARED),
    "legible.number-plain": (("memory", "sqlite", "redis"), ONE_WAY),
    "legible.unread": (("memory",), UNSHARED),
    "legible.prune": (
        ("memory", "sqlite", "postgres"),
        "when a once-job ended is a column, which is no JSON, or a value of our own process",
    ),
    "legible.pause": (("memory",), UNSHARED),
    "audit.chain": (("memory",), UNSHARED),
    "moved.writes": (("memory",), "what dies with its process is not moved away under somebody else's hands"),
}
# One file decides it for all stores, by itself; that each store asks it is another family's.
DECIDED_ONCE = {
    "unreadable.soon": "how long a run rests is a sum; `aside` shows that each store asks for it",
    "unreadable.longer": "how long a run rests is a sum; `aside` shows that each store asks for it",
    "moved.halves": "a move says in one place what goes at once; that notes of one call do each store shows",
}


def family_and_store(name):
    """`S4.two-redis` is `S4.two` on redis, `S1.redis-plain` is `S1.plain`; no store: it is all families' own."""
    words = name.replace(".", " . ", 1).replace("-", " - ").split(" ")
    stores = [word for word in words if word in STORES]
    kept = [word for word in words if word not in STORES]
    family = "".join(kept).replace("--", "-").replace(".-", ".").strip(".-")
    assert len(stores) < 2, f"{name} names two stores: the second would never be seen"
    return family, stores[0] if stores else None


def store_level():
    """The stores of each family that breaks something in a store."""
    found = {}
    for sabotage in SABOTAGES:
        if any(patch.file.startswith("store/") for patch in sabotage.patches):
            family, store = family_and_store(sabotage.name)
            found.setdefault(family, []).append(store)
    return found


@pytest.mark.parametrize(("name", "expected"), [
    ("S4.two-redis", ("S4.two", "redis")),
    ("S1.redis-plain", ("S1.plain", "redis")),
    ("legible.number-redis-plain", ("legible.number-plain", "redis")),
    ("S7.sqlite", ("S7", "sqlite")),
    ("S10", ("S10", None)),
    ("legible.all-jobs", ("legible.all-jobs", None)),
])  # fmt: skip
def test_a_name_tells_family_and_store(name, expected):
    assert family_and_store(name) == expected


def test_what_is_broken_in_a_store_is_broken_in_every_store_that_has_it():
    missing = []
    for family, stores in store_level().items():
        if family in DECIDED_ONCE:
            continue
        absent = ABSENT.get(family, ((), ""))[0]
        missing += [f"{family} on {store}" for store in STORES if store not in stores and store not in absent]
        missing += [f"{family} says not on which store" for store in stores if store is None]
    assert missing == [], "add a row for each, or say in ABSENT why there can be none"


def test_no_excuse_outlives_its_reason():
    families = store_level()
    assert sorted({*ABSENT, *DECIDED_ONCE} - set(families)) == []
    assert [family for family, (stores, _) in ABSENT.items() if set(stores) & set(families[family])] == []
    assert all(len(why.split()) > 3 for why in [*(why for _, why in ABSENT.values()), *DECIDED_ONCE.values()])


@pytest.mark.parametrize(
    "sabotage", [each for each in SABOTAGES if family_and_store(each.name)[1]], ids=lambda sabotage: sabotage.name
)
def test_a_row_of_a_store_is_caught_on_that_store(sabotage):
    """The first red test ends the row: one of another store would hide that nothing sees it here."""
    _, store = family_and_store(sabotage.name)
    others = [f"[{other}" for other in STORES if other != store]
    others += [f"test_{other}" for other in STORES if other != store]
    assert [test for test in sabotage.tests if any(other in test.lower() for other in others)] == []


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
