"""Values that every entry point refuses: they could be written, but not read, found or bounded any more."""

import threading

import pytest
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.errors import Conflict, InvalidInput, PolluxError, StoreError
from pollux.ids import firing_id
from pollux.model import Interval, Job, RunState
from tests.runtime.test_app import finished, until

HALF = "\ud800"  # half a character: no file and no line can hold it
JOB = Job(id="job", handler="work")


@pytest.fixture(params=["memory", "sqlite"])
def app(request, tmp_path):
    app = Pollux("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/pollux.db", lease="1s")

    @app.job()
    async def work(ctx, **params): ...

    return app


async def opened(app):
    await app.open()
    await app.put_jobs([replace(JOB, handler="work", id="work", source="code:app")])


@pytest.mark.parametrize("id", ["", HALF, "a\0b", "x" * 201, 5, firing_id("work", 1_800_000_000_000)])
async def test_an_id_that_is_none_or_could_be_a_firings_is_refused(app, id):
    await opened(app)
    with pytest.raises(InvalidInput, match="run id"):
        await app.enqueue("work", id=id)
    assert (await app.operations.runs.list_runs()).runs == ()
    await app.close()


@pytest.mark.parametrize("key", ["", HALF, "x" * 201, 5])
async def test_a_key_that_is_no_short_text_is_refused(app, key):
    await opened(app)
    with pytest.raises(InvalidInput, match="key"):
        await app.enqueue("work", key=key)
    await app.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"overlap": "sometimes"},
        {"misfire": "perhaps"},
        {"enabled": 7},
        {"tags": ("a\x1fb",)},
        {"tags": (5,)},
        {"timeout_ms": "1s"},
        {"schedule": Interval("often")},
        {"release": 2**70},
        {"release": -1},
        {"name": "x" * 201},
        {"target": HALF},
        {"group": "two words"},
        {"source": ""},
        {"source_id": "a\nb"},
    ],
    ids=str,
)
async def test_a_job_made_by_hand_that_nobody_could_read_again_is_refused(app, wrong):
    await app.open()
    with pytest.raises(InvalidInput, match="job 'job'"):
        await app.put_jobs([replace(JOB, **wrong)])
    assert (await app.operations.jobs.list_jobs()).jobs == ()
    await app.close()


async def test_what_somebody_says_is_cut_and_made_writable(app):
    await opened(app)
    run = await app.enqueue("work", delay="1h")
    await app.cancel(run.id, reason=HALF + "x" * 5_000)
    assert len((await app.get_run(run.id)).cancel) == 1_000
    await app.pause("work", reason=HALF)
    await app.operations.jobs.delete_jobs(["work"], reason=HALF)
    for name in ({"group": HALF}, {"group": "x" * 300}, {"target": HALF}, {"target": ""}):
        with pytest.raises(InvalidInput):
            await app.pause(**name)
    await app.close()


async def test_a_name_that_cannot_be_written_is_found_nowhere(app):
    await opened(app)
    for ask in (app.why, app.cancel, app.get_run, app.operations.jobs.get_job):
        with pytest.raises(PolluxError):
            await ask(HALF)
    await app.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"params": {"x": object()}},
        {"params": {"x": HALF}},
        {"params": {"x": "x" * 300_000}},
        {"priority": 9},
        {"key": 5},
        {"key": "x" * 300},
    ],
    ids=lambda wrong: str(wrong)[:20],
)
async def test_a_follow_up_that_no_store_takes_fails_in_its_handler_and_not_at_its_end(app, wrong):
    said = []

    @app.job(retry=False)
    async def parent(ctx):
        said.append(ctx.attempt)
        ctx.enqueue("work", **wrong)

    async with app:
        ended = await finished(app, (await app.enqueue(parent)).id)
    assert (ended.state, ended.lease_losses, said) == (RunState.DEAD, 0, [1])
    assert ended.error.startswith("InvalidInput: ")


async def test_an_app_that_cannot_start_lets_go_of_everything_and_can_be_started_again(tmp_path):
    app = Pollux(f"sqlite:///{tmp_path}/pollux.db")

    @app.job(every("1h"), id="mine")
    async def mine(ctx): ...

    await app.open()
    await app.put_jobs([Job(id="mine", handler="mine")])
    await app.close()
    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(Conflict):
            await app.start()

    async def no_thread_is_left():
        return not set(threading.enumerate()) - before

    await until(no_thread_is_left, "the store is closed")
    assert not any(app.events._by_kind.values()), "nobody listens any more"

    await app.open()
    await app.operations.jobs.delete_jobs(["mine"])
    async with app:
        await until(lambda: app.operations.jobs.get_job("mine"), "it is declared")


async def test_an_app_that_was_open_before_it_could_not_start_stays_open(tmp_path):
    app = Pollux(f"sqlite:///{tmp_path}/pollux.db")

    @app.job(every("1h"), id="mine")
    async def mine(ctx): ...

    await app.open()
    await app.put_jobs([Job(id="mine", handler="mine")])
    with pytest.raises(Conflict):
        await app.start()
    assert (await app.operations.status.counts()).jobs == 1
    await app.close()


def test_blocking_calls_that_fail_leave_no_thread_behind(tmp_path):
    (tmp_path / "pollux.db").write_text("no database at all")
    app = Pollux(f"sqlite:///{tmp_path}/pollux.db")
    for _ in range(3):
        with pytest.raises(StoreError):
            app.blocking.why("home")
    assert [thread.name for thread in threading.enumerate() if thread.name == "pollux-blocking"] == []


def test_a_busy_store_can_say_who_keeps_it_before_our_own_patience_ends(tmp_path):
    """Both count from the same call: the handle's deadline alone would answer every busy store with silence."""
    store = Pollux(f"sqlite:///{tmp_path}/pollux.db")._store
    assert store.deadline_ms > store.backend.database.deadline_ms
