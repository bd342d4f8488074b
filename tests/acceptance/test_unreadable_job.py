"""A job that cannot be read: all others are listed, it is named, and what needs only its id can be done.

On each store with a real server or file; the job is as a newer release would write it, or spoilt by hand.
"""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.cli.top.screen import Top
from pollux.client.rpc_codec import packed_answer, raised, record_of, verb_of
from pollux.errors import Conflict, Illegible, NotFound, StoreError, Unreadable
from pollux.events import JobUnreadable
from pollux.model import Done, Interval, Job, RunState
from pollux.store.contract import RunFilter
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import settlement
from tests.acceptance.api_world import api_of
from tests.acceptance.terminal import SameProcess
from tests.chaos.yard import wait_until
from tests.runtime.fakes import Heard
from tests.store.test_leader_unreadable_records import InPostgres, InRedis, InSqlite

WHY = "Invalid enum value 'newest'"


@pytest.fixture(params=[InSqlite, InPostgres, InRedis], ids=["sqlite", "postgres", "redis"])
def hand(request, tmp_path):
    return request.param(tmp_path)


def an_app(url):
    app = Pollux(url, name="old")

    @app.handler
    async def h(ctx): ...

    return app


@pytest.fixture
async def app(hand):
    """Three jobs, of which a newer release has put `x`; one run of it waits."""
    app = an_app(hand.url)
    await app.open()
    await app.put_jobs([a_job(name) for name in ("w", "x", "y")])
    await app.enqueue("x", id="run-of-x")
    await of_a_newer_release(hand, "x")
    yield app
    await app.close()


def a_job(name):
    return Job(id=name, handler="h", schedule=Interval(3_600_000))


async def of_a_newer_release(hand, job_id):
    text, _ = await hand.definition(job_id)
    await hand.define(job_id, bytes(text).replace(b'"handler":', b'"overlap":"newest","handler":'))


async def waits(app):
    return [run.id for run in (await app.operations.runs.list_runs(RunFilter(states=(RunState.READY,)))).runs]


# verbs


async def test_the_others_are_listed_and_it_is_named(app):
    page = await app.operations.jobs.list_jobs()

    assert [job.id for job in page.jobs] == ["w", "y"]
    [(name, why, *_)] = page.unreadable
    assert (name, WHY in why) == ("x", True)
    assert [row.job.id for row in (await app.operations.status.overview()).rows] == ["w", "y"]
    assert [None if job is None else job.id for job in await app.operations.jobs.jobs_by_id(["w", "x", "z"])] == [
        "w",
        None,
        None,
    ]
    found = await app.operations.jobs.find_job("x")
    assert isinstance(found, Unreadable)
    with pytest.raises(NotFound, match="there is no job 'z'"):
        await app.operations.jobs.find_job("z")


async def test_pages_go_on_behind_it(app):
    names, unreadable, after, is_more = [], [], None, True
    while is_more:
        page = await app.operations.jobs.list_jobs(after=after, limit=1)
        names += [job.id for job in page.jobs]
        unreadable += [job.name for job in page.unreadable]
        after, is_more = page.next, page.next is not None

    assert (names, unreadable) == (["w", "y"], ["x"]), "each on one page"


async def test_why_says_that_it_cannot_be_read_and_what_to_do(app):
    of_job, of_run = await app.why("x"), await app.why("run-of-x")

    assert (of_job.answer, of_run.answer) == ("unreadable", "unreadable")
    assert of_job.reason.startswith("it cannot be read here (")
    assert of_run.reason.startswith("its job x cannot be read here (")
    for each in (of_job, of_run):
        assert WHY in each.reason
        assert "pollux jobs delete x" in each.cure


async def test_it_is_paused_resumed_and_cancelled_by_its_id(app):
    assert await app.pause("x") == "stop:job:x"
    assert [stop.key for stop in await app.operations.pauses.stops()] == ["stop:job:x"]
    assert await app.resume("x")
    assert [answer.id for answer in await app.cancel("x")] == ["run-of-x"]
    assert await waits(app) == []
    assert (await app.why("run-of-x")).answer == "cancelled"
    for verb in (app.pause, app.cancel):
        with pytest.raises(NotFound):
            await verb("z")


async def test_another_is_put_in_its_place(app, hand):
    await app.put_jobs([a_job("x")])

    assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["w", "x", "y"]
    assert (await app.operations.jobs.get_job("x")).revision == 3
    [line] = (await app.operations.audit.list_audit(newest=True, limit=1)).lines
    assert (line.action, line.subject) == ("put", "x")
    assert line.detail.startswith("now: every 1h"), "it was there, and nobody knows how"


async def test_it_is_deleted_with_what_waits_of_it(app):
    await app.operations.jobs.delete_jobs(["x", "w"])

    assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["y"]
    assert (await app.operations.jobs.list_jobs()).unreadable == ()
    assert await waits(app) == []


async def test_who_wants_to_run_it_or_see_it_is_told_why_not(app):
    for call in (app.operations.jobs.get_job, app.run_now, app.enqueue):
        with pytest.raises(Illegible, match=r"job 'x' cannot be read \(Invalid enum value 'newest'"):
            await call("x")


async def test_what_was_spoilt_by_hand_is_no_worse(app, hand):
    await hand.define("x", b"what")

    assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["w", "y"]
    assert (await app.why("x")).answer == "unreadable"
    await app.operations.jobs.delete_jobs(["x"])
    assert (await app.operations.jobs.list_jobs()).unreadable == ()


async def test_a_version_is_left_with_it_by_name(app):
    with pytest.raises(Conflict, match=r"3 jobs \(w, y, x\)"):
        await app.operations.versions.finish_version(2)


# the API


async def test_the_api_lists_the_others_and_does_what_needs_its_id(app):
    ask = api_of(app)
    listed = await ask.ok("GET", "/api/v2/jobs")

    assert [job["id"] for job in listed["jobs"]] == ["w", "y"]
    assert [(each["id"], WHY in each["reason"]) for each in listed["unreadable"]] == [("x", True)]
    assert (await ask.ok("GET", "/api/v2/jobs/x/why"))["answer"] == "unreadable"
    assert (await ask.ok("GET", "/api/v2/runs/run-of-x/why"))["answer"] == "unreadable"
    for verb in ("pause", "resume", "cancel"):
        said = (await ask.ok("POST", f"/api/v2/jobs/x/{verb}", {}))["message"]
        assert f"; this node cannot read it ({WHY}" in said, verb
    assert (await ask("GET", "/api/v2/jobs/z")).status == 404


async def test_the_api_tells_nobody_to_try_again_what_it_cannot_read(app):
    ask = api_of(app)
    for method, path, body in (
        ("GET", "/api/v2/jobs/x", None),
        ("POST", "/api/v2/jobs/x/force-run", {}),
        ("POST", "/api/v2/runs", {"job_id": "x"}),
    ):
        refused = await ask(method, path, body)
        assert (refused.status, "retry-after" in refused.headers) == (409, False), path
        assert "job 'x' cannot be read" in refused.json["detail"]
        assert "put it again or delete it" in refused.json["cure"]


@pytest.mark.parametrize("headers", [{}, {"if-match": "*"}, {"if-match": '"2"'}])
async def test_the_api_puts_another_in_its_place(app, headers):
    answer = await api_of(app)("PUT", "/api/v2/jobs/x", {"handler": "h", "interval": "1m"}, headers=headers)

    assert (answer.status, answer.json["id"], answer.json["revision"]) == (200, "x", 3)


async def test_the_api_refuses_a_put_over_another_revision_of_it(app):
    body = {"handler": "h", "interval": "1m", "revision": 1}

    assert (await api_of(app)("PUT", "/api/v2/jobs/x", body)).status == 409


async def test_the_api_deletes_it(app):
    ask = api_of(app)
    await ask.ok("DELETE", "/api/v2/jobs/x")

    assert "unreadable" not in await ask.ok("GET", "/api/v2/jobs")


async def test_the_api_answers_each_run_of_a_batch_by_itself(app):
    body = {"runs": [{"job_id": "w"}, {"job_id": "x"}]}

    items = (await api_of(app).ok("POST", "/api/v2/runs/batch", body))["items"]

    assert [item["answer"] for item in items] == ["ok", "refused"]
    assert "job 'x' cannot be read" in items[1]["problem"]["detail"]


# the command line


async def test_the_command_line_names_it_and_does_what_needs_its_id(app, hand, tmp_path):
    terminal = SameProcess(tmp_path)

    async def ok(*words):
        answer = await asyncio.to_thread(terminal, *words, "--store", hand.url)
        assert answer.code == 0, answer
        return answer

    named = f"job x cannot be read here ({WHY}"
    listed = await ok("jobs")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == ["w", "y"]
    assert named in listed.err
    [told] = (await ok("jobs", "--json")).json["unreadable"]
    assert (told["id"], WHY in told["why"]) == ("x", True)
    assert "it cannot be read here" in (await ok("why", "x")).out
    for command in (("pause",), ("resume",), ("jobs", "cancel")):
        assert named in (await ok(*command, "x")).err, command
    assert named in (await ok("jobs", "cancel", "--source", "api", "--yes")).err, "whether it is meant nobody knows"
    assert named in (await ok("plan")).err
    assert named in (await ok("simulate", "--for", "1h")).err
    assert (await ok("top", "--json")).json["counts"]["jobs"] == 3
    assert (await ok("jobs", "move", "x", "--to-version", "3")).out == "1 job moved to version 3: x\n"
    assert "deleted x" in (await ok("jobs", "delete", "x")).out
    assert (await ok("jobs")).err == ""


async def test_the_live_screen_shows_the_others_and_says_what_is_there_besides(app, hand):
    screen = Top(hand.url)
    await screen._read(app.operations)

    assert list(screen.rows) == ["w", "y"]
    assert screen._title() == "2 jobs and 1 that cannot be read (x), by id"


# from afar


async def test_what_cannot_be_read_travels_as_it_is_and_who_wants_it_gets_the_same_words(app):
    for name, answer in (
        ("list_jobs", await app.operations.jobs.list_jobs()),
        ("find_job", await app.operations.jobs.find_job("x")),
    ):
        for is_masked in (True, False):
            assert verb_of(name).read(packed_answer(answer, is_masked=is_masked)) == answer
    with pytest.raises(Illegible) as caught:
        await app.operations.jobs.get_job("x")
    again = raised(record_of(caught.value))
    assert (type(again), str(again)) == (StoreError, str(caught.value))


# nodes


async def test_an_older_node_starts_and_leaves_alone_what_a_newer_release_made_of_its_job(hand):
    def build():
        app, ran = Pollux(hand.url, name="shop"), []

        @app.job(every("1h"))
        async def theirs(ctx): ...

        @app.job(every("200ms"))
        async def ours(ctx):
            ran.append(ctx.run.id)

        return app, ran, Heard(app.events, JobUnreadable)

    first, _, _ = build()
    async with first:
        pass
    await of_a_newer_release(hand, "theirs")
    kept = await hand.definition("theirs")
    node, ran, heard = build()
    async with node:

        async def goes_on():
            return len(ran) >= 2

        await wait_until(goes_on, "its other job to run")
        for _ in range(3):
            await node._registrar.turn()
        assert await hand.definition("theirs") == kept
        assert [(said.source, said.job_id) for said in heard.all] == [("code:shop", "theirs")]
        [diff] = await node.diff()
        assert f"  job theirs  cannot be read here ({WHY}" in "\n".join(diff.lines())
        await node.operations.jobs.delete_jobs(["theirs"])
        for _ in range(2):  # whatever the loop itself was about to do
            await node._registrar.turn()
        assert (await node.operations.jobs.get_job("theirs")).source == "code:shop", (
            "once it is gone, it is declared anew"
        )


async def test_a_newer_node_has_soon_what_an_older_one_handed_back(hand, app):
    """Both claim at the same time, by the store's own clock; the older one meets it first."""
    whole, _ = await hand.definition("w")
    newer = open_store(hand.url)
    await newer.open()
    try:
        before_ms = (await newer.elect("new", ttl_ms=60_000)).now_ms
        taken = await app.backend.claim(node="old", token="old", limit=9, lease_ms=60_000)
        assert taken.runs == ()
        [back] = await app.backend.get_runs(["run-of-x"])
        # It was handed back between the two; the claim looked again after that.
        assert before_ms + 1_000 <= back.visible_ms < taken.now_ms + 2_000
        await hand.define("x", bytes(whole).replace(b'"id":"w"', b'"id":"x"'))

        async def is_had():
            got = await newer.claim(node="new", token="new", limit=9, lease_ms=60_000, wait_ms=5_000)
            await newer.settle([settlement(run, Done()) for run in got.runs])
            return [run.id for run in got.runs] == ["run-of-x"]

        await wait_until(is_had, "the newer node to have it")
    finally:
        await newer.close()
