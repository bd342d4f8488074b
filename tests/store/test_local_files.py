"""Places of a store's small files: the node that writes them and the command that reads them agree."""

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path

from pollux import Pollux
from pollux.secrets import HIDDEN, MASK
from pollux.server import nearby_options, served
from pollux.store.local_files import (
    ANNOUNCED_MAX,
    SOCKET,
    TOKEN,
    AnnouncedNode,
    announce,
    announced_in,
    beside,
    socket_path,
    state_folder,
)


def test_beside_a_file_wherever_it_is_looked_at_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert beside("sqlite:///pollux.db", TOKEN) == tmp_path / "pollux.db.token"
    assert beside(f"sqlite:///{tmp_path}/pollux.db", SOCKET) == tmp_path / "pollux.db.sock"


def test_of_a_server_in_a_folder_of_the_user_by_its_url_and_not_by_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = beside("postgresql://ann:old@db/pollux", TOKEN)
    assert first.parent == tmp_path / "pollux"
    assert first == beside("postgresql://ann:new@db/pollux", TOKEN)
    assert "old" not in first.name
    others = ("postgresql://bob:old@db/pollux", "postgresql://ann:old@db/other", "redis://db/0", "redis://db/1")
    assert len({first, *(beside(url, TOKEN) for url in others)}) == 5


def test_what_is_asked_of_a_store_makes_no_other_store_of_it(tmp_path, monkeypatch):
    """A node that requires durability, and a command that does not, mean the same one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for plain, asked in (
        ("redis://db/0", "redis://db/0?durability=required"),
        ("redis://db/0?namespace=a", "redis://db/0?namespace=a&durability=required"),
        ("redis://db/0?namespace=a&wait=1", "redis://db/0?namespace=a&durability=usual&wait=1"),
        ("postgresql://ann:x@db/p?schema=s", "postgresql://ann:y@db/p?durability=required&schema=s"),
    ):
        assert beside(plain, SOCKET) == beside(asked, SOCKET)
    assert beside("redis://db/0", SOCKET) != beside("redis://db/0?namespace=durability", SOCKET)


def test_a_state_folder_that_is_no_absolute_path_is_not_meant(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for said in ("", "here"):
        monkeypatch.setenv("XDG_STATE_HOME", said)
        assert beside("redis://db/0", TOKEN).parent == tmp_path / ".local" / "state" / "pollux"


def test_the_socket_is_where_the_option_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert socket_path("off", "sqlite:///pollux.db") is None
    assert socket_path("/run/p.sock", "sqlite:///pollux.db") == Path("/run/p.sock")
    assert socket_path("", "sqlite:///pollux.db") == tmp_path / "pollux.db.sock"


def test_a_user_without_a_home_runs_unannounced(monkeypatch):
    """A node need not be found by its folder."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert announce(AnnouncedNode(1, "s", "sqlite:///p.db")) is None
    assert nearby_options("sqlite:///p.db", {}) is not None


def _ended_pid():
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


def test_a_node_of_another_host_is_neither_believed_nor_taken_for_dead(tmp_path, monkeypatch):
    """A home directory on a network file system is shared; pids are not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as there:
        there.setattr(platform, "node", lambda: "elsewhere")
        same_pid = announce(AnnouncedNode(os.getpid(), "there.sock", "sqlite:///there.db"))
        living_there = announce(AnnouncedNode(_ended_pid(), "there.sock", "sqlite:///there.db"))
    mine = AnnouncedNode(os.getpid(), "here.sock", "sqlite:///here.db")
    announce(mine)
    assert announced_in(tmp_path) == [mine]
    assert living_there.exists()
    assert same_pid.exists()


def test_many_nodes_of_another_host_hide_none_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as there:
        there.setattr(platform, "node", lambda: "elsewhere")
        there.setattr("pollux.store.local_files._lives", lambda pid: True)
        for pid in range(1, 101):
            announce(AnnouncedNode(pid, "there.sock", "sqlite:///there.db"))
    mine = AnnouncedNode(os.getpid(), "here.sock", "sqlite:///here.db")
    announce(mine)
    assert announced_in(tmp_path) == [mine]


def test_the_file_of_a_dead_node_of_this_host_is_taken_away(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    dead = announce(AnnouncedNode(_ended_pid(), "here.sock", "sqlite:///here.db"))
    assert announced_in(tmp_path) == []
    assert not dead.exists()


def _announce_dead(count: int) -> list[Path]:
    """Announcements of nodes that were killed; each by a pid that nobody has."""
    first = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    return [announce(AnnouncedNode(first + n, "here.sock", "sqlite:///here.db")) for n in range(count)]


def test_many_dead_nodes_hide_no_living_one(tmp_path, monkeypatch):
    """However its file is sorted among theirs: the first look finds it, and takes all of theirs away."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as before:
        before.setattr("pollux.store.local_files._lives", lambda pid: True)
        dead = _announce_dead(ANNOUNCED_MAX + 5)
        mine = AnnouncedNode(os.getpid(), "here.sock", "sqlite:///here.db")
        announce(mine).rename(dead[0].with_name(f"{dead[0].stem}~last.json"))
    assert announced_in(tmp_path) == [mine]
    assert not [path for path in dead if path.exists()]


def test_whoever_starts_tidies_up_after_those_that_were_killed(tmp_path, monkeypatch):
    """A service that is killed again and again, and about which nobody asks, leaves one file and not thousands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    dead = _announce_dead(3)
    mine = announce(AnnouncedNode(os.getpid(), "here.sock", "sqlite:///here.db"))
    assert [path for path in (*dead, mine) if path.exists()] == [mine]


async def test_an_announcement_holds_no_secret(tmp_path, monkeypatch):
    """Neither in the store's URL nor in the path of the socket beside it; a node that is killed leaves the file."""
    monkeypatch.chdir(tmp_path)
    secret = tmp_path / "folder-0a5f3b"
    secret.mkdir()
    HIDDEN.add(secret.name)
    try:
        app = Pollux(f"sqlite:///{secret}/p.db")
        options = nearby_options(app.store_url, {})
        assert secret.name in str(options.socket)
        async with served(app, options, stop=asyncio.Event()):
            [node] = announced_in(tmp_path)
            [file] = state_folder().glob(f"folder-*-{os.getpid()}.json")
            written = file.read_text()
    finally:
        HIDDEN.clear()
    assert secret.name not in written
    assert node.store == f"sqlite:///{tmp_path}/{MASK}/p.db"


def test_no_test_writes_into_the_home_of_whoever_runs_it(tmp_path):
    """Nor does a process that it starts."""
    script = "from pollux.store.local_files import state_folder\nprint(state_folder())"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    own = {state_folder(), Path(child.stdout.strip())}
    assert len(own) == 1
    assert not own.pop().is_relative_to(Path.home())
