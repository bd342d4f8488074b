"""Every way in which a file can change is reported by the system, not by polling."""

import asyncio
import os
from contextlib import suppress
from itertools import count

import pytest

from pollux.app import watchers
from pollux.app.watchers import FileWatch, names_on_the_way

PATIENCE_S = 60.0


class Told:
    def __init__(self):
        self.count, self._event = 0, asyncio.Event()

    def __call__(self):
        self.count += 1
        self._event.set()

    async def again(self):
        async with asyncio.timeout(PATIENCE_S):
            await self._event.wait()
        self._event.clear()


@pytest.fixture
def no_looking(monkeypatch):
    """Only what the system reports counts: the look after the start comes at once, and no other."""
    monkeypatch.setattr(watchers, "LOOK_MS", 3_600_000)
    monkeypatch.setattr(watchers, "SOON_S", 0.0)


async def written_until_told(path, told, times):
    """Write to it until so many changes were told."""
    for _ in range(times):
        told._event.clear()
        async with asyncio.timeout(PATIENCE_S):
            for n in count():
                path.write_text(f"written {n}")
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await told.again()
                        break


async def watched(path, told):
    """A watch that is sure to be set up: of two changes one at most was seen by the look after the start."""
    watch = FileWatch(str(path), told)
    watch.start()
    await written_until_told(path, told, 2)
    async with asyncio.timeout(PATIENCE_S):
        while watch._seen != watchers.signature(str(path)):  # noqa: ASYNC110  the last change may not be told yet
            await asyncio.sleep(0.01)
    told._event.clear()
    return watch


def rename(path):
    path.with_name("new").write_text("renamed")
    path.with_name("new").rename(path)


def write(path):
    path.write_text("written in place")


def delete_and_create(path):
    path.unlink()
    path.write_text("made anew")


def become_a_link(path):
    path.with_name("target").write_text("linked")
    path.with_name("link").symlink_to("target")
    path.with_name("link").rename(path)


@pytest.mark.parametrize("change", [rename, write, delete_and_create, become_a_link])
async def test_a_change_of_the_file_is_told(tmp_path, no_looking, change):
    told = Told()
    path = tmp_path / "p.yaml"
    path.write_text("first")
    watch = await watched(path, told)
    try:
        change(path)
        await told.again()
    finally:
        await watch.stop()


async def test_links_on_the_way_are_told_of_again_and_again(tmp_path, no_looking):
    """`p.yaml -> ..data/p.yaml -> ..1/p.yaml`, the second link swapped; then what lies behind it is written."""
    for n in range(4):
        (tmp_path / f"..{n}").mkdir()
        (tmp_path / f"..{n}" / "p.yaml").write_text(f"text {n}")
    (tmp_path / "..data").symlink_to("..0")
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    told = Told()
    watch = await watched(tmp_path / "p.yaml", told)
    try:
        for n in range(1, 4):
            (tmp_path / "..tmp").symlink_to(f"..{n}")
            (tmp_path / "..tmp").rename(tmp_path / "..data")
            await told.again()
        # The end of the last watch and the start of this one look once each: a third change is heard by the watch.
        await written_until_told(tmp_path / "..3" / "p.yaml", told, 3)
    finally:
        await watch.stop()


async def test_other_files_of_the_folder_are_nobodys_business(tmp_path, no_looking):
    told = Told()
    path = tmp_path / "p.yaml"
    path.write_text("first")
    watch = await watched(path, told)
    try:
        before = told.count
        for n in range(50):
            (tmp_path / "p.db-wal").write_text(str(n))
            await asyncio.sleep(0.01)
        os.utime(tmp_path)
        await asyncio.sleep(watchers.DEBOUNCE_MS / 1_000 + 0.2)
        assert told.count == before
    finally:
        await watch.stop()


async def test_a_file_that_stays_away_is_told_of_once_and_again_when_it_is_back(tmp_path, monkeypatch):
    """Whoever reads it says that it is gone; one that is away for a moment only is being replaced."""
    monkeypatch.setattr(watchers, "STEADY_S", 0.01)
    path = tmp_path / "p.yaml"
    path.write_text("there")
    told = Told()
    watch = FileWatch(str(path), told)
    path.unlink()
    for _ in range(3):
        await watch._look()
    assert told.count == 1
    path.write_text("back")
    await watch._look()
    assert told.count == 2


async def test_without_any_word_of_the_system_it_is_looked_at_now_and_then(tmp_path, monkeypatch):
    """A network drive tells nobody."""
    monkeypatch.setattr(watchers, "LOOK_MS", 200)
    monkeypatch.setattr(
        watchers, "names_on_the_way", lambda _: {str(tmp_path / "other" / "x"): str(tmp_path / "other")}
    )
    (tmp_path / "other").mkdir()
    told = Told()
    path = tmp_path / "p.yaml"
    path.write_text("first")
    watch = FileWatch(str(path), told)
    watch.start()
    try:
        for text in ("second", "third text", "the fourth"):  # one may be seen by the look after the start
            path.write_text(text)
            await told.again()
    finally:
        await watch.stop()


def test_the_names_on_the_way(tmp_path):
    (tmp_path / "releases" / "5").mkdir(parents=True)
    (tmp_path / "releases" / "5" / "p.yaml").symlink_to("../../real.yaml")
    (tmp_path / "real.yaml").write_text("x")
    (tmp_path / "current").symlink_to("releases/5")
    names = names_on_the_way(str(tmp_path / "current" / "p.yaml"))
    assert names == {
        str(tmp_path / "current"): str(tmp_path),
        str(tmp_path / "releases" / "5" / "p.yaml"): str(tmp_path / "releases" / "5"),
        str(tmp_path / "real.yaml"): str(tmp_path),
    }


def test_links_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert set(names_on_the_way(str(tmp_path / "a"))) == {str(tmp_path / "a"), str(tmp_path / "b")}
