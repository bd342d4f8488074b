"""The file has a mistake: who looks at the store, or wants the text before back, is not stopped by it."""

import asyncio
import shutil

import pytest

from pollux import Pollux
from pollux.config import load_config
from tests.acceptance.hostile import CERTIFICATES
from tests.acceptance.terminal import SameProcess

RIGHT = 'store: sqlite:///p.db\njobs: [{id: a, python: "work:fine", interval: 1h}]\n'
MISTAKES = ("pool: {seats: ten}\n", "foo: 1\n", "pool: 5\n", "leader: {ttl: soon, renew: [1]}\n", "server: {port: x}\n")
LOOKS = (("jobs",), ("why", "a"), ("nodes",), ("reload", "--versions"))
WITH_API = {"POLLUX_SERVER": "true"}
SAID = "pollux.yaml has mistakes"


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A folder with a file, and a store on which it was served once."""
    folder = tmp_path_factory.mktemp("started")
    pollux = SameProcess(folder)
    pollux.write("pollux.yaml", RIGHT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))

        async def serve():
            async with Pollux.from_config(load_config("pollux.yaml", environ={})):
                pass

        asyncio.run(serve())
    return folder


@pytest.fixture
def pollux(started, tmp_path):
    folder = tmp_path / "here"
    shutil.copytree(started, folder)
    return SameProcess(folder)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_who_looks_is_told_of_the_mistake_and_sees_the_store_that_is_named(pollux, mistake):
    pollux.write("pollux.yaml", RIGHT + mistake)
    for command in LOOKS:
        answer = pollux(*command)
        assert (answer.code, answer.err.count(SAID)) == (0, 1), (command, answer)
    assert pollux.ok("jobs", "--json").json["jobs"][0]["id"] == "a"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_rollback_goes_to_the_text_that_holds(pollux, mistake):
    pollux.write("pollux.yaml", RIGHT + mistake)
    pollux.ok("reload", "--rollback")
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT
    assert SAID not in pollux.ok("jobs").err


@pytest.mark.parametrize("text", ["store: [\n", "store: 5: 6\n", "store: {a: 1}\n", "store: nowhere://x\n"])
def test_where_nobody_can_tell_the_store_it_must_be_named(pollux, text):
    pollux.write("pollux.yaml", text)
    assert pollux("jobs").code == 2
    refused = pollux("reload", "--rollback")
    assert (refused.code, "name it with --store" in refused.err) == (2, True), refused
    pollux.ok("reload", "--rollback", "--store", "sqlite:///p.db")
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT


IN_ENVIRONMENT = (
    {"POLLUX_SEATS": "ten"},
    {"POLLUX_POOL__SEATZ": "10"},
    {"SCHEDULER_WORKER_POOL_SIZE": "many"},
    {"POLLUX_LEADER_RENEW": "14s"},
    {"POLLUX_SERVER__PORT": "x", "POLLUX_LOG_LEVEL": "loud"},
)


@pytest.mark.parametrize("environ", IN_ENVIRONMENT, ids=str)
def test_a_mistake_in_the_environment_stops_nobody_from_looking(pollux, environ):
    for command in (*LOOKS, ("jobs", "--store", "sqlite:///p.db"), ("pause", "--all")):
        answer = pollux(*command, environ=environ)
        assert answer.code == 0, (command, answer)
        for name in environ:
            assert len([line for line in answer.err.splitlines() if name in line]) == 1, (command, answer)
        assert SAID not in answer.err
    assert pollux.ok("jobs", "--json", environ=environ).json["jobs"][0]["id"] == "a"
    refused = pollux("serve", environ=environ)
    assert (refused.code, next(iter(environ)) in refused.err) == (2, True), "whoever starts by it is stopped"


def test_a_mistake_in_the_environment_and_in_the_file_are_told_each(pollux):
    pollux.write("pollux.yaml", RIGHT + "foo: 1\n")
    answer = pollux.ok("jobs", environ={"POLLUX_SEATS": "ten"})
    assert (answer.err.count(SAID), answer.err.count("POLLUX_SEATS")) == (1, 1)
    pollux.ok("reload", "--rollback", environ={"POLLUX_SEATS": "ten"})
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT


@pytest.mark.parametrize("environ", [{"POLLUX_STORE": "nowhere://x"}, {"SCHEDULER_VERSION": "new"}], ids=str)
def test_a_variable_that_says_which_store_is_meant_and_cannot_be_used_stops(pollux, environ):
    answer = pollux("jobs", environ=environ)
    assert (answer.code, next(iter(environ)) in answer.err) == (2, True)


def test_the_doctor_names_a_mistake_in_the_environment_and_goes_on(pollux):
    (pollux.folder / "pollux.yaml").unlink()
    (pollux.folder / "p.db").rename(pollux.folder / "pollux.db")
    found = pollux("doctor", "--json", environ={"POLLUX_SEATS": "ten"}).json["findings"]
    by_name = {finding["about"]: finding for finding in found}
    assert (by_name["config"]["level"], by_name["schema"]["level"]) == ("fail", "ok")
    assert "POLLUX_SEATS" in by_name["config"]["seen"]


# the file is gone


@pytest.mark.parametrize("words", [(), ("-c", "pollux.yaml"), ("--store", "sqlite:///p.db")], ids=str)
def test_a_file_that_is_gone_comes_back_by_a_rollback(pollux, words):
    """The text that was applied last lies beside the store, and names it."""
    (pollux.folder / "pollux.yaml").unlink()
    answer = pollux.ok("reload", "--rollback", *words)
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT
    assert "pollux.yaml was removed; the text of it that was applied last is " in answer.err
    assert len(pollux.ok("reload", "--versions", "--json", *words).json["versions"]) == 1


def test_a_wrong_variable_stops_nobody_from_getting_a_lost_file_back(pollux):
    (pollux.folder / "pollux.yaml").unlink()
    for command in (("reload", "--versions"), ("reload", "--rollback")):
        answer = pollux.ok(*command, environ={"POLLUX_SEATS": "ten"})
        assert answer.err.count("POLLUX_SEATS") == 1, answer
        assert "(left out here)" in answer.err
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT


def test_the_texts_of_a_file_that_is_gone_are_listed(pollux):
    (pollux.folder / "pollux.yaml").unlink()
    assert len(pollux.ok("reload", "--versions", "--json").json["versions"]) == 1


def test_where_texts_of_two_stores_lie_the_store_must_be_named(pollux):
    (pollux.folder / "pollux.yaml").unlink()
    shutil.copytree(pollux.folder / "p.db.versions", pollux.folder / "q.db.versions")
    refused = pollux("reload", "--rollback", "-c", "pollux.yaml")
    assert (refused.code, "--store" in refused.err) == (2, True), refused
    pollux.ok("reload", "--rollback", "-c", "pollux.yaml", "--store", "sqlite:///p.db")
    assert (pollux.folder / "pollux.yaml").read_text() == RIGHT


def test_reload_names_all_mistakes_of_options_and_jobs_at_once(pollux):
    wrong = 'pool: {seats: ten}\nfoo: 1\njobs: [{id: a, python: "work:fine", interval: soon}]\n'
    pollux.write("pollux.yaml", "store: sqlite:///p.db\n" + wrong)
    for command in (("reload",), ("reload", "--dry-run"), ("check",)):
        answer = pollux(*command)
        assert answer.code == 2, (command, answer)
        assert all(word in answer.err for word in ("pool.seats", "unknown key 'foo'", "soon")), (command, answer)


def test_the_doctor_looks_at_the_store_all_the_same(pollux):
    pollux.write("pollux.yaml", RIGHT + "pool: {seats: ten}\n")
    found = {finding["about"]: finding["level"] for finding in pollux("doctor", "--json").json["findings"]}
    assert (found["config"], found["schema"]) == ("fail", "ok")


@pytest.mark.parametrize("tls", ["{cert: none.pem, key: none.key}", "{cert: good.pem, key: none.key}"])
def test_a_certificate_that_is_not_there_is_told_before_anybody_starts(tmp_path, tls):
    pollux = SameProcess(tmp_path)
    shutil.copy(CERTIFICATES / "good.pem", tmp_path)
    pollux.write("pollux.yaml", f"store: sqlite:///new.db\nserver: {{tls: {tls}}}\n")
    for command in (("check",), ("serve", "--server")):
        answer = pollux(*command, environ=WITH_API)
        assert answer.code == 2, answer
        assert "pollux.yaml:2" in answer.err, answer
        assert "none.key cannot be used: No such file" in answer.err, answer
    assert not (tmp_path / "new.db").exists()
    found = {finding["about"]: finding for finding in pollux("doctor", "--json", environ=WITH_API).json["findings"]}
    assert found["api"]["level"] == "fail"


def test_a_certificate_that_fits_its_key_is_right(tmp_path):
    pollux = SameProcess(tmp_path)
    pollux.write("pollux.yaml", f"server: {{tls: '{CERTIFICATES}/good.pem, {CERTIFICATES}/server.key'}}\n")
    assert pollux.ok("check", environ=WITH_API).err == ""
