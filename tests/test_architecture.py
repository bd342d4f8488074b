"""The map of the house: which room may import which.  An arrow that is not here is a design change: write a decision.

The rules themselves are in `architecture.py`; below the map each is held against our code, and then shown a tree with
the fault planted, because a test that cannot fail is a defect.
"""

import importlib
import re
from pathlib import Path

import pytest

from tests.architecture import (
    impure_imports,
    repository_files,
    riddles,
    shared_class_names,
    small_parts,
    tell_tales,
    the_word_task,
    too_long,
    unlisted_exports,
    vague_names,
    words,
    wrong_arrows,
)

pytestmark = pytest.mark.xdist_group("architecture")  # the code is read once for all rules
GROUND = {
    "errors",
    "clock",
    "units",
    "ids",
    "events",
    "log_format",
    "model",
    "subprocesses",
    "secrets",
    "version",
    "process_guard",
}
STEPS = {
    "schedule",
    "outcome",
    "plan",
    "store",
    "registry",
    "runtime",
    "workflow",
    "handlers",
    "trigger",
    "collect",
    "observe",
}

# Room: what it may import besides the ground and itself, in the order the data flows.
HOUSE: dict[str, set[str]] = {
    "schedule": set(),
    "outcome": {"schedule"},
    "plan": {"schedule", "outcome"},
    "store": set(),
    "registry": {"outcome"},
    "job_builder": {"schedule", "outcome"},
    "runtime": {"schedule", "plan", "outcome", "store", "registry"},
    "workflow": {"store", "outcome", "registry"},
    "handlers": {"registry", "outcome"},
    "trigger": {"store"},
    "collect": {"schedule", "registry"},
    "observe": set(),
    "config": STEPS | {"job_builder"},  # their option types
    "app": STEPS | {"job_builder", "config"},
    # client: how verbs travel; schedule: the words in which people say when
    "server": {"app", "config", "job_builder", "schedule", "store", "trigger", "observe", "client"},
    "dashboard": {"server"},
    "client": {"app", "store"},  # the verbs and their values, as they travel
    "cli": {"config", "app", "server", "store", "simulate", "client"},
    "simulate": {"schedule", "plan", "outcome", "store", "runtime", "registry"},
    "testing": STEPS | {"job_builder", "config", "app", "server", "dashboard", "client", "cli", "simulate"},
    # Doors rather than rooms: the public names, and `python -m pollux`.
    "__init__": STEPS | {"job_builder", "config", "app"},
    "__main__": {"cli"},
}

# Files that may import a room more than theirs: where a process begins.
WIRED = {
    "app/process.py": {"server"}
}  # decision 0041: `app.run()` answers commands, and the server is built on the app

PURE = {"schedule", "outcome", "plan", "workflow/replay.py", "observe/health.py"}
CLOCKS_AND_DICE = {"asyncio", "time", "random", "secrets", "logging", "threading", "socket"}
STORES = {"pollux.store", "apsw", "sqlite3", "redis", "asyncpg"}

# Short modules with one importer that stay: files that begin a process, entries of a table, files of every backend.
STARTED = {"handlers/http/regex_child.py"}
LISTED = {"app/operations/storage.py", "store/sqlite/drop.py"}

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "src" / "pollux"


def said(wrong: list[str]) -> str:
    return "\n".join(line.replace(f"{REPOSITORY}/", "") for line in wrong)


# our house


def test_a_room_imports_only_what_the_map_allows():
    wrong = wrong_arrows(PACKAGE, HOUSE, GROUND, WIRED)
    assert not wrong, said(wrong)


def test_a_pure_room_reaches_no_clock_no_dice_and_no_store():
    wrong = impure_imports(PACKAGE, PURE, CLOCKS_AND_DICE | STORES)
    assert not wrong, said(wrong)


def test_files_and_functions_stay_short():
    wrong = too_long(PACKAGE) + too_long(REPOSITORY / "benchmarks")
    assert not wrong, said(wrong)


def test_no_module_or_class_has_a_name_that_says_nothing():
    wrong = vague_names(PACKAGE)
    assert not wrong, said(wrong)


def test_a_short_module_has_a_second_importer():
    wrong = small_parts(PACKAGE, STARTED | LISTED)
    assert not wrong, said(wrong)


def test_a_class_name_occurs_once():
    wrong = shared_class_names(PACKAGE)
    assert not wrong, said(wrong)


def test_a_module_opens_with_what_is_inside():
    wrong = riddles(PACKAGE)
    assert not wrong, said(wrong)


def test_the_word_task_is_left_to_asyncio():
    wrong = the_word_task(PACKAGE)
    assert not wrong, said(wrong)


def test_each_door_lists_what_it_exports():
    wrong = unlisted_exports(PACKAGE)
    assert not wrong, said(wrong)


@pytest.mark.parametrize(
    "door", [".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in sorted(PACKAGE.rglob("__init__.py"))]
)
def test_what_a_door_lists_can_be_taken(door):
    """Also where the names are made lazily, and where a listed name comes from another room."""
    room = importlib.import_module(door)
    missing = [name for name in getattr(room, "__all__", ()) if not hasattr(room, name)]
    assert not missing, f"{door}: __all__ lists {', '.join(missing)}, which cannot be imported"


def test_the_page_has_a_row_for_every_room():
    """With the arrows of the map, but for those to rooms that are not built yet."""
    there = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.name[0] != "_"} - {"py.typed", *GROUND}
    page, arrows = (REPOSITORY / "docs" / "architecture.md").read_text(), {}
    for names, _, allowed in re.findall(r"^\| (`.+) \| (.+) \| (.+) \|$", page, re.MULTILINE):
        room = names.split("`")[1].removesuffix(".py").rstrip("/")
        arrows[room] = set(re.findall(r"\w+", allowed))
    assert there <= arrows.keys()
    for room in there - {"config", "app", "testing"}:  # in whose rows words stand for many
        assert arrows[room] == HOUSE[room] & there, room


def test_no_file_tells_where_it_was_written_or_fetched():
    files = repository_files(REPOSITORY)
    assert files
    wrong = tell_tales(REPOSITORY, files)
    assert not wrong, said(wrong)


def test_each_step_has_a_row_that_no_step_points_back_to():
    """The map has no circle: a room that another imports never imports that one, over any number of rooms."""
    reached = {room: set(row) for room, row in HOUSE.items()}
    for middle in HOUSE:
        for room in HOUSE:
            if middle in reached[room]:
                reached[room] |= reached[middle]
    assert set(HOUSE) >= STEPS
    assert [room for room in HOUSE if room in reached[room]] == []


# each rule, and the fault that it is there to find


@pytest.fixture
def plant(tmp_path):
    """Write files below a package `pollux` that breaks no rule yet; answers the package."""
    package = tmp_path / "pollux"

    def write(files: dict[str, str]) -> Path:
        for name, text in {"__init__.py": "", **files}.items():
            path = package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return package

    return write


@pytest.mark.parametrize(
    "line",
    [
        "import pollux.runtime",
        "import pollux.runtime.loop as loop",
        "from pollux import runtime",
        "from pollux.runtime import Loop",
        "from ..runtime import Loop",
        "from .. import runtime",
        "def late():\n    from pollux.runtime.loop import Loop",
        "if TYPE_CHECKING:\n    from pollux.runtime import Loop",
        "importlib.import_module('pollux.runtime')",
        "from importlib import import_module\nimport_module('pollux.runtime.loop')",
    ],
)
def test_every_form_of_import_is_an_arrow(plant, line):
    package = plant({"store/sqlite.py": line, "runtime/__init__.py": "", "runtime/loop.py": ""})
    wrong = wrong_arrows(package, HOUSE, GROUND)
    assert len(wrong) == 1
    assert "store imports runtime" in wrong[0]


def test_an_arrow_of_the_map_the_ground_and_the_room_itself_are_allowed(plant):
    package = plant(
        {
            "plan/gate.py": "import json\nfrom pollux import units\nimport pollux.outcome\nfrom .timers import Timer",
            "model/job.py": "from pollux.errors import PolluxError",
            "outcome/__init__.py": "",
            "plan/timers.py": "",
            "units.py": "",
            "errors.py": "",
        }
    )
    assert wrong_arrows(package, HOUSE, GROUND) == []


def test_the_ground_imports_no_room(plant):
    package = plant({"clock.py": "from pollux.schedule import every", "schedule/__init__.py": ""})
    assert "ground imports schedule" in wrong_arrows(package, HOUSE, GROUND)[0]


def test_a_room_does_not_go_out_and_in_by_the_front_door(plant):
    package = plant({"store/urls.py": "from pollux import Pollux"})
    assert "store imports __init__" in wrong_arrows(package, HOUSE, GROUND)[0]


def test_a_room_without_a_row_is_refused(plant):
    assert "no room 'attic'" in wrong_arrows(plant({"attic/dust.py": ""}), HOUSE, GROUND)[0]


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import asyncio.queues",
        "from random import random",
        "def roll():\n    import random",
        "import logging, json",
        "from pollux.store.contract import Store",
        "from ..store import Store",
        "import apsw",
        "from datetime import datetime\nnow = datetime.now()",
    ],
)
@pytest.mark.parametrize("place", ["schedule/cron.py", "workflow/replay.py"])
def test_a_pure_place_with_a_clock_dice_or_a_store_is_found(plant, place, line):
    package = plant({place: line, "store/contract.py": ""})
    assert len(impure_imports(package, PURE, CLOCKS_AND_DICE | STORES)) == 1


def test_a_place_that_is_not_pure_may_have_a_clock(plant):
    package = plant({"workflow/turn.py": "import time", "schedule/cron.py": "import timeit\nprint(state.now)"})
    assert impure_imports(package, PURE, CLOCKS_AND_DICE | STORES) == []


def test_a_long_file_and_a_long_function_are_found(plant):
    steps = "    step()\n"
    package = plant(
        {
            "app.py": "x = 1\n" * 801,
            "config.py": "x = 1\n" * 800,
            "plan/gate.py": "async def gate():\n" + steps * 50,
            "plan/batch.py": 'def batch():\n    """Long\n\n    prose."""\n' + steps * 47,
            "plan/timers.py": 'def timers():\n    """Short."""\n' + steps * 48,
        }
    )
    wrong = too_long(package)
    assert len(wrong) == 3
    assert "app.py: 801 lines" in wrong[0]
    assert "batch has 51 lines" in wrong[1]
    assert "gate has 51 lines" in wrong[2]


@pytest.mark.parametrize(
    "files",
    [
        {"store/utils.py": ""},
        {"common/values.py": ""},
        {"plan/gate_helper.py": ""},
        {"store/urls.py": "class StoreManager: ..."},
        {"store/urls.py": "class BaseStore: ..."},
        {"store/urls.py": "def hidden():\n    class CoreLoop: ..."},
    ],
)
def test_a_name_that_says_nothing_is_found(plant, files):
    assert len(vague_names(plant(files))) == 1


@pytest.mark.parametrize("files", [{"store/beside.py": ""}, {"store/urls.py": "class ToldEntry: ..."}])
def test_a_private_word_is_found(plant, files):
    assert len(vague_names(plant(files))) == 1


def test_a_class_name_that_occurs_twice_is_found(plant):
    package = plant({"store/urls.py": "class Line: ...", "plan/gate.py": "def hidden():\n    class Line: ..."})
    [wrong] = shared_class_names(package)
    assert "urls.py:1" in wrong
    assert "gate.py:2" in wrong


@pytest.mark.parametrize("text", ['"""Who leads?  One of many."""', '"""What\nis due?"""', "x = 1"])
def test_a_module_that_opens_with_a_riddle_is_found(plant, text):
    assert len(riddles(plant({"plan/gate.py": text}))) == 1


def test_a_module_that_opens_with_a_noun_phrase_is_no_riddle(plant):
    assert (
        riddles(plant({"plan/gate.py": '"""Gate checks.  May a run start?  The first that refuses decides."""'})) == []
    )


def test_a_part_of_one_module_is_found(plant):
    package = plant(
        {
            "plan/__init__.py": "",
            "plan/gate.py": "from pollux.plan import timers, shared",
            "plan/batch.py": "from pollux.plan.shared import x",
            "plan/timers.py": "x = 1\n" * 59,
            "plan/shared.py": "x = 1",
            "plan/long.py": "x = 1\n" * 60,
            "cli/table.py": 'ENTRIES = ["pollux.cli.check:check"]',
            "cli/check.py": "x = 1",
        }
    )
    wrong = [
        line.partition(":")[0].rpartition("/")[2] for line in small_parts(package, {"plan/gate.py", "plan/batch.py"})
    ]
    assert sorted(wrong) == ["check.py", "table.py", "timers.py"]


def test_a_word_inside_a_word_is_another_word(plant):
    assert words("BaseStore_v2 score HTTPCore") == ["base", "store", "v", "score", "http", "core"]
    assert vague_names(plant({"outcome/score.py": "class Database: ...\nclass Commonly: ..."})) == []


@pytest.mark.parametrize(
    "line",
    [
        "task = 1",
        "def run_task(): ...",
        "class TaskRow: ...",
        "def run(task): ...",
        "self.tasks = set()",
        "call(task=1)",
        "def create_task(): ...",
        "import asyncio as task",
        "from celery import task",
        "for task in runs: ...",
    ],
)
def test_the_word_task_in_a_name_of_ours_is_found(plant, line):
    assert the_word_task(plant({"runtime/attempt.py": line}))


def test_the_names_of_asyncio_may_be_used(plant):
    package = plant(
        {
            "runtime/attempt.py": (
                "import asyncio\nfrom asyncio import Task, create_task\n"
                "seat: asyncio.Task[None] = asyncio.create_task(attempt())\nqueue.task_done()\nasyncio.all_tasks()\n"
                "async def start():\n    async with asyncio.TaskGroup() as group:\n        group.create_task(go())\n"
            )
        }
    )
    assert the_word_task(package) == []


@pytest.mark.parametrize(
    ("door", "fault"),
    [
        ("from .cron import Cron, every\n__all__ = ['Cron']", "takes in 'every'"),
        ("from pollux.schedule.cron import Cron, every\n__all__ = ['Cron']", "takes in 'every'"),
        ("from .cron import Cron\n__all__ = ['Cron', 'every']", "lists 'every'"),
        ("from .cron import Cron\n__all__ = ['Cron', 'Cron']", "twice"),
        ("from .cron import Cron", "no __all__"),
        ("def every(): ...\n__all__ = []", "takes in 'every'"),
    ],
)
def test_a_door_that_does_not_list_what_it_exports_is_found(plant, door, fault):
    wrong = unlisted_exports(plant({"schedule/__init__.py": door, "schedule/cron.py": ""}))
    assert len(wrong) == 1
    assert fault in wrong[0]


def test_an_honest_door_is_let_be(plant):
    door = "import json\nfrom typing import Any\nfrom .cron import Cron, _parse\nMAX = 1\n__all__ = ['MAX', 'Cron']"
    assert unlisted_exports(plant({"schedule/__init__.py": door, "schedule/cron.py": ""})) == []


@pytest.mark.parametrize(
    "parts",
    [
        ("read /", "root/notes"),
        ("'/", "work/main'"),
        ("file:///", "home/me"),
        ("https://pypi", ".org/simple"),
        ("https://files.pythonhosted", ".org/x"),
        ("see ../", "shared"),
        ("see shared", "/DESIGN.md"),
    ],
)
def test_a_tell_tale_is_found(tmp_path, parts):
    (tmp_path / "README.md").write_text("fine\n" + "".join(parts) + "\n")
    wrong = tell_tales(tmp_path, [Path("README.md")])
    assert len(wrong) == 1
    assert wrong[0].startswith("README.md:2: names")


def test_an_ordinary_address_tells_nothing(tmp_path):
    (tmp_path / "README.md").write_text("http://example.com/home/ and src/work/x and www.python.org\n")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\xff")
    assert tell_tales(tmp_path, [Path("README.md"), Path("logo.png")]) == []
