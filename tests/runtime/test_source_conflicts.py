"""Two files or programs of one name on one store: neither removes what the other declares, unless confirmed."""

import asyncio
import platform
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.app.declarations import HAD_MAX
from pollux.app.process import has_started
from pollux.errors import Conflict
from pollux.events import CodeDiffers, JobsDiffer, ReloadRefused
from pollux.model import SETTLED_MS, SOURCE, Node, NotePut, RunState, declares
from pollux.store.contract import JobPut
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import Heard, settle_down
from tests.runtime.reload_world import all_jobs, an_app
from tests.runtime.test_app import PATIENCE
from tests.runtime.test_releases import Yard
from tests.servers import postgres, redis

TTL_MS = 45_000


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    match request.param:
        case "redis":
            return redis.own_url("name")
        case "postgres":
            return postgres.own_url("name")
    return f"sqlite:///{tmp_path}/p.db"


def text(*ids, **options):
    jobs = "".join(f'\n  - {{id: {job_id}, python: "platform:node", interval: 1h}}' for job_id in ids)
    said = "".join(f"{name}: {value}\n" for name, value in options.items())
    return f"{said}jobs:{jobs or ' []'}\n"


def write(path, *ids, **options):
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(text(*ids, **options))


def a_file(url, path, *ids, **options):
    write(path, *ids, **options)
    return an_app(url, path)


SIX = tuple("abcdef")


# two files


async def test_another_file_of_the_name_is_refused_and_nothing_of_the_first_is_lost(here, url):
    async with a_file(url, "one/p.yaml", "a", "b") as first:
        asked = await first.enqueue("a", delay="1h")
        before = await all_jobs(first)
        second = a_file(url, "two/p.yaml", "c")
        with pytest.raises(Conflict) as refused:
            await second.start()

        words = str(refused.value)
        assert words.startswith(
            f"file:p.yaml: 2 jobs (a, b) would go that a living node may still declare ({first.node_id})"
        )
        for cure in ("`name: shop`", "a higher `release`", "--replace"):
            assert cure in words
        after = await all_jobs(first)
        assert {job.id: job.revision for job in after.values()} == {job.id: job.revision for job in before.values()}
        assert (await first.get_run(asked.id)).state is RunState.READY
        assert [node.id for node in await first.operations.status.nodes()] == [first.node_id]


@pytest.mark.parametrize(
    ("options", "how", "left"),
    [({"name": "shop"}, {}, {"a", "b", "c"}), ({"release": 1}, {}, {"c"}), ({}, {"replace": True}, {"c"})],
    ids=["name", "release", "replace"],
)
async def test_each_cure_works(here, url, options, how, left):
    async with a_file(url, "one/p.yaml", "a", "b") as first:
        second = a_file(url, "two/p.yaml", "c", **options)
        await second.start(**how)
        try:
            assert set(await all_jobs(first)) == left
        finally:
            await second.close()


async def test_what_was_replaced_does_not_come_back_unasked(here, url):
    first = a_file(url, "one/p.yaml", "x", "y")
    await first.start()
    second = a_file(url, "two/p.yaml", *SIX)
    await second.start(replace=True)
    await first.close()
    with pytest.raises(Conflict, match=r"6 jobs .* would go that a living node may still declare"):
        await an_app(url, "one/p.yaml").start()
    assert set(await all_jobs(second)) == set(SIX)
    await second.close()
    with pytest.raises(Conflict, match=r"6 jobs .* would go, of the 6 that file:p.yaml has"):
        await an_app(url, "one/p.yaml").start()
    async with an_app(url, "two/p.yaml") as again:
        assert set(await all_jobs(again)) == set(SIX)


async def test_a_file_that_only_adds_jobs_is_not_refused_and_takes_none_away_later(here, url):
    async with a_file(url, "one/p.yaml", "a"), a_file(url, "two/p.yaml", "a", "b") as second:
        write("two/p.yaml", "b")
        await second.operations.config_file.reload()
        assert set(await all_jobs(second)) == {"b"}, "the first one's text is an earlier one of this source"


async def test_the_edit_of_a_node_that_was_replaced_takes_nothing_from_the_one_that_holds(here, url):
    async with a_file(url, "one/p.yaml", "a", "b") as first:
        second = a_file(url, "two/p.yaml", "c", "d")
        await second.start(replace=True)
        write("one/p.yaml", "a")
        with pytest.raises(Conflict, match="2 jobs \\(c, d\\) would go that a living node may still declare"):
            await first.operations.config_file.reload()
        assert set(await all_jobs(first)) == {"c", "d"}
        write("two/p.yaml", "d")
        await second.operations.config_file.reload()
        assert set(await all_jobs(first)) == {"d"}
        await second.close()


# one file


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_two_nodes_that_read_one_edited_file_again_do_not_refuse_each_other(here, url, order):
    write("p.yaml", *SIX)
    async with an_app(url) as one, an_app(url) as two:
        nodes, heard = (one, two), [Heard(app.events, ReloadRefused) for app in (one, two)]
        for ids in (SIX[1:], SIX[2:], (*SIX[2:], "new")):
            write("p.yaml", *ids)
            for number in order:
                await nodes[number].operations.config_file.reload()
            assert set(await all_jobs(one)) == set(ids)
        assert [each.all for each in heard] == [[], []]


async def test_a_node_that_missed_an_edit_follows_the_one_that_did_not(here, url):
    """Each has a copy of the file, and one of the copies skips a text."""
    async with a_file(url, "one/p.yaml", *SIX) as one, a_file(url, "two/p.yaml", *SIX) as two:
        write("one/p.yaml", *SIX[1:])
        await one.operations.config_file.reload()
        write("two/p.yaml", *SIX[2:])
        with pytest.raises(Conflict, match=r"1 job \(b\) would go that a living node may still declare"):
            await two.operations.config_file.reload()  # it cannot know that the other one's text was an edit of its own
        write("one/p.yaml", *SIX[2:])
        await one.operations.config_file.reload()
        await two.operations.config_file.reload()
        assert set(await all_jobs(one)) == set(SIX[2:])
        assert two.reloader.refused == ()


async def test_a_single_node_may_restart_with_an_edited_file(here, url):
    for ids in (SIX, SIX[1:], (*SIX[1:], "g"), SIX[:3]):
        async with a_file(url, "p.yaml", *ids) as app:
            assert set(await all_jobs(app)) == set(ids)


async def test_most_jobs_go_only_if_it_is_said_and_a_text_that_held_before_may_come_back(here, url):
    async with a_file(url, "p.yaml", *SIX) as app:
        assert set(await all_jobs(app)) == set(SIX)
    with pytest.raises(Conflict, match=r"6 jobs \(a, b, c, d, e, \.\.\.\) would go, of the 6 that file:p.yaml has"):
        await a_file(url, "p.yaml", "z").start()
    app = a_file(url, "p.yaml", "z")
    await app.start(replace=True)
    assert set(await all_jobs(app)) == {"z"}
    await app.close()
    many = [f"k{n}" for n in range(6)]
    async with a_file(url, "p.yaml", "z", *many):
        pass
    async with a_file(url, "p.yaml", "z") as back:
        assert set(await all_jobs(back)) == {"z"}


# texts that were there before


async def _had(url, *texts):
    """Each was started and stopped, in a folder of its own."""
    for number, ids in enumerate(texts):
        async with a_file(url, f"had{number}/p.yaml", *ids):
            pass


async def test_a_text_that_was_there_before_takes_nothing_from_a_living_node_either(here, url):
    await _had(url, ("b",), ("a1", "a2"))
    async with a_file(url, "b/p.yaml", "b") as living:
        asked = await living.enqueue("b", delay="10m")
        with pytest.raises(
            Conflict, match=r"1 job \(b\) would go that a living node may still declare \(.*`name: shop`.*--replace"
        ):
            await a_file(url, "a/p.yaml", "a1", "a2").start()
        assert set(await all_jobs(living)) == {"b"}
        assert (await living.get_run(asked.id)).state is RunState.READY
        assert [node.id for node in await living.operations.status.nodes()] == [living.node_id]


@pytest.mark.parametrize(
    ("options", "how", "left"),
    [({"name": "shop"}, {}, {"a", "b"}), ({"release": 1}, {}, {"a"}), ({}, {"replace": True}, {"a"})],
    ids=["name", "release", "replace"],
)
async def test_each_cure_works_for_a_text_that_was_there_before(here, url, options, how, left):
    await _had(url, ("b",), ("a",))
    async with a_file(url, "b/p.yaml", "b") as living:
        app = a_file(url, "a/p.yaml", "a", **options)
        await app.start(**how)
        try:
            assert set(await all_jobs(living)) == left
        finally:
            await app.close()


async def test_a_text_that_was_there_before_may_come_back_where_nobody_has_another_one(here, url):
    await _had(url, SIX, (*SIX[:3], "x"))
    async with a_file(url, "p.yaml", *SIX) as app, a_file(url, "else/p.yaml", *SIX):
        assert set(await all_jobs(app)) == set(SIX)


async def test_an_old_text_is_refused_while_the_new_one_lives_and_then_it_may_come(here, url):
    await _had(url, ("a",))
    async with a_file(url, "p.yaml", "a", "b"):
        with pytest.raises(Conflict, match=r"1 job \(b\) would go that a living node may still declare"):
            await a_file(url, "old/p.yaml", "a").start()
    async with a_file(url, "old/p.yaml", "a") as back:
        assert set(await all_jobs(back)) == {"a"}


async def test_a_rollback_of_a_living_node_and_restarts_after_it_work(here, url):
    write("p.yaml", *SIX[:2])
    one, two = an_app(url), an_app(url)
    await one.start()
    await two.start()
    write("p.yaml", *SIX)
    for app in (one, two):
        await app.operations.config_file.reload()
    refused = [Heard(app.events, ReloadRefused) for app in (one, two)]
    assert (await one.operations.config_file.rollback()).removed == 4
    await two.operations.config_file.reload()
    assert set(await all_jobs(one)) == set(SIX[:2])
    await two.close()
    async with an_app(url) as again:
        await one.close()
        async with an_app(url):
            assert set(await all_jobs(again)) == set(SIX[:2])
    assert [each.all for each in refused] == [[], []]


async def test_nodes_with_a_copy_of_the_file_each_are_restarted_after_a_rollback_of_one(here, url):
    """The other one still has the text that was rolled back; a start with the one that holds takes nothing from it."""
    one = a_file(url, "one/p.yaml", "a")
    await one.start()
    write("one/p.yaml", "a", "b")
    await one.operations.config_file.reload()
    async with a_file(url, "two/p.yaml", "a", "b") as two:
        await one.operations.config_file.rollback()
        assert set(await all_jobs(one)) == {"a"}
        await one.close()
        await two.backend.put_jobs([JobPut(job) for job in two.declared_jobs()])  # as a write that crossed it
        async with an_app(url, "one/p.yaml") as again:
            assert set(await all_jobs(again)) == {"a", "b"}
            with pytest.raises(Conflict, match=r"would go that a living node may still declare"):
                await a_file(url, "three/p.yaml", "c").start()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_an_edit_that_is_taken_back_is_followed_by_a_node_that_missed_it(here, url, order):
    """Each has a copy of the file: of one file either node would read on by itself what the other one made hold."""
    paths = ("one/p.yaml", "two/p.yaml")
    async with a_file(url, paths[0], "a", "b") as one, a_file(url, paths[1], "a", "b") as two:
        nodes, heard = (one, two), [Heard(app.events, ReloadRefused) for app in (one, two)]
        for missed, wanted in (((*SIX, "x"), ("a", "b")), (("a",), ("a", "b"))):
            write(paths[0], *missed)
            await one.operations.config_file.reload()
            for number in order:
                write(paths[number], *wanted)
                await nodes[number].operations.config_file.reload()
            assert set(await all_jobs(one)) == set(wanted)
        assert [each.all for each in heard] == [[], []]


async def test_a_text_with_the_same_jobs_as_before_takes_none_from_a_living_node(here, url):
    async with a_file(url, "one/p.yaml", "a") as one, a_file(url, "two/p.yaml", "a", "b") as two:
        asked = await two.enqueue("b", delay="1h")
        write("one/p.yaml", "a", job_timeout="9m")
        assert (await one.operations.config_file.reload()).removed == 0
        assert set(await all_jobs(two)) == {"a", "b"}
        assert (await two.get_run(asked.id)).state is RunState.READY
        assert (await one.operations.config_file.reload(replace=True)).removed == 1
        assert set(await all_jobs(two)) == {"a"}


async def test_without_a_node_a_text_that_was_there_before_takes_nothing_from_a_living_one(here, url):
    await _had(url, ("a",))
    async with a_file(url, "one/p.yaml", "b") as node:
        alone = a_file(url, "two/p.yaml", "a")
        await alone.open()
        with pytest.raises(Conflict, match=r"1 job \(b\) would go"):
            await alone.operations.config_file.reload()
        assert set(await all_jobs(node)) == {"b"}
        await alone.close()


async def test_a_reload_that_takes_most_away_is_refused_and_what_held_goes_on(here):
    """On a store of one process, too."""
    async with a_file("memory://", "p.yaml", *SIX) as app:
        heard = Heard(app.events, ReloadRefused)
        asked = await app.enqueue("a", delay="1h")
        write("p.yaml", "z")
        for _ in range(2):
            with pytest.raises(Conflict, match="6 jobs"):
                await app.operations.config_file.reload()
        assert set(await all_jobs(app)) == set(SIX)
        assert (await app.get_run(asked.id)).state is RunState.READY
        assert len(heard.all) == 1
        assert "6 jobs" in app.reloader.refused[0]
        assert {job.id for job in app.declared_jobs()} == set(SIX)

        would = await app.operations.config_file.reload(dry_run=True)
        assert would.lines[-1].startswith("! refused without --replace: 6 jobs")
        assert (would.removed, would.refused) == (6, would.lines[-1].removeprefix("! refused without --replace: "))
        draft = await app.operations.config_file.reload(dry_run=True, text=text("y"), called="new.yaml")
        assert "6 jobs" in draft.refused
        would = await app.operations.config_file.reload(dry_run=True, replace=True)
        assert (would.removed, would.refused, would.lines[-1]) == (6, "", "- job f")
        assert set(await all_jobs(app)) == set(SIX)

        assert (await app.operations.config_file.reload(replace=True)).removed == 6
        assert set(await all_jobs(app)) == {"z"}
        assert app.reloader.refused == ()
        assert (await app.operations.config_file.rollback()).added == 6


async def test_a_rollback_that_is_refused_leaves_the_file_as_it_was(here):
    async with a_file("sqlite:///p.db", "p.yaml", "z") as app:
        write("p.yaml", "z", *SIX)
        await app.operations.config_file.reload(replace=True)  # the first set is no longer known
        holds = (here / "p.yaml").read_text()
        with pytest.raises(Conflict, match="6 jobs"):
            await app.operations.config_file.rollback()
        assert (here / "p.yaml").read_text() == holds
        assert (await app.operations.config_file.rollback(replace=True)).removed == 6
        assert set(await all_jobs(app)) == {"z"}


async def test_the_difference_to_a_store_says_what_would_be_refused(here, url):
    async with a_file(url, "p.yaml", *SIX):
        for ids, is_refused in (((*SIX[1:], "g"), False), (("z",), True)):
            app = a_file(url, "else/p.yaml", *ids)
            await app.open()
            [diff] = await app.diff()
            assert any(line.startswith("! refused without --replace") for line in diff.lines()) is is_refused
            await app.close()


async def test_without_a_node_a_reload_is_as_a_start(here, url):
    """`pollux reload` on a machine where none runs, while one elsewhere declares the jobs."""
    async with a_file(url, "one/p.yaml", "a", "b") as node:
        alone = a_file(url, "two/p.yaml", "c")
        await alone.open()
        with pytest.raises(Conflict, match="2 jobs"):
            await alone.operations.config_file.reload()
        assert set(await all_jobs(node)) == {"a", "b"}
        await alone.operations.config_file.reload(replace=True)
        assert set(await all_jobs(node)) == {"c"}
        await alone.close()


async def test_only_so_many_sets_are_remembered_and_what_cannot_be_read_is_none(here):
    async with a_file("sqlite:///p.db", "p.yaml", "a") as app:
        for number in range(HAD_MAX + 3):
            write("p.yaml", "a", f"b{number}")
            await app.operations.config_file.reload()
        [note] = await app.backend.notes(SOURCE)
        assert note.key == "source:2:file:p.yaml"
        assert len(note.value["had"]) == HAD_MAX
        for value in ({"had": "x"}, "junk", {}):
            await app.backend.put_notes([NotePut(note.key, value)])
            write("p.yaml", "a", "b" if value else "c")
            await app.operations.config_file.reload()
        assert set(await all_jobs(app)) == {"a", "c"}


# two programs


def a_program(url, *ids, **options):
    app = Pollux(url, **options)
    for job_id in ids:
        app.handler(_nothing, name=job_id)
        app.add(job_id, every("1h"), id=job_id)
    return app


async def _nothing(ctx):
    """A handler of the tests."""


async def test_another_plain_program_is_refused_and_nothing_of_the_first_is_lost(url):
    async with a_program(url, "a", "b") as first:
        asked = await first.enqueue("a", delay="1h")
        second = a_program(url, "c")
        with pytest.raises(
            Conflict, match=r"code:app: 2 jobs \(a, b\) would go.*Pollux\(name=\.\.\.\).*app.run\(replace=True\)"
        ):
            await second.start()
        jobs = await all_jobs(first)
        assert {job.id: job.declared for job in jobs.values()} == {"a": True, "b": True}
        assert (await first.get_run(asked.id)).state is RunState.READY
        async with a_program(url, "c", name="other"):
            assert set(await all_jobs(first)) == {"a", "b", "c"}


async def test_of_two_plain_programs_that_live_neither_retires_the_others_jobs(url):
    """The second one said so; what the first one declares is left to it as long as it lives."""
    async with a_program(url, "a", "b") as first:
        second = a_program(url, "c")
        await second.start(replace=True)
        asked = await first.enqueue("a", delay="1h")
        for app in (first, second, first):
            app._registrar._looks = 2
            await app._registrar.turn()
        assert all(job.declared for job in (await all_jobs(first)).values())
        assert set(await all_jobs(first)) == {"a", "b", "c"}
        assert (await first.get_run(asked.id)).state is RunState.READY
        await second.close()


async def test_a_program_that_was_there_before_is_refused_beside_a_living_one_with_other_jobs(url):
    for ids in (("b",), ("a1", "a2")):
        async with a_program(url, *ids):
            pass
    async with a_program(url, "b") as living:
        asked = await living.enqueue("b", delay="10m")
        with pytest.raises(Conflict, match=r"code:app: 1 job \(b\) would go that a living node may still declare"):
            await a_program(url, "a1", "a2").start()
        assert {job.id for job in (await all_jobs(living)).values() if job.declared} == {"b"}
        assert (await living.get_run(asked.id)).state is RunState.READY


async def test_a_program_that_replaced_a_living_one_may_restart_and_that_one_may_not(url):
    async with a_program(url, "a", "b") as first:
        second = a_program(url, "c")
        await second.start(replace=True)
        for app in (first, second, first):
            app._registrar._looks = 2
            await app._registrar.turn()
        await second.close()
        async with a_program(url, "c") as again:
            declared = {job.id for job in (await all_jobs(again)).values() if job.declared}
            assert declared == {"a", "b", "c"}, "what the living one declares is left to it"
            with pytest.raises(Conflict, match=r"would go that a living node may still declare"):
                await a_program(url, "d").start()


async def test_a_program_that_keeps_half_starts_beside_a_living_one_and_nothing_of_that_is_lost(url):
    """Milder than for files, of which no job may go; what the living one declares is left to it."""
    async with a_program(url, "a", "b") as old:
        asked = await old.enqueue("a", delay="1h")
        async with a_program(url, "b", "c") as new:
            for app in (new, old, new):
                app._registrar._looks = 2
                await app._registrar.turn()
            assert {job.id for job in (await all_jobs(old)).values() if job.declared} == {"a", "b", "c"}
            assert (await old.get_run(asked.id)).state is RunState.READY


async def test_a_program_that_keeps_less_than_half_is_refused_beside_a_living_one(url):
    async with a_program(url, "a", "b", "c") as old:
        with pytest.raises(Conflict, match=r"code:app: 2 jobs \(a, b\) would go"):
            await a_program(url, "c", "d").start()
        assert {job.id for job in (await all_jobs(old)).values() if job.declared} == {"a", "b", "c"}


async def test_a_list_of_a_program_that_loses_most_of_its_jobs_is_confirmed_once_and_those_are_retired(tmp_path):
    """As the page on 10,000 URLs tells: it is started again with another list, and nobody else lives."""
    url = f"sqlite:///{tmp_path}/list.db"
    async with a_program(url, *SIX):
        pass
    with pytest.raises(Conflict, match=r"5 jobs \(b, c, d, e, f\) would go, of the 6 that code:app has"):
        await a_program(url, "a").start()
    app = a_program(url, "a")
    await app.start(replace=True)
    jobs = await all_jobs(app)
    assert {job.id for job in jobs.values() if job.declared} == {"a"}
    assert set(jobs) == set(SIX), "retired ones are kept"
    await app.close()


# at the same moment


async def test_of_two_files_that_start_at_once_the_second_one_is_refused():
    """It has read that the store is empty, and writes only after the first one has."""
    yard = await Yard().open()
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    faulty.delay("put_jobs", gate)
    second = yard.process(0, name="file:x", store=faulty, c=10)
    starting = asyncio.ensure_future(second.start())
    await settle_down()
    await yard.start(0, name="file:x", a=10, b=10)
    gate.set()
    with pytest.raises(Conflict, match="2 jobs"):
        await starting
    await yard.store.beat(second.node, ttl_ms=0)
    assert {"a", "b"} <= set((await yard.stored("file:x"))[0])
    await yard.pass_time(2)
    assert (await yard.stored("file:x"))[0] == {"a": 10, "b": 10}, "what it had written is gone"


async def test_a_look_of_a_file_that_holds_takes_nothing_from_a_living_node():
    yard = await Yard().open()
    first = await yard.start(0, name="file:x", a=10)
    second = yard.process(0, name="file:x", b=10)
    await second.beat()
    await second.declared.write(yard.store, second.node, replace=True)
    await yard.store.put_jobs([JobPut(job) for job in first.declared.jobs()])  # as a write that crossed it
    yard.living.append(second)
    await yard.pass_time(2)
    assert (await yard.stored("file:x"))[0] == {"a": 10, "b": 10}
    await yard.leave(first)
    await yard.pass_time(2)
    assert (await yard.stored("file:x"))[0] == {"b": 10}


# nodes that may be dead


async def _other_node(app, *, ttl_ms):
    """A node of the same name with other jobs, as the beat of one that was killed lies in the store."""
    mark = declares("code:app", 0, ["a", "b"])
    await app.backend.beat(Node("other:1", declares=(mark,)), ttl_ms=ttl_ms)


async def test_a_start_waits_until_a_killed_node_of_the_old_text_is_gone(url):
    async with a_program(url, "a", "b"):
        pass
    app, said = a_program(url, "c"), []
    await app.open()
    await _other_node(app, ttl_ms=2_000)
    async with asyncio.timeout(PATIENCE):
        assert await has_started(app, asyncio.Event(), said.append)
    waits, takes = said
    assert waits.endswith(
        "waiting up to 48 s for a heartbeat of node other:1: if one comes, this start ends; "
        "if none comes, or all stop, it replaces them, Ctrl-C stops"
    )
    assert takes == "no longer alive: node other:1; this start replaces them, and their jobs"
    assert {job.id: job.declared for job in (await all_jobs(app)).values()} == {"a": False, "b": False, "c": True}
    await app.close()


async def test_a_start_is_refused_once_that_node_has_beaten_again(url):
    async with a_program(url, "a", "b"):
        pass
    app = a_program(url, "c")
    await app.open()

    await _other_node(app, ttl_ms=TTL_MS)

    async def beats():
        while True:
            await asyncio.sleep(0.2)
            await _other_node(app, ttl_ms=TTL_MS)

    beating = asyncio.create_task(beats())
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Conflict, match=r"other:1"):
                await has_started(app, asyncio.Event(), lambda words: None)
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await app.close()


async def test_a_start_ends_at_last_beside_a_node_that_neither_beats_nor_goes(url):
    """One that was told to be given up later than we would be."""
    async with a_program(url, "a", "b"):
        pass
    app = a_program(url, "c")
    app.options = replace(app.options, beat_ms=500, beat_ttl_ms=1_000)
    await app.open()
    await _other_node(app, ttl_ms=3_600_000)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Conflict, match=r"other:1"):
            await has_started(app, asyncio.Event(), lambda words: None)
    await app.close()


@pytest.mark.parametrize(("had", "is_taken"), [(("a", "b"), True), (SIX, False)], ids=["few", "many"])
async def test_a_start_that_waits_takes_the_place_of_a_node_that_stops_meanwhile_as_one_after_it_would(
    here, url, had, is_taken
):
    """And says so; where too many jobs would go it is refused then, too."""
    first, said = a_file(url, "one/p.yaml", *had), []
    await first.start()
    second = a_file(url, "two/p.yaml", "x")
    waits = asyncio.Event()

    def say(words):
        said.append(words)
        waits.set()

    starting = asyncio.create_task(has_started(second, asyncio.Event(), say))
    async with asyncio.timeout(PATIENCE):
        await waits.wait()
        assert f"for a heartbeat of node {first.node_id}: if one comes, this start ends" in said[0]
        assert set(await all_jobs(first)) == set(had)
        gone = first.node_id
        await first.close()
        if is_taken:
            assert await starting
            assert said[1:] == [f"no longer alive: node {gone}; this start replaces them, and their jobs"]
            assert set(await all_jobs(second)) == {"x"}
        else:
            with pytest.raises(Conflict, match=r"6 jobs .* would go, of the 6 that"):
                await starting
            assert len(said) == 1
    await second.close()


# what is told of it


async def _settled(app, monkeypatch):
    """As if the latest text, and the nodes, were there for some time."""
    [note] = await app.backend.notes(SOURCE)
    await app.backend.put_notes([NotePut(note.key, note.value | {"at_ms": 0})])
    monkeypatch.setattr(sys.modules["pollux.model.node"], "SETTLED_MS", -SETTLED_MS)


async def _texts(app):
    app.watch._last = None
    return [each for each in (await app.operations.status.health()).findings if each.name == "texts"]


async def test_a_node_whose_jobs_were_replaced_says_so_and_health_names_both(here, url, monkeypatch):
    async with a_file(url, "one/p.yaml", "a", "b") as first:
        second = a_file(url, "two/p.yaml", "c")
        heard = [Heard(app.events, JobsDiffer) for app in (first, second)]
        await second.start(replace=True)
        for app in (first, second):
            await app._registrar.turn()
            assert await _texts(app) == [], "a deploy may take a minute"
        await _settled(first, monkeypatch)
        for app in (first, second):
            assert app._registrar._odds_at > 0
            app._registrar._odds_at = 0
        one, two = first.node_id, second.node_id
        words = f"file:p.yaml: node {one} declares other jobs than node {two}, which has the latest text"
        for app, told, other in zip((first, second), heard, (second, first), strict=True):
            for _ in range(3):
                await app._registrar.turn()
            assert [(each.source, each.node_id, each.words) for each in told.all] == [
                ("file:p.yaml", other.node_id, words)
            ]
            [finding] = await _texts(app)
            assert (finding.level, finding.seen) == ("degraded", words)
            for cure in ("`name: shop`", "pollux reload", "a higher release"):
                assert cure in finding.cure
        await second.close()
        [finding] = await _texts(first)
        assert finding.seen.endswith("than the latest text, which no living node has")
        await first.operations.config_file.reload(replace=True)
        assert await _texts(first) == []


# two programs with one handler name


def _named_program(url, name, call):
    app = Pollux(url, name=name)
    app.handler(call, name="check")
    app.add("check", every("1h"), id=f"{name}-check")
    return app, Heard(app.events, CodeDiffers)


async def test_each_of_two_programs_with_different_code_under_one_handler_name_says_so_once(url):
    one, heard_by_one = _named_program(url, "one", text)
    two, heard_by_two = _named_program(url, "two", platform.node)
    async with one, two:
        [said] = heard_by_two.all
        assert (said.handlers, said.node_id, said.source) == (("check",), one.node_id, "code:one")
        for _ in range(3):
            await one._registrar.turn()
        [said] = heard_by_one.all
        assert (said.handlers, said.node_id, said.source) == (("check",), two.node_id, "code:two")
        [finding] = [each for each in (await one.operations.status.health()).findings if each.name == "code"]
        assert (finding.level, finding.seen) == ("degraded", said.words)
