"""RPC route of the command line: every verb with its role, its types and its errors, over a real server."""

from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from pollux import Pollux, errors
from pollux.app.health import HealthWatch
from pollux.app.operations.contract import GROUPS, verbs_of
from pollux.client import Remote, address_of
from pollux.client.rpc_codec import LOOKS, PATH, VERSION_HEADER, raised, record_of, verb_of
from pollux.errors import (
    Conflict,
    InvalidConfig,
    InvalidInput,
    NotFound,
    PolluxError,
    StoreError,
    StoreFull,
    StoreRefused,
)
from pollux.model import Job, RunState
from pollux.server import ApiServer, ServerOptions
from pollux.server.auth import Role
from pollux.server.routes.rpc import ROLES
from pollux.store.contract import JobFilter, RunFilter
from pollux.version import __version__

# Verbs that nobody asks from afar, and why.
AT_HOME = {
    **dict.fromkeys(("put_jobs", "put_each", "enqueue_each"), "routes have their rules"),
    **dict.fromkeys(("job_row", "job_rows", "new_row", "reset_breaker", "health"), "routes of their own"),
    **dict.fromkeys(
        ("list_notes", "put_notes", "delete_notes", "store_now"),
        "what the API remembers of its requests, and until when",
    ),
    **dict.fromkeys(("token_records", "tokens_used", "first_token", "needs_first_token"), "the door's own"),
    "drain_here": "what this node has heard; from afar `drained_workers` is asked",
}


@asynccontextmanager
async def server_of(app):
    server = ApiServer(app, ServerOptions(host="127.0.0.1", port=0))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def app():
    app = Pollux("memory://", actor="tests")
    app.handler(lambda ctx, **params: params, name="echo")
    await app.open()
    try:
        yield app
    finally:
        await app.close()


@pytest.fixture
async def asking(app):
    """A `Remote` of any role; None: without a token."""
    remotes = []

    async with server_of(app) as server:

        async def ask_as(role: Role | None) -> Remote:
            token = "" if role is None else (await app.operations.tokens.create_token(role.word)).secret
            remotes.append(Remote(address_of(f"http://127.0.0.1:{server.port}"), token))
            return remotes[-1]

        yield ask_as
        for remote in remotes:
            await remote.close()


# the table


def test_every_verb_can_be_asked_from_afar_or_has_a_reason_why_not():
    named = [name for group in GROUPS.values() for name in verbs_of(group)]
    verbs = set(named)
    assert len(named) == len(verbs), "a name belongs to one group: a request names the verb alone"
    assert verbs - AT_HOME.keys() == ROLES.keys(), "a new verb gets a role in server/routes/rpc.py, or a reason here"
    assert not ROLES.keys() & AT_HOME.keys()
    assert ROLES.keys() >= LOOKS


def test_the_app_has_its_verbs_by_composition():
    assert len([each for each in Pollux.__mro__ if each.__module__.startswith("pollux")]) <= 2


@pytest.mark.parametrize("name", sorted(ROLES))
def test_the_arguments_and_the_answer_of_a_verb_can_travel(name):
    verb = verb_of(name)
    assert verb.unpacked(verb.packed((), {})) == {}
    msgspec.json.Decoder(verb.answer)
    assert "connection" not in verb.names


@pytest.mark.parametrize("name", ["known_job", "as_actor", "store_url", "add", "nonsense", "__init__"])
def test_what_is_no_verb_cannot_be_asked(name):
    with pytest.raises(NotFound):
        verb_of(name)


@pytest.mark.parametrize("role", [None, Role.VIEWER, Role.OPERATOR, Role.ADMIN])
async def test_each_verb_needs_its_role(asking, role):
    """Asked with an argument that no verb has: whoever is let in is told of that, and nothing is done."""
    remote = await asking(role)
    line = remote._line
    walked = list(ROLES.items())
    for name, needed in walked if role is not None else walked[::10]:  # strangers may ask ten times a second
        with pytest.raises(PolluxError) as refused:
            await line.ask("POST", f"{PATH}/{name}", b'{"no such argument": 1}', again=False)
        words = str(refused.value)
        if role is None:
            assert isinstance(refused.value, StoreRefused), name
            assert "pollux token create" in words
        elif role < needed:
            assert f"has the role {role.word}, this needs {needed.word}" in words, name
        else:
            assert "no such argument" in words, name


async def test_hello_says_who_answers_and_whom_it_takes_us_for(asking):
    remote = await asking(Role.VIEWER)
    await remote.open()
    assert remote.hello.version == __version__
    assert remote.store_url == "memory://"
    assert remote.hello.role == "viewer"
    assert remote.hello.name.startswith("token:")


async def test_a_command_line_of_another_version_is_told_so(app, asking):
    remote = await asking(Role.ADMIN)
    root, token = remote.address.root, remote._line._token
    for headers in ({VERSION_HEADER: "0.0.1"}, {}):
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}", **headers}) as session,
            session.post(f"{root}{PATH}/counts", data=b"{}") as response,
        ):
            problem = await response.json(content_type="application/problem+json")
            assert response.status == 409
            assert __version__ in problem["detail"]
            assert (headers.get(VERSION_HEADER) or "not a pollux command") in problem["detail"]
            assert "install" in problem["cure"]


async def test_a_verb_that_is_not_there_is_told_with_the_one_that_was_meant(asking):
    remote = await asking(Role.ADMIN)
    with pytest.raises(StoreRefused, match='did you mean "list_jobs"'):
        await remote._line.ask("POST", f"{PATH}/list_job", b"{}", again=False)


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"limit": "many"}', b'{"limit": NaN}', b"\xff", b"[" * 100_000])
async def test_a_body_that_says_something_else_is_refused_in_words(asking, body):
    remote = await asking(Role.ADMIN)
    with pytest.raises(InvalidInput, match="list_jobs cannot be asked so"):
        await remote._line.ask("POST", f"{PATH}/list_jobs", body, again=False)


# values


async def test_values_come_back_as_what_they_are(app, asking):
    await app.put_jobs([Job(id="home", handler="echo", params={"a": [1, 2.5, None, "ü"]}, tags=("x",))])
    remote = await asking(Role.ADMIN)
    run = await remote.operations.runs.enqueue("home", {"b": 2}, id="first", delay="1h", priority="low")
    assert run == await app.get_run("first")
    assert await remote.operations.jobs.get_job("home") == await app.operations.jobs.get_job("home")
    assert await remote.operations.jobs.list_jobs(JobFilter(tag="x"), limit=5) == await app.operations.jobs.list_jobs(
        JobFilter(tag="x"), limit=5
    )
    states = RunFilter(states=(RunState.READY,))
    assert await remote.operations.runs.list_runs(states) == await app.operations.runs.list_runs(states)
    assert await remote.operations.jobs.jobs_by_id(["home", "gone"]) == await app.operations.jobs.jobs_by_id(
        ["home", "gone"]
    )
    assert await remote.operations.status.counts() == await app.operations.status.counts()
    assert await remote.operations.pauses.pause("home", duration="1h") == "stop:job:home"
    assert await remote.operations.pauses.stops() == await app.operations.pauses.stops()
    assert await remote.operations.status.why("home") == await app.why("home")
    assert await remote.operations.pauses.resume(job=await app.operations.jobs.get_job("home")) is True
    assert await remote.operations.runs.cancel_runs(["first"], reason="enough")
    assert await remote.operations.audit.list_audit(newest=True) == await app.operations.audit.list_audit(newest=True)
    assert await remote.operations.jobs.delete_jobs(["home"]) is None
    assert (await app.operations.jobs.list_jobs()).jobs == ()


async def test_what_is_changed_from_afar_stands_in_the_log_under_the_name_of_the_token(app, asking):
    remote = await asking(Role.OPERATOR)
    await remote.operations.pauses.pause(everything=True)
    [line] = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "pause"]
    assert line.actor.startswith("token:")


async def test_a_password_in_params_is_masked_for_those_who_look_and_whole_for_an_admin(app, asking):
    await app.put_jobs(
        [Job(id="home", handler="echo", params={"password": "hunter22", "deep": {"api_key": "k123456"}})]
    )
    viewer, admin = await asking(Role.VIEWER), await asking(Role.ADMIN)
    assert (await viewer.operations.jobs.get_job("home")).params == {"password": "***", "deep": {"api_key": "***"}}
    [job] = (await viewer.operations.jobs.list_jobs()).jobs
    assert job.params["password"] == "***"
    assert (await admin.operations.jobs.get_job("home")).params["password"] == "hunter22"


async def test_everything_can_be_taken_out_and_put_back_by_an_admin(app, asking):
    await app.put_jobs([Job(id=f"job-{n}", handler="echo", params={"text": "x" * 50_000}) for n in range(25)])
    remote = await asking(Role.ADMIN)
    records = [record async for page in remote.operations.storage.dump() for record in page.records]
    assert len([kind for kind, _ in records if kind == "job"]) == 25
    await app.operations.jobs.delete_jobs([f"job-{n}" for n in range(25)])
    jobs = [record for record in records if record[0] == "job"]  # more than one request may hold
    assert await remote.operations.storage.load(jobs) == 25
    assert await remote.operations.storage.load(jobs) == 0
    assert (await app.operations.jobs.get_job("job-7")).params == {"text": "x" * 50_000}


async def test_nobody_gets_a_trusted_job_by_saying_that_it_is_one_of_a_file(app, asking):
    """Jobs of a file may hold secrets and reach every network."""
    remote = await asking(Role.ADMIN)
    forged = (
        "job",
        {"id": "evil", "handler": "http", "source": "file:pollux.yaml", "params": {"url": "http://10.0.0.1"}},
    )
    with pytest.raises(InvalidInput, match="would be trusted"):
        await remote.operations.storage.load([forged])
    assert (await app.operations.jobs.list_jobs()).jobs == ()


async def test_params_that_cannot_be_stored_are_refused_in_the_words_of_here(asking):
    remote = await asking(Role.OPERATOR)
    with pytest.raises(InvalidInput) as refused:
        await remote.operations.runs.enqueue("home", {"a": "${env:HOME}"})
    assert str(refused.value).startswith("params.a: references to secrets are not resolved")


# errors


class Unheard(Conflict):
    """Of somebody's own."""


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("it is wrong", where="jobs[0].id", cure="write another"),
        InvalidInput("it is wrong"),
        InvalidConfig([InvalidInput("a", where="x"), InvalidInput("b", cure="c")]),
        NotFound("job", "home", cure="`pollux jobs` lists them"),
        Conflict("it has a live run"),
        StoreFull("no room"),
        errors.StoreBusy("busy"),
        errors.StoreTimeout("late"),
        StoreRefused("not ours"),
        StoreError("no"),
        PolluxError("anything"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_raised_again_as_what_it_was(error):
    again = raised(msgspec.json.decode(msgspec.json.encode(record_of(error)), type=type(record_of(error))))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again).keys() == vars(error).keys()


def test_an_error_of_a_class_that_is_not_known_there_is_one_of_the_class_above():
    assert type(raised(record_of(Unheard("no")))) is Conflict


async def test_errors_come_over_as_they_are_raised(app, asking):
    remote = await asking(Role.ADMIN)
    for verb, arguments in (
        ("get_job", ("nope",)),
        ("get_run", ("nope",)),
        ("pause", ()),
        ("compare", ((1, 99),)),
        ("finish_version", (77,)),
    ):
        named = {"since_ms": 0} if verb == "compare" else {}
        group = verb_of(verb).group
        with pytest.raises(PolluxError) as here:
            await getattr(getattr(app.operations, group), verb)(*arguments, **named)
        with pytest.raises(PolluxError) as there:
            await getattr(getattr(remote.operations, group), verb)(*arguments, **named)
        assert type(there.value) is type(here.value), verb
        assert str(there.value) == str(here.value)


async def test_a_full_line_is_told_at_once_and_not_waited_for(asking, app):
    """Its status is that of the limiter, who says wait; this one says no."""
    app.operations.context.ready_max = 1
    await app.put_jobs([Job(id="home", handler="echo")])
    remote = await asking(Role.OPERATOR)
    await remote.operations.runs.enqueue("home")
    with pytest.raises(StoreFull, match="1 runs wait"):
        await remote.operations.runs.enqueue("home")


async def test_health_is_told_while_the_store_is_down(asking, monkeypatch):
    """A hello needs no store, so that a node that has lost its own can still be asked how it does."""

    async def down(*_):
        raise StoreError("the store is away")

    remote = await asking(Role.VIEWER)
    await remote.open()
    monkeypatch.setattr(Pollux, "sealed", down)
    monkeypatch.setattr(HealthWatch, "_read", down)
    await remote.open()
    found = await remote.operations.status.health_document()
    assert found["status"] == "unhealthy"
    [store] = [finding for finding in found["findings"] if finding["name"] == "store"]
    assert "the store is away" in store["seen"]
