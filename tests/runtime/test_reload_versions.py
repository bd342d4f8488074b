"""The texts that were applied are kept, and any of them can be applied again."""

import os
import stat
import sys

import pytest

from pollux.config.file_history import KEPT_MAX, FileHistory
from pollux.errors import Conflict, InvalidConfig, InvalidInput, NotFound
from tests.runtime.reload_world import FIRST, SECOND, all_jobs, an_app, planned


async def test_the_last_texts_are_kept_for_their_owner_alone(here):
    async with an_app("sqlite:///p.db") as app:
        for n in range(12):
            (here / "p.yaml").write_text(f"pool: {{seats: {n + 10}}}\n")
            await app.operations.config_file.reload()
            await app.operations.config_file.reload()
        kept = await app.operations.config_file.file_versions()
    assert len(kept) == KEPT_MAX
    assert [each.read().decode().split()[-1] for each in kept] == [f"{n + 10}}}" for n in range(2, 12)]
    folder = here / "p.db.versions" / "p.yaml"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}


async def test_what_was_left_open_to_others_is_shut_by_the_next_start(here):
    async with an_app("sqlite:///p.db"):
        pass
    folder = here / "p.db.versions" / "p.yaml"
    [kept] = folder.iterdir()
    for each, mode in ((folder.parent, 0o755), (folder, 0o750), (kept, 0o644)):
        each.chmod(mode)
    async with an_app("sqlite:///p.db"):
        pass
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder, kept)] == [0o700, 0o700, 0o600]


async def test_a_rollback_puts_the_text_before_back_and_makes_it_hold(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").chmod(0o640)
        os.chown(here / "p.yaml", -1, os.getgid())
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        await app.operations.config_file.reload()

        answer = await app.operations.as_actor("ann").config_file.rollback()

        assert (here / "p.yaml").read_text() == FIRST
        assert stat.S_IMODE((here / "p.yaml").stat().st_mode) == 0o640
        assert (answer.removed, answer.changed, app.runtime.pool.seats) == (1, 1, 3)
        after = await all_jobs(app)
        assert (after["a"], set(after)) == (before["a"], {"a", "b"})
        await app.operations.config_file.rollback()
        assert (here / "p.yaml").read_text() == SECOND, "again: back to the newer one"
        first = (await app.operations.config_file.file_versions())[0]
        await app.operations.config_file.rollback(first.digest[:6])
        assert (here / "p.yaml").read_text() == FIRST
        with pytest.raises(NotFound):
            await app.operations.config_file.rollback("ffff")
        assert [line.actor for line in (await app.operations.audit.list_audit()).lines if line.action == "reload"][
            1
        ] == "ann"


async def test_a_rollback_from_a_file_with_a_mistake_goes_to_what_holds(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text("jobs: [")
        with pytest.raises(InvalidConfig):
            await app.operations.config_file.reload()
        answer = await app.operations.config_file.rollback()
        assert (here / "p.yaml").read_text() == FIRST
        assert answer.is_empty


async def test_a_text_that_no_longer_fits_is_not_put_back(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text("pool: {seats: 5}\n")
        await app.operations.config_file.reload()
        sys.modules["reload_work"].__dict__.pop("one")
        with pytest.raises(InvalidConfig, match="has no 'one'"):
            await app.operations.config_file.rollback()
        assert (here / "p.yaml").read_text() == "pool: {seats: 5}\n"


async def test_a_link_and_a_file_that_nobody_may_write_are_not_written(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text(SECOND)
        await app.operations.config_file.reload()
        (here / "p.yaml").chmod(0o444)
        with pytest.raises(InvalidInput, match="cannot be written"):
            await app.operations.config_file.rollback()
        (here / "real.yaml").write_text(SECOND)
        (here / "p.yaml").unlink()
        (here / "p.yaml").symlink_to("real.yaml")
        with pytest.raises(InvalidInput, match="is a link to real"):
            await app.operations.config_file.rollback()
        assert (here / "real.yaml").read_text() == SECOND


async def test_versions_that_cannot_be_kept_stop_nothing(here):
    (here / "p.db.versions").write_text("in the way")
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text(SECOND)
        assert (await app.operations.config_file.reload()).added == 1
        assert await app.operations.config_file.file_versions() == []
        with pytest.raises(Conflict, match="no other text") as refused:
            await app.operations.config_file.rollback()
        assert "change the file itself" in refused.value.cure


def test_without_a_file_as_store_they_lie_beside_the_config(tmp_path):
    versions = FileHistory(tmp_path / "p.yaml")
    versions.keep(b"a", 1)
    versions.keep(b"b", 1)
    assert (tmp_path / ".p.yaml.versions").is_dir()
    assert [each.read() for each in versions.all()] == [b"a", b"b"], "in order, also within a millisecond"
    (tmp_path / ".p.yaml.versions" / "notes.txt").write_text("somebody's own")
    assert len(versions.all()) == 2
