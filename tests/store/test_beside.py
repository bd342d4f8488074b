"""Where do the small files of a store lie?  The node that serves it and the command that looks for it must agree."""

import os
import platform
import subprocess
from pathlib import Path

from pollux.server.options import nearby_options
from pollux.store.beside import SOCKET, TOKEN, Announced, announce, announced_in, beside, socket_path


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
    assert announce(Announced(1, "s", "sqlite:///p.db")) is None
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
        living_there = announce(Announced(_ended_pid(), "there.sock", "sqlite:///there.db"))
        same_pid = announce(Announced(os.getpid(), "there.sock", "sqlite:///there.db"))
    mine = Announced(os.getpid(), "here.sock", "sqlite:///here.db")
    announce(mine)
    assert announced_in(tmp_path) == [mine]
    assert living_there.exists()
    assert same_pid.exists()


def test_many_nodes_of_another_host_hide_none_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as there:
        there.setattr(platform, "node", lambda: "elsewhere")
        for pid in range(1, 101):
            announce(Announced(pid, "there.sock", "sqlite:///there.db"))
    mine = Announced(os.getpid(), "here.sock", "sqlite:///here.db")
    announce(mine)
    assert announced_in(tmp_path) == [mine]


def test_the_file_of_a_dead_node_of_this_host_is_taken_away(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    dead = announce(Announced(_ended_pid(), "here.sock", "sqlite:///here.db"))
    assert announced_in(tmp_path) == []
    assert not dead.exists()
