"""A changed file reaches a running `pollux serve`: by its name, by a link, by a signal, by a command."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, Terminal, eventually, is_heard, read_until, stopped
from tests.servers import postgres, redis

QUIET = ("--no-server", "--no-watch")


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def text(*ids, seats=3, store="sqlite:///p.db") -> str:
    jobs = "".join(f'\n  - {{id: {job_id}, python: "work:fine", interval: 1h}}' for job_id in ids)
    return f"store: {store}\npool: {{seats: {seats}}}\njobs:{jobs or ' []'}\n"


def swap(folder, name, words) -> None:
    """As editors and deployments do: a new file is renamed over the old one."""
    (folder / f"{name}.new").write_text(words)
    (folder / f"{name}.new").rename(folder / name)


def asking(pollux) -> SameProcess:
    """Questions in this process: a start of Python for each would take longer than what is waited for."""
    return SameProcess(pollux.folder)


def ids_of(pollux, store="sqlite:///p.db") -> set[str]:
    answer = asking(pollux)("jobs", "--json", "--store", store)
    return {row["id"] for row in answer.json["jobs"]} if answer.code == 0 else set()


def holds(pollux, ids, process, store="sqlite:///p.db") -> None:
    eventually(lambda: ids_of(pollux, store) == set(ids), f"the jobs are {ids}", process)


def test_a_file_that_is_renamed_over_the_old_one_holds_at_once(pollux):
    pollux.write("p.yaml", text("a", "b"))
    said = pollux.folder / "said.txt"
    with said.open("wb") as log, pollux.started("serve", "-c", "p.yaml", *QUIET, stderr=log) as process:
        holds(pollux, "ab", process)
        swap(pollux.folder, "p.yaml", text("a", "c", seats=7))
        holds(pollux, "ac", process)
        swap(pollux.folder, "p.yaml", "jobs: [{id: a, cron: nonsense}]")
        eventually(lambda: "changes nothing" in said.read_text(), "it is refused", process)
        swap(pollux.folder, "p.yaml", text("a", "d", seats=7))
        holds(pollux, "ad", process)
        pollux.write("p.yaml", text("e"))
        holds(pollux, "e", process)
        assert stopped(process).code == 0
    told = said.read_text()
    assert (
        "p.yaml was read again (by file watch): jobs: 1 added, 0 changed, 1 removed, 1 the same; pool.seats 3 -> 7"
        in (told)
    )
    [refused] = re.findall(r"ERROR +p.yaml was read again and changes nothing.*", told)
    assert "p.yaml:1:" in refused
    assert "change detected" not in told, "nobody else's log lines"
    assert "ends without" not in told, "the watching leaves no thread behind"
    assert "Traceback" not in told


def test_a_link_that_is_swapped_holds_at_once_as_kubernetes_does_it(pollux):
    """`p.yaml -> ..data/p.yaml`, `..data -> ..1`: the second link is replaced by a rename, the old folder removed."""
    folder = pollux.folder / "mounted"
    for number, words in (("..1", text("a")), ("..2", text("b")), ("..3", text("c"))):
        (folder / number).mkdir(parents=True)
        (folder / number / "p.yaml").write_text(words)
        (folder / number / "work.py").write_text((pollux.folder / "work.py").read_text())
    (folder / "..data").symlink_to("..1")
    (folder / "p.yaml").symlink_to("..data/p.yaml")
    with pollux.started("serve", "-c", "mounted/p.yaml", *QUIET) as process:
        holds(pollux, "a", process)
        for old, new, ids in (("..1", "..2", "b"), ("..2", "..3", "c")):
            (folder / "..tmp").symlink_to(new)
            (folder / "..tmp").rename(folder / "..data")
            for file in (folder / old).glob("*.*"):
                file.unlink()
            holds(pollux, ids, process)
        refused = asking(pollux)("reload", "--rollback", "-c", "mounted/p.yaml")
        assert stopped(process).code == 0
    assert refused.code == 2
    assert "is a link to ..data/p.yaml" in refused.err


def test_a_folder_that_is_swapped_holds_at_once_as_releases_do_it(pollux):
    for number, words in (("r1", text("a")), ("r2", text("b"))):
        (pollux.folder / number).mkdir()
        (pollux.folder / number / "p.yaml").write_text(words)
        (pollux.folder / number / "work.py").write_text((pollux.folder / "work.py").read_text())
    (pollux.folder / "current").symlink_to("r1")
    with pollux.started("serve", "-c", "current/p.yaml", *QUIET) as process:
        holds(pollux, "a", process)
        (pollux.folder / "tmp").symlink_to("r2")
        (pollux.folder / "tmp").rename(pollux.folder / "current")
        holds(pollux, "b", process)
        assert stopped(process).code == 0


def test_without_the_watch_only_a_signal_counts(pollux):
    pollux.write("p.yaml", text("a"))
    with pollux.started("serve", "-c", "p.yaml", "--no-reload", *QUIET) as process:
        holds(pollux, "a", process)
        swap(pollux.folder, "p.yaml", text("a", "b"))
        time.sleep(2)  # nothing is to happen
        assert ids_of(pollux) == {"a"}
        process.send_signal(signal.SIGHUP)
        holds(pollux, "ab", process)
        answer = stopped(process)
    assert "p.yaml was read again (by signal HUP): jobs: 1 added" in answer.err


def test_another_store_in_the_file_and_where_the_node_stays(pollux):
    """The node that reads the file is not on the store that it names by now: what is compared is not its business."""
    pollux.write("p.yaml", text("a", store="sqlite:///old.db"))
    serve = ("serve", "-c", "p.yaml", "--no-reload", "--no-watch", "--port", "0")
    with pollux.started(*serve, environ={"POLLUX_SERVER": "true"}) as process:
        eventually((pollux.folder / "old.db.sock").is_socket, "it listens", process)
        swap(pollux.folder, "p.yaml", text("a", store="sqlite:///new.db"))
        said = "a node reads p.yaml and works on sqlite:///old.db: it stays there until it is restarted"
        told = eventually(
            lambda: found_in(asking(pollux).ok("reload", "--dry-run", "-c", "p.yaml"), said), "it is said"
        )
        assert "+ job a" in told.out
    assert said not in asking(pollux).ok("reload", "--dry-run", "-c", "p.yaml").err


def found_in(answer, words):
    return answer if words in answer.err else None


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_on_a_server_the_leader_and_a_worker_read_it_again(pollux, kind):
    """One process is told; the other hears by the store, and finds the same text in its file."""
    store = {"redis": redis.own_url, "postgres": postgres.own_url}[kind]("reload")
    pollux.write("p.yaml", text("a", store=store))
    pollux.write("later.py", "def later(ctx): return 'later'\n")
    with (
        pollux.started("serve", "-c", "p.yaml", "--no-reload", *QUIET) as leader,
        pollux.started("worker", "-c", "p.yaml", "--no-reload", *QUIET) as worker,
    ):
        nodes = ("nodes", "--json", "--store", store)

        def are_there() -> bool:
            answer = asking(pollux)(*nodes)  # before the first of them there is no store
            return answer.code == 0 and len(answer.json["nodes"]) == 2

        eventually(are_there, "both are there", leader)
        holds(pollux, "a", leader, store)
        swap(
            pollux.folder,
            "p.yaml",
            text("a", seats=7, store=store) + '  - {id: b, python: "later:later", once: true}\n',
        )
        eventually(lambda: is_heard(leader.pid, signal.SIGHUP), "it listens for the signal", leader)
        leader.send_signal(signal.SIGHUP)
        holds(pollux, "ab", leader, store)

        def seats() -> list[int]:
            return [node["seats"] for node in asking(pollux).ok(*nodes).json["nodes"]]

        eventually(lambda: seats() == [7, 7], "both have seven seats", worker)
        done = ("runs", "--job", "b", "--state", "done", "--json", "--store", store)
        eventually(lambda: asking(pollux).ok(*done).json["runs"], "the new function ran", leader)
        asking(pollux).ok("set", "pool.seats", "20", "--store", store)
        eventually(lambda: seats() == [20, 20], "both have twenty seats", worker)
        asking(pollux).ok("drain", "--store", store)
        eventually(
            lambda: all(node["draining"] for node in asking(pollux).ok(*nodes).json["nodes"]), "both drain", worker
        )
        asking(pollux).ok("resume", "--workers", "--store", store)
        told = asking(pollux).ok("trigger", "--store", store, "--json").json["triggered"]
        assert told["leaders"] == told["answered"] != []
        assert stopped(worker).code == stopped(leader).code == 0


def test_a_terminal_that_is_closed_ends_what_was_started_in_it(pollux):
    """SIGHUP means both: read the file again, and nobody is there any more.  Whether the terminal still is decides."""
    pollux.write("p.yaml", text("a"))
    program = [sys.executable, "-m", "pollux", "serve", "-c", "p.yaml", *QUIET]
    ours, theirs = pty.openpty()
    said = (pollux.folder / "said.txt").open("w+b")
    process = subprocess.Popen(
        [sys.executable, "-c", ATTACHED, *program],
        cwd=pollux.folder,
        env=pollux.environ(),
        stdin=theirs,
        stdout=said,
        stderr=said,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        holds(pollux, "a", process)
        swap(pollux.folder, "p.yaml", text("a", "b"))
        holds(pollux, "ab", process)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.5)  # it is to go on
        assert process.poll() is None
        os.close(ours)
        ours = -1
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        if ours >= 0:
            os.close(ours)
        if process.poll() is None:
            process.kill()
        process.wait()
        said.close()
    assert "stopped, drained" in (pollux.folder / "said.txt").read_text()


# Makes the terminal the session's own, and becomes the program.
ATTACHED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# the command


def test_the_command_says_what_would_change_without_a_server_and_without_a_store(tmp_path):
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", text("a", "b"))
    told = pollux.ok("reload", "--dry-run", "-c", "p.yaml")
    assert told.out.splitlines() == ["+ job a  every 1h", "+ job b  every 1h"]
    assert not (tmp_path / "p.db").exists()
    assert pollux("reload").code == 2


def test_the_command_reads_the_file_for_a_store_that_nobody_works_on(tmp_path):
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", text("a", "b"))
    (tmp_path / "p.db").touch()
    assert "p.yaml holds: jobs: 2 added" in pollux.ok("reload", "-c", "p.yaml").out
    pollux.write("p.yaml", text("a", "c"))
    told = pollux.ok("reload", "--dry-run", "-c", "p.yaml", "--json").json["reloaded"]
    assert (told["added"], told["removed"], told["is_dry"], ids_of(pollux)) == (1, 1, True, {"a", "b"})
    pollux.ok("reload", "-c", "p.yaml")
    assert ids_of(pollux) == {"a", "c"}
    assert "nothing changed" in pollux.ok("reload", "-c", "p.yaml").out
    pollux.write("p.yaml", "jobs: [{id: a}]")
    wrong = pollux("reload", "-c", "p.yaml")
    assert (wrong.code, "p.yaml:1:8" in wrong.err, ids_of(pollux)) == (2, True, {"a", "c"})
    pollux.write("p.yaml", "jobs: [")
    (tmp_path / "pollux.db").touch()  # of somebody else
    lost = pollux("reload", "--rollback", "-c", "p.yaml")
    assert (lost.code, "its store is unknown" in lost.err, "--store" in lost.err) == (2, True, True)
    back = pollux.ok("reload", "--rollback", "-c", "p.yaml", "--store", "sqlite:///p.db")
    assert (tmp_path / "p.yaml").read_text() == text("a", "c")
    assert "p.yaml has an earlier text again; what it held is in" in back.out
    assert (tmp_path / "p.db.versions" / "p.yaml" / "replaced.yaml").read_text() == "jobs: ["
    versions = pollux.ok("reload", "--versions", "-c", "p.yaml", "--json").json["versions"]
    assert len(versions) == 2
    assert "- job c" in pollux.ok("reload", "--rollback", "-c", "p.yaml").out
    assert (tmp_path / "p.yaml").read_text() == text("a", "b")
    pollux.ok("reload", "--rollback", "--to", versions[1]["digest"][:8], "-c", "p.yaml")
    assert ids_of(pollux) == {"a", "c"}
    assert pollux("reload", "--rollback", "--to", "ffff", "-c", "p.yaml").code == 1
    assert pollux("reload", "--rollback", "--dry-run", "-c", "p.yaml").code == 2


def test_the_command_lets_a_node_do_it(pollux):
    pollux.write("p.yaml", text("a"))
    with pollux.started("serve", "-c", "p.yaml", "--no-reload", "--no-watch", "--port", "0", "--server") as process:
        holds(pollux, "a", process)
        swap(pollux.folder, "p.yaml", text("a", "b", seats=9) + "leader: {ttl: 20s}\n")
        here = asking(pollux)
        eventually(lambda: "a node is asked" in here("jobs", "-c", "p.yaml", "--verbose").err, "it answers", process)
        told = here.ok("reload", "-c", "p.yaml", "--dry-run")
        assert told.out.splitlines() == [
            "+ job b  every 1h",
            "~ pool.seats 3 -> 9",
            "! leader.ttl 15s -> 20s  needs a restart",
        ]
        assert "p.yaml holds: jobs: 1 added" in here.ok("reload", "-c", "p.yaml").out
        nodes = ("nodes", "--json", "-c", "p.yaml")
        eventually(lambda: here.ok(*nodes).json["nodes"][0]["seats"] == 9, "it has nine seats", process)
        pollux.write("p.yaml", "store: sqlite:///p.db\njobs: [{id: a}]")
        wrong = here("reload", "-c", "p.yaml")
        assert (wrong.code, "p.yaml:2:8" in wrong.err) == (2, True)
        here.ok("reload", "--rollback", "-c", "p.yaml")
        assert (pollux.folder / "p.yaml").read_text().endswith("leader: {ttl: 20s}\n"), "what held before the mistake"
        lines = here.ok("audit", "--json", "-c", "p.yaml").json["lines"]
        assert [line["action"] for line in lines].count("reload") == 1
        assert stopped(process).code == 0


@pytest.mark.parametrize("has_node", [True, False])
def test_most_jobs_go_by_a_command_only_if_it_says_replace(pollux, has_node):
    """Of a reload and of a rollback, done by a node or without one."""
    here, six = asking(pollux), "abcdef"
    pollux.write("p.yaml", text(*six))
    with contextlib.ExitStack() as stack:
        if has_node:
            words = ("-c", "p.yaml", "--no-reload", "--no-watch", "--port", "0", "--server")
            process = stack.enter_context(pollux.started("serve", *words))
            eventually(
                lambda: "a node is asked" in here("jobs", "-c", "p.yaml", "--verbose").err, "it answers", process
            )
        else:
            here.ok("reload", "-c", "p.yaml")

        def refused_without_replace(*words):
            refused = here("reload", *words, "-c", "p.yaml")
            assert (refused.code, "6 jobs (a, b, c, d, e, ...) would go" in refused.err) == (1, True), refused.err
            assert set(six) <= ids_of(pollux)
            here.ok("reload", *words, "--replace", "-c", "p.yaml")
            assert ids_of(pollux) == {"z"}

        swap(pollux.folder, "p.yaml", text("z"))
        refused_without_replace()
        swap(pollux.folder, "p.yaml", text("z", *six))
        here.ok("reload", "--replace", "-c", "p.yaml")  # the set with z alone is forgotten
        refused_without_replace("--rollback")
        if has_node:
            assert stopped(process).code == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_rollback_is_never_of_another_file_than_the_one_that_is_named(pollux, is_lost):
    """The node on that store reads another one: it would put back an earlier text of its own."""
    (pollux.folder / "p.db").touch()
    here = asking(pollux)
    for name, ids in (("a.yaml", "a"), ("b.yaml", "b"), ("a.yaml", "ax"), ("b.yaml", "by")):
        pollux.write(name, text(*ids))
        here.ok("reload", "-c", name)
    ours, other = pollux.folder / "a.yaml", pollux.folder / "b.yaml"
    versions = here.ok("reload", "--versions", "--json", "-c", "b.yaml").json
    with pollux.started("serve", "-c", "a.yaml", "--no-reload", "--no-watch", "--port", "0", "--server") as process:
        eventually(lambda: "a node is asked" in here("jobs", "-c", "a.yaml", "--verbose").err, "it answers", process)
        for words in ((), ("--store", "sqlite:///p.db")):
            other.write_text(text(*"by"))
            if is_lost:
                other.unlink()
            assert here.ok("reload", "--versions", "--json", "-c", "b.yaml", *words).json == versions
            back = here.ok("reload", "--rollback", "-c", "b.yaml", *words)
            assert "b.yaml has an earlier text again" in back.out
            assert (ours.read_text(), other.read_text()) == (text(*"ax"), text(*("by" if is_lost else "b")))
            here.ok("reload", "--rollback", "--to", versions["versions"][1]["digest"], "-c", "b.yaml", *words)
            versions = here.ok("reload", "--versions", "--json", "-c", "b.yaml").json
        stand = ours.read_text(), other.read_text()
        node = f"http+unix://{pollux.folder}/p.db.sock"
        for words, environ in ((("--url", node), {}), ((), {"POLLUX_URL": node})):
            for what in ("--versions", "--rollback"):
                refused = here("reload", what, "-c", "b.yaml", *words, environ=environ)
                assert (refused.code, "not those of b.yaml; leave -c out" in refused.err) == (2, True), refused.err
        assert (ours.read_text(), other.read_text()) == stand
        here.ok("reload", "--rollback", "-c", "a.yaml")
        assert ours.read_text() == text("a"), "of its own file the node does it"
        assert stopped(process).code == 0


def test_a_node_says_what_another_file_would_change_in_the_place_of_its_own(pollux):
    """A text is prepared under another name; what it would do is seen before it is put in place."""
    pollux.write("p.yaml", text("a", "b"))
    with pollux.started("serve", "-c", "p.yaml", "--no-watch", "--port", "0", "--server") as process:
        holds(pollux, "ab", process)
        here = asking(pollux)
        eventually(lambda: "a node is asked" in here("jobs", "-c", "p.yaml", "--verbose").err, "it answers", process)
        pollux.write("new.yaml", text("a", "c", seats=9) + "leader: {ttl: 20s}\n")
        told = here.ok("reload", "--dry-run", "-c", "new.yaml")
        assert told.out.splitlines() == [
            "+ job c  every 1h",
            "- job b",
            "~ pool.seats 3 -> 9",
            "! leader.ttl 15s -> 20s  needs a restart",
        ]
        assert told.err == "pollux: new.yaml in the place of p.yaml, as the node sees it:\n"
        assert ids_of(pollux) == {"a", "b"}
        named = ("--url", f"http+unix://{pollux.folder / 'p.db.sock'}")
        assert here.ok("reload", "--dry-run", "-c", "new.yaml", *named).out == told.out
        pollux.write("pollux.yaml", text("z"))
        own = here.ok("reload", "--dry-run", *named, environ={"POLLUX_CONFIG": "new.yaml"})
        assert own.out == "p.yaml: of jobs and options nothing would change\n", "one elsewhere is asked about its own"
        own = here("reload", "--dry-run", "-c", "new.yaml", "--as", "new.yaml")
        assert (own.code, "job 'a' is declared in file:p.yaml and in file:new.yaml" in own.err) == (2, True)
        wrong = here("reload", "-c", "new.yaml")
        assert (wrong.code, ids_of(pollux)) == (2, {"a", "b"})
        assert f"the node that answers here reads {pollux.folder / 'p.yaml'}, which has another text" in wrong.err
        pollux.write("new.yaml", "store: sqlite:///p.db\njobs: [{id: a}]\n")
        bad = here("reload", "--dry-run", "-c", "new.yaml")
        assert (bad.code, "new.yaml:2:8" in bad.err) == (2, True)
        assert here("reload", "--dry-run", "-c", "none.yaml").code == 2
        assert here("reload", "--as", "p.yaml", "-c", "p.yaml").code == 2
        assert stopped(process).code == 0


def test_without_a_node_a_file_with_the_jobs_of_another_is_compared_with_that(tmp_path):
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", text("a", "b"))
    (tmp_path / "p.db").touch()
    pollux.ok("reload", "-c", "p.yaml")
    pollux.write("new.yaml", text("a", "c"))
    pollux.write("more.yaml", text("x"))
    for words in (("reload", "--dry-run"), ("check", "--diff")):
        told = pollux.ok(*words, "-c", "new.yaml")
        lines = [line for line in told.out.splitlines() if line[:2] in ("+ ", "- ", "~ ")]
        assert lines == ["+ job c  every 1h", "- job b"]
        assert "new.yaml has jobs of file:p.yaml: compared as its next text; --as new.yaml: as a file of" in told.err
        more = pollux.ok(*words, "-c", "more.yaml")
        assert [line for line in more.out.splitlines() if line[:2] in ("+ ", "- ")] == ["+ job x  every 1h"]
        taken = pollux.ok(*words, "-c", "more.yaml", "--as", "p.yaml")
        assert [line[:7] for line in taken.out.splitlines() if " job " in line] == ["+ job x", "- job a", "- job b"]
        refused = pollux(*words, "-c", "new.yaml", "--as", "new.yaml")
        assert (refused.code, "--as old.yaml" in refused.err) == (1, True)
    assert ids_of(pollux) == {"a", "b"}
    assert pollux("check", "--as", "p.yaml", "-c", "new.yaml").code == 2
    assert pollux("reload", "-c", "new.yaml").code == 1, "written it is not: the jobs are those of another file"


def test_the_options_in_force_are_told_while_the_file_is_refused(pollux):
    pollux.write("p.yaml", text("a", seats=4))
    with pollux.started("serve", "-c", "p.yaml", "--no-watch", "--port", "0", "--server") as process:
        holds(pollux, "a", process)
        here = asking(pollux)
        eventually(lambda: "a node is asked" in here("jobs", "-c", "p.yaml", "--verbose").err, "it answers", process)
        for words in ("jobs: [{id: a, cron: nonsense}]\n", "leader: {ttl: never}\n"):
            swap(pollux.folder, "p.yaml", f"store: sqlite:///p.db\npool: {{seats: 9}}\n{words}")
            eventually(lambda: here("config", "-c", "p.yaml", "--json").json["refused"], "it was refused", process)
            told = here.ok("config", "-c", "p.yaml")
            assert re.search(r"^pool.seats +4 +10 +p.yaml:2$", told.out, re.MULTILINE)
            assert "p.yaml was changed and refused; the node goes on by the text before: this is what it" in told.err
            assert "  p.yaml:3:" in told.err
        swap(pollux.folder, "p.yaml", text("a", seats=9) + "leader: {ttl: 20s}\n")
        waits = "leader.ttl: 15s holds until the node is restarted, then 20s"
        eventually(lambda: waits in here.ok("config", "-c", "p.yaml").err, "it holds", process)
        assert here.ok("config", "-c", "p.yaml", "--json").json["refused"] == []
        assert stopped(process).code == 0


def test_a_live_table_goes_on_over_a_reload(pollux):
    pollux.write("p.yaml", text("home-a"))
    ours, theirs = pty.openpty()
    try:
        with pollux.started("serve", "-c", "p.yaml", "--no-server", stdout=theirs) as process:
            read_until(ours, ["home-a"])
            swap(pollux.folder, "p.yaml", text("home-b"))
            read_until(ours, ["home-b", "was read again"])
            assert stopped(process, signal.SIGINT).code == 0
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_live_table_starts_where_most_jobs_go_if_it_is_said(pollux):
    pollux.write("p.yaml", text(*"abcdef"))
    asking(pollux).ok("reload", "-c", "p.yaml")
    pollux.write("p.yaml", text("home-z"))
    ours, theirs = pty.openpty()
    try:
        with pollux.started("serve", "-c", "p.yaml", "--no-server", "--replace", stdout=theirs) as process:
            read_until(ours, ["home-z"])
            assert stopped(process, signal.SIGINT).code == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert ids_of(pollux) == {"home-z"}
