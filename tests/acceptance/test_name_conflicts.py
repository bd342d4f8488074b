"""Two different files called pollux.yaml, and two plain programs, on one store: real processes, every cure."""

import contextlib
import subprocess
import sys

import pytest

from tests.acceptance.forked import BEAT
from tests.acceptance.terminal import SameProcess, eventually, stopped
from tests.servers import postgres, redis

QUIET = ("--no-server", "--no-watch")
OFTEN = {BEAT: "500"}  # a start beside another node waits for its next heartbeat
PROGRAM = """
from msgspec.structs import replace
from pollux import Pollux, every

app = Pollux("{url}")
app.options = replace(app.options, beat_ms=500)


async def nothing(ctx): ...


for name in {names!r}:
    app.handler(nothing, name=name)
    app.add(name, every("1h"))

if __name__ == "__main__":
    app.run({how})
"""


@pytest.fixture
def url(request, tmp_path):
    match getattr(request, "param", "sqlite"):
        case "redis":
            return redis.own_url("named")
        case "postgres":
            return postgres.own_url("named")
    return f"sqlite:///{tmp_path}/p.db"


def text(url, *ids, more=""):
    jobs = "".join(f'\n  - {{id: {job_id}, python: "platform:node", interval: 1h}}' for job_id in ids)
    return f"store: {url}\n{more}jobs:{jobs or ' []'}\n"


class World:
    """Folders with a file of the same name each, and questions to the store."""

    def __init__(self, tmp_path, url):
        self.url, self.tmp_path = url, tmp_path
        self.stack = contextlib.ExitStack()

    def at(self, name) -> SameProcess:
        (self.tmp_path / name).mkdir(exist_ok=True)
        return SameProcess(self.tmp_path / name)

    def serve(self, name, *words):
        """One that holds; its log goes to a file."""
        here = self.at(name)
        log = self.stack.enter_context((here.folder / "log").open("ab"))
        return self.stack.enter_context(here.started("serve", *QUIET, *words, environ=OFTEN, stderr=log))

    def run(self, name, ids, how=""):
        """A program of its own: `python app.py`, with `app.run()` at its end."""
        here = self.at(name)
        here.write("app.py", PROGRAM.format(url=self.url, names=ids, how=how))
        log = self.stack.enter_context((here.folder / "log").open("ab"))
        process = subprocess.Popen([sys.executable, "app.py"], cwd=here.folder, env=here.environ(), stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def log(self, name):
        return (self.tmp_path / name / "log").read_text()

    def refused(self, name, *words):
        """A start that ends by itself."""
        with self.at(name).started("serve", *QUIET, *words, environ=OFTEN, text=True) as process:
            _, err = process.communicate(timeout=120)
        assert process.returncode == 1, err
        assert "Traceback" not in err
        return err

    def jobs(self):
        answer = self.at("asking")("jobs", "--json", "--store", self.url)
        return {job["id"] for job in answer.json["jobs"]} if answer.code == 0 else set()

    def holds(self, process, *ids):
        eventually(lambda: self.jobs() == set(ids), f"the jobs are {ids}", process)

    def ask(self, *words):
        return self.at("asking").ok(*words, "--store", self.url)


@pytest.fixture
def world(tmp_path, url):
    world = World(tmp_path, url)
    with world.stack:
        yield world


@pytest.mark.parametrize("url", ["sqlite", "redis", "postgres"], indirect=True)
def test_two_files_of_one_name_do_not_take_each_others_jobs_and_every_cure_works(world):
    world.at("one").write("pollux.yaml", text(world.url, "a", "b"))
    first = world.serve("one")
    world.holds(first, "a", "b")
    asked = world.ask("enqueue", "a", "--delay", "1h", "--json").json["run"]["id"]

    two = world.at("two")
    two.write("pollux.yaml", text(world.url, "c"))
    err = world.refused("two")
    assert "file:pollux.yaml: 2 jobs (a, b) would go that a living node may still declare (" in err
    for cure in ("`name: shop`", "a higher `release`", "--replace"):
        assert cure in err
    assert world.jobs() == {"a", "b"}
    assert world.ask("runs", "show", asked, "--json").json["run"]["state"] == "ready"

    two.write("pollux.yaml", text(world.url, "c", more="name: two\n"))
    second = world.serve("two")
    world.holds(second, "a", "b", "c")
    assert stopped(second).code == 0

    world.at("three").write("pollux.yaml", text(world.url, "d"))
    third = world.serve("three", "--replace")
    world.holds(third, "c", "d")
    assert world.ask("runs", "show", asked, "--json").json["run"]["state"] == "cancelled"
    world.at("four").write("pollux.yaml", text(world.url, "e", more="release: 4\n"))
    fourth = world.serve("four")
    world.holds(fourth, "c", "e")
    for process in (first, third, fourth):
        assert stopped(process).code == 0


def test_two_files_of_one_name_that_were_both_there_before_do_not_take_each_others_jobs(world):
    for name, ids in (("b", ("b1",)), ("a", ("a1", "a2"))):
        world.at(name).write("pollux.yaml", text(world.url, *ids))
        node = world.serve(name)
        world.holds(node, *ids)
        assert stopped(node).code == 0
    living = world.serve("b")
    world.holds(living, "b1")
    world.ask("enqueue", "b1", "--delay", "10m", "--id", "keepme")
    assert "1 job (b1) would go that a living node may still declare (" in world.refused("a")
    assert world.jobs() == {"b1"}
    assert world.ask("runs", "show", "keepme", "--json").json["run"]["state"] == "ready"
    assert stopped(living).code == 0
    back = world.serve("a")
    world.holds(back, "a1", "a2")
    assert stopped(back).code == 0


def test_an_edited_file_that_loses_most_jobs_is_not_read_in_until_it_is_said(world):
    six = tuple("abcdef")
    one = world.at("one")
    one.write("pollux.yaml", text(world.url, *six))
    node = world.serve("one")
    world.holds(node, *six)

    one.write("pollux.yaml", text(world.url, "z"))  # as an editor that lost the rest
    eventually(lambda: "changes nothing" in world.log("one"), "the reload was refused", node)
    assert "6 jobs (a, b, c, d, e, ...) would go, of the 6 that file:pollux.yaml has" in world.log("one")
    assert world.jobs() == set(six)

    dry = one("reload", "--dry-run")
    assert dry.code == 1
    assert "- job f" in dry.out
    assert "! refused without --replace: 6 jobs" in dry.out
    assert "would be refused without --replace" in dry.err
    assert one("reload").code == 1
    assert one.ok("reload", "--dry-run", "--replace").out.count("- job") == 6
    assert world.jobs() == set(six)
    assert "! refused without --replace" in one.ok("check", "--diff").out
    one.ok("reload", "--replace")
    world.holds(node, "z")
    assert stopped(node).code == 0


def test_two_nodes_of_one_edited_file_follow_it_without_a_word(world):
    six = tuple("abcdef")
    one = world.at("one")
    one.write("pollux.yaml", text(world.url, *six))
    nodes = [world.serve("one"), world.serve("one")]
    world.holds(nodes[0], *six)
    eventually(lambda: len(world.ask("nodes", "--json").json["nodes"]) == 2, "both live", nodes[1])
    for ids in (six[1:], six[2:], six):
        one.write("pollux.yaml", text(world.url, *ids))
        world.holds(nodes[0], *ids)
        eventually(lambda wanted=ids: _declared(world) == {len(wanted)}, "both have it", nodes[1])
    for process in nodes:
        assert stopped(process).code == 0
    assert "refused" not in world.log("one")
    assert "changes nothing" not in world.log("one")


def _declared(world):
    nodes = world.ask("nodes", "--json").json["nodes"]
    return {each["jobs"] for node in nodes for each in node["declares"] if each["source"] == "file:pollux.yaml"}


def test_two_plain_programs_do_not_take_each_others_jobs(world):
    """Whether `pollux serve` starts them, or they are `python app.py` with `app.run()` at the end."""
    world.at("one").write("one.py", PROGRAM.format(url=world.url, names=["a", "b"], how=""))
    world.at("two").write("two.py", PROGRAM.format(url=world.url, names=["c"], how=""))
    first = world.serve("one", "--app", "one:app")
    world.holds(first, "a", "b")
    asked = world.ask("enqueue", "a", "--delay", "1h", "--json").json["run"]["id"]
    alone = world.run("alone", ["c"])
    served = world.refused("two", "--app", "two:app")
    assert alone.wait(120) == 1
    for err in (served, world.log("alone")):
        assert "code:app: 2 jobs (a, b) would go that a living node may still declare (" in err
        assert "Pollux(name=...)" in err
        assert "app.run(replace=True)" in err
        assert "Traceback" not in err
    assert world.jobs() == {"a", "b"}
    assert world.ask("runs", "show", asked, "--json").json["run"]["state"] == "ready"
    second = world.serve("two", "--app", "two:app", "--replace")
    world.holds(second, "a", "b", "c")
    assert stopped(second).code == 0
    third = world.run("third", ["d"], how="replace=True")
    world.holds(third, "a", "b", "c", "d")
    assert world.ask("runs", "show", asked, "--json").json["run"]["state"] == "ready"
    for process in (third, first):
        assert stopped(process).code == 0


def _with_code(world, name, *ids, code, source):
    here = world.at(name)
    here.write("jobs.py", f"def run(ctx):\n    return {code!r}\n")
    jobs = "".join(f'\n  - {{id: {job_id}, python: "jobs:run", interval: 1h}}' for job_id in ids)
    here.write("pollux.yaml", f"store: {world.url}\nname: {source}\njobs:{jobs}\n")
    return world.serve(name)


def _code_finding(world):
    found = world.at("asking")("health", "--json", "--store", world.url).json["findings"]
    return [each for each in found if each["name"] == "code"]


def test_two_files_with_different_code_under_one_handler_name_are_told_of_it(world):
    first = _with_code(world, "one", "a", code="one", source="one")
    world.holds(first, "a")
    second = _with_code(world, "two", "b", code="two", source="two")
    world.holds(second, "a", "b")
    eventually(lambda: len(world.ask("nodes", "--json").json["nodes"]) == 2, "both live", second)
    [found] = _code_finding(world)
    assert found["level"] == "degraded"
    assert found["seen"].startswith("handler jobs:run: node ")
    for source in ("(file:one)", "(file:two)"):
        assert source in found["seen"]
    assert "scheduler_version" in found["cure"]
    eventually(lambda: "have different code under this name" in world.log("two"), "the second says so", second)
    assert "have different code under this name" in world.at("asking")("doctor", "--store", world.url).out
    for process in (second, first):
        assert stopped(process).code == 0


@pytest.mark.parametrize(("code", "source"), [("one", "two"), ("next", "one")], ids=["same code", "a deploy"])
def test_the_same_code_in_two_folders_and_other_code_of_one_source_are_no_finding(world, code, source):
    first = _with_code(world, "one", "a", code="one", source="one")
    world.holds(first, "a")
    second = _with_code(world, "two", "a" if source == "one" else "b", code=code, source=source)
    eventually(lambda: len(world.ask("nodes", "--json").json["nodes"]) == 2, "both live", second)
    assert _code_finding(world) == []
    for process in (second, first):
        assert stopped(process).code == 0
    assert "different code" not in world.log("one") + world.log("two")
