"""`pollux doctor`: every trouble is found and has a cure, nothing is touched, and a healthy house is told so."""

import asyncio
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

from pollux import Pollux
from pollux.cli.doctor import machine, sqlite_file
from pollux.cli.doctor.finding import FAIL, OK, WARN
from pollux.model import Interval, Job
from pollux.store.contract import JobPut
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

CONFIG = """\
store: sqlite:///p.db
pool: {seats: 3}
jobs:
  - {id: home, python: "work:fine", interval: 1h, params: {word: "${env:WORD}"}}
"""


@pytest.fixture
def pollux(tmp_path):
    (tmp_path / "house").mkdir(mode=0o700)
    here = SameProcess(tmp_path / "house")
    here.write("p.yaml", CONFIG)
    (here.folder / "p.yaml").chmod(0o600)
    return here


def found(pollux, *arguments, code=None, environ=None):
    """The findings by what they are about; several of one kind are a list."""
    answer = pollux("doctor", *arguments, "--json", environ={"WORD": "a long secret", **(environ or {})})
    findings = {}
    for finding in answer.json["findings"]:
        findings.setdefault(finding["about"], []).append(finding)
        assert finding["cure"] or finding["level"] == OK, finding
    assert answer.code == (1 if answer.json["counts"]["fail"] else 0)
    assert code in (None, answer.code), answer.json
    return {about: each[0] if len(each) == 1 else each for about, each in findings.items()}


def level(findings, about):
    return findings[about]["level"]


async def store_at(path: Path, *, jobs: int = 1) -> None:
    app = Pollux(f"sqlite:///{path}")
    await app.open()
    await app.put_jobs([Job(id=f"job-{n}", handler="h", schedule=Interval(3_600_000)) for n in range(jobs)])
    await app.close()


def content(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file with the hash of its bytes, its time and its rights."""
    return {
        str(file): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns, file.stat().st_mode)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def killed_writer(path: Path) -> None:
    """A process opens the store, writes, and is killed: its log stays."""
    code = (
        "import asyncio, os, sys\nfrom pollux import Pollux\nfrom pollux.model import Job\n"
        "async def main():\n app = Pollux('sqlite:///' + sys.argv[1])\n await app.open()\n"
        " await app.put_jobs([Job(id='left', handler='h')])\n os._exit(0)\nasyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


# the whole


def test_before_anything_was_started_all_is_well(pollux):
    findings = found(pollux, "-c", "p.yaml", code=0)
    for about in ("python", "sqlite", "time zones", "inotify", "config", "code", "secrets", "file", "folder", "room"):
        assert level(findings, about) == OK, findings[about]
    assert "not there yet" in findings["file"]["seen"]
    assert sorted(file.name for file in pollux.folder.iterdir()) == ["p.yaml", "work.py"], (
        "nothing was made, not even a cache of code"
    )


def test_people_get_a_line_for_each_with_the_cure_below(pollux):
    (pollux.folder / "p.db").write_bytes(b"these are notes, no database, and long enough to be read")
    answer = pollux("doctor", "-c", "p.yaml", environ={"WORD": "a long secret"})
    lines = answer.out.splitlines()
    [index] = [index for index, line in enumerate(lines) if line.startswith("fail  schema")]
    assert lines[index + 1].split()[0] == "cure:"
    assert answer.code == 1
    assert "1 failed" in lines[-1]


def test_a_house_in_which_a_node_lives_is_healthy_and_stays_undisturbed(pollux):
    apart = Terminal(pollux.folder)
    pollux.write("p.yaml", CONFIG.replace("${env:WORD}", "hello"))
    with apart.started("serve", "-c", "p.yaml", "--no-watch") as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        findings = eventually(
            lambda: ok if (ok := found(pollux, "-c", "p.yaml")).get("leader", {}).get("level") == OK else None,
            "somebody leads",
            process,
        )
        for about in ("rights", "schema", "store clock", "leader", "ready runs", "due times", "dead letters", "feed"):
            assert level(findings, about) == OK, findings[about]
        assert level(findings, "log") == OK, "its log is in use, or carried over already"
        assert stopped(process).code == 0


# nothing is changed


@pytest.mark.parametrize("state", ["closed", "killed", "killed, index lost"])
def test_not_a_byte_is_changed(pollux, state):
    """A closed store, and one whose writer was killed: all files keep their bytes, times and rights."""
    path = pollux.folder / "p.db"
    asyncio.run(store_at(path))
    if state != "closed":
        killed_writer(path)
        assert path.with_name("p.db-wal").stat().st_size
    if state.endswith("lost"):
        path.with_name("p.db-shm").unlink()
    before = content(pollux.folder)
    findings = found(pollux, "-c", "p.yaml")
    assert content(pollux.folder) == before
    assert level(findings, "schema") == (WARN if state.endswith("lost") else OK)
    if state == "killed":
        assert "2 jobs" in findings["schema"]["seen"], "what stands in the log counts"


# each trouble


def test_a_log_that_was_left_is_told(pollux):
    killed_writer(pollux.folder / "p.db")
    findings = found(pollux, "-c", "p.yaml", code=0)
    assert level(findings, "log") == WARN
    assert "nothing of it is lost" in findings["log"]["seen"]


def test_what_is_no_store_of_ours_is_told(pollux):
    other = apsw.Connection(str(pollux.folder / "p.db"))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    findings = found(pollux, "-c", "p.yaml", code=1)
    assert "another program" in findings["schema"]["seen"]


def test_a_store_of_a_newer_pollux_is_told(pollux):
    asyncio.run(store_at(pollux.folder / "p.db"))
    newer = apsw.Connection(str(pollux.folder / "p.db"))
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    findings = found(pollux, "-c", "p.yaml", code=1)
    assert findings["schema"]["cure"] == "upgrade Pollux"


def test_files_that_others_may_read_are_told(pollux):
    asyncio.run(store_at(pollux.folder / "p.db"))
    (pollux.folder / "p.db").chmod(0o644)
    (pollux.folder / "p.yaml").chmod(0o666)
    findings = found(pollux, "-c", "p.yaml")
    assert findings["rights"]["cure"].startswith("chmod 600")
    assert any("may change" in each["seen"] for each in findings["config"])


def test_a_process_that_keeps_the_lock_is_named_and_told_from_one_that_is_stopped(pollux):
    asyncio.run(store_at(pollux.folder / "p.db"))
    code = (
        "import fcntl, sys, time\nf = open(sys.argv[1], 'r+')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\ntime.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(pollux.folder / "p.db.lock")], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        lock = found(pollux, "-c", "p.yaml")["lock"]
        assert lock["level"] == WARN
        assert f"process {holder.pid} has held the write lock for " in lock["seen"]
        holder.send_signal(signal.SIGSTOP)
        lock = eventually(
            lambda: told if (told := found(pollux, "-c", "p.yaml")["lock"])["level"] == FAIL else None, "it is stopped"
        )
        assert f"kill -CONT {holder.pid}" in lock["cure"]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_what_waits_and_what_died_is_told(pollux):
    async def fill() -> None:
        app = Pollux(f"sqlite:///{pollux.folder}/p.db")
        await app.open()
        store = app._store
        await store.put_jobs([JobPut(Job(id="a", handler="h"))])
        await app.enqueue("a", at="2020-01-01T00:00:00Z")
        await app.enqueue("a", id="dies")
        claimed = await store.claim(node="n", token="t", limit=2, lease_ms=1, losses_max=1, now_ms=1_800_000_000_000)
        assert len(claimed.runs) == 2
        await store.claim(node="n", token="u", limit=1, lease_ms=60_000, losses_max=1, now_ms=4_000_000_000_000)
        await app.enqueue("a", at="2020-01-01T00:00:00Z")
        await app.close()

    asyncio.run(fill())
    findings = found(pollux, "-c", "p.yaml", code=0)
    assert findings["dead letters"]["seen"] == "2 dead letters"
    assert "the oldest for" in findings["ready runs"]["seen"]
    assert "ahead of this machine's clock" in findings["store clock"]["seen"]
    assert level(findings, "leader") == WARN


def test_a_wrong_config_missing_code_and_missing_secrets_are_told(pollux):
    assert "${env:WORD}" in found(pollux, "-c", "p.yaml", environ={"WORD": ""}, code=1)["secrets"]["seen"]
    pollux.write("p.yaml", CONFIG.replace("work:fine", "work:nothing"))
    assert "'nothing'" in found(pollux, "-c", "p.yaml", code=1)["code"]["seen"]
    pollux.write("p.yaml", CONFIG.replace("interval: 1h", "intervall: 1h"))
    findings = found(pollux, "-c", "p.yaml", code=1)
    assert "p.yaml:4:" in findings["config"]["seen"]
    assert "file" in findings, "the store is looked at all the same"
    pollux.write("p.yaml", "store: [")
    assert level(found(pollux, "-c", "p.yaml", code=1), "config") == FAIL


def test_a_memory_file_system_is_warned_of(pollux):
    """/dev/shm is one on every Linux."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="pollux-doctor-"))
    try:
        findings = found(pollux, "--store", f"sqlite:///{folder}/p.db")
        assert level(findings, "file system") == WARN
        assert findings["file system"]["seen"].startswith("tmpfs")
    finally:
        shutil.rmtree(folder)


def test_a_place_that_cannot_be_written_is_told(pollux, monkeypatch):
    """Nobody refuses root anything, so for root the refusal is played."""
    (pollux.folder / "locked").mkdir(mode=0o500)
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda *_: False)
    findings = found(pollux, "--store", "sqlite:///locked/p.db", code=1)
    assert level(findings, "folder") == FAIL
    assert "the right to make files there" in findings["folder"]["cure"]


def test_few_open_files_are_warned_of(pollux):
    pollux.write("p.yaml", CONFIG.replace("seats: 3", "seats: 1000"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        findings = found(pollux, "-c", "p.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "LimitNOFILE=4064" in findings["open files"]["cure"]


def test_a_big_store_costs_no_more(pollux):
    """Twenty thousand jobs: nothing is scanned, so the statements are counted and not the seconds."""
    small, big = pollux.folder / "small.db", pollux.folder / "big.db"
    asyncio.run(store_at(small))
    asyncio.run(store_at(big, jobs=20_000))
    steps = {}
    for path in (small, big):
        connection = apsw.Connection(f"file:{path}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        counted = [0]

        def tick(counted=counted):
            counted[0] += 1
            return False

        connection.set_progress_handler(tick, 10)
        from pollux.store.sqlite.inspect import _look
        from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats

        tx = SqliteTransaction(connection, WriteStats())
        tx.given_ms = 4_000_000_000_000
        _look(tx, "")
        connection.close()
        steps[path.name] = counted[0]
    assert steps["big.db"] <= steps["small.db"] + 5, steps
    assert "20,000 jobs" in found(pollux, "--store", f"sqlite:///{big}")["schema"]["seen"]


# what a test cannot bring about on a healthy machine, judged by what was seen


def test_judgements_of_the_machine():
    assert machine.of_python((3, 10, 4)).level == FAIL
    assert machine.of_ntp(is_kept=False).level == WARN
    assert machine.of_ntp(is_kept=None).level == OK
    watch = machine.Stopwatch()
    assert machine.of_clock(watch, 1_000_000).level == FAIL
    watch._wall -= 3_000_000_000
    jumped = machine.of_clock(watch, 1_800_000_000_000)
    assert (jumped.level, "jumped by 3s" in jumped.seen or "jumped by 2s" in jumped.seen) == (WARN, True)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("nfs4", FAIL), ("fuse.sshfs", FAIL), ("tmpfs", WARN), ("overlay", WARN), ("ext4", OK), ("", OK)],
)
def test_judgements_of_file_systems(kind, expected):
    assert sqlite_file.of_file_system(Path("p.db"), kind).level == expected
