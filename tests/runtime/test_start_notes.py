"""The two notes of a start: the sets that a source had must be written, how the app was started need not be."""

import sys

import pytest

from pollux.errors import StoreFull, StoreTimeout
from pollux.model import START
from pollux.store.sqlite import SqliteStore
from pollux.testing.faults import FaultyStore
from tests.runtime.test_releases import Yard


@pytest.fixture
async def yard(tmp_path):
    """On a store that is shared: of another one no start is noted."""
    yard = Yard()
    yard.store = SqliteStore(str(tmp_path / "p.db"), clock=yard.clock)
    await yard.open()
    yield yard
    await yard.store.close()


def a_process(yard, faulty):
    process = yard.process(1, store=faulty, tick=5)
    process.registrar.program = (
        "python app.py"  # of a process that was started by `python -c`, as tests may be, none is noted
    )
    return process


@pytest.mark.parametrize("refusal", [StoreFull("no room for a note"), StoreTimeout("no answer"), OSError("no folder")])
async def test_a_start_whose_note_is_refused_is_a_start_all_the_same(yard, refusal):
    """It is read for cures alone."""
    await a_process(yard, yard.store).start()  # the set of jobs is noted with the first start
    [before] = await yard.store.notes(START)
    faulty = FaultyStore(yard.store)
    faulty.fail("put_notes", refusal)

    process = a_process(yard, faulty)
    await process.start()

    assert faulty.struck == ["put_notes"]
    assert await yard.store.notes(START) == [before]
    assert process.declared._registry.unwritten("tick") is None, "what is missing later was deleted"
    assert await yard.stored() == ({"tick": 5}, set())


@pytest.mark.parametrize("program", ["python app.py", ""], ids=["named", "typed"])
async def test_a_start_in_a_deleted_folder_is_a_start_all_the_same(yard, tmp_path, monkeypatch, program):
    """Without a current folder neither the place of a script nor that of a command is known."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["app.py"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    process = a_process(yard, yard.store)
    process.registrar.program = program

    await process.start()

    assert await yard.store.notes(START) == []
    assert await yard.stored() == ({"tick": 5}, set())


async def test_a_start_whose_set_of_jobs_cannot_be_noted_fails_and_takes_nothing_away(yard):
    """Of two that start at once the second one learns of the first by that note."""
    await yard.leave(await yard.start(1, old=5, tick=5))
    faulty = FaultyStore(yard.store)
    faulty.fail("put_notes", StoreFull("no room for a note"))

    with pytest.raises(StoreFull):
        await a_process(yard, faulty).start()

    assert await yard.stored() == ({"tick": 5, "old": 5}, set())

    await a_process(yard, faulty).start()
    assert await yard.stored() == ({"tick": 5}, {"old"})
