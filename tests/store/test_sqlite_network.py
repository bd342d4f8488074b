"""Network file systems are refused, since locks do not hold there; local ones are not."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pollux.errors import InvalidInput, StoreRefused
from pollux.store.sqlite import SqliteStore, file_identity
from pollux.store.urls import open_store, sqlite_file
from tests.store.disks import can_mount, mounted

NETWORKS = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"]
LOCAL = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.ntfs-3g", "virtiofs", ""]


@pytest.mark.parametrize("kind", NETWORKS)
async def test_a_network_file_system_is_refused_and_nothing_is_made(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(file_identity, "file_system_of", lambda _: kind)
    with pytest.raises(StoreRefused, match=rf"network file system \({re.escape(kind)}\).*put it on a local disk"):
        await SqliteStore(tmp_path / "deep" / "pollux.db").open()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", LOCAL)
async def test_a_local_one_is_not(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(file_identity, "file_system_of", lambda _: kind)
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.close()


async def test_whoever_accepts_the_risk_may_say_so_in_the_url(tmp_path, monkeypatch):
    monkeypatch.setattr(file_identity, "file_system_of", lambda _: "nfs4")
    store = open_store(f"sqlite:///{tmp_path}/pollux.db?allow_network=true")
    await store.open()
    twin = store.twin()
    await twin.open()
    await twin.close()
    await store.close()

    assert (tmp_path / "pollux.db").exists(), "the option is no part of the name"


@pytest.mark.parametrize("options", ["allow_network=yes", "allow_network", "mode=ro", "allow_network=true&x=1"])
def test_an_option_that_is_not_known_is_refused_with_the_cure(options):
    with pytest.raises(InvalidInput, match=r"is not known.*\?allow_network=true"):
        open_store(f"sqlite:///pollux.db?{options}")


def test_the_file_of_a_url_is_found_without_its_options():
    assert sqlite_file("sqlite:///a/b.db?allow_network=true") == "a/b.db"
    assert sqlite_file("sqlite:////a/b.db") == "/a/b.db"
    assert sqlite_file("memory://") is None


def test_the_kernel_is_asked_and_says_what_the_system_says(tmp_path):
    """The same as `stat -f` and `findmnt`, whichever is there, for the folders of this machine."""
    assert shutil.which("findmnt"), "this test compares with findmnt of util-linux"
    for folder in (tmp_path, Path("/"), Path("/proc"), Path("/dev/shm"), tmp_path / "not" / "there"):
        there = next(each for each in (folder, *folder.parents) if each.exists())
        told = subprocess.run(
            ["findmnt", "-n", "-o", "FSTYPE", "-T", there], capture_output=True, text=True, check=True
        )
        assert file_identity.file_system_of(folder) == told.stdout.split()[-1]


def test_names_with_spaces_and_covered_mounts_are_read_right(tmp_path, monkeypatch):
    (tmp_path / "with space").mkdir()
    mounts = tmp_path / "mountinfo"
    point = str(tmp_path / "with space").replace(" ", "\\040")
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 8:2 / {point} rw shared:1 - ext4 /dev/sdb rw\n"
        f"3 1 0:50 / {point} rw,noatime shared:2 master:1 - nfs4 server:/export rw\n"
        f"4 1 0:51 / {tmp_path}/with rw - cifs //server/share rw\n"
    )
    monkeypatch.setattr(file_identity, "_MOUNTS", mounts)

    assert file_identity.file_system_of(tmp_path / "with space" / "pollux.db") == "nfs4"
    assert file_identity.file_system_of(tmp_path / "pollux.db") == "ext4"
    assert file_identity.file_system_of(tmp_path / "with" / "pollux.db") == "cifs"
    monkeypatch.setattr(file_identity, "_MOUNTS", tmp_path / "no such file")
    assert file_identity.file_system_of(tmp_path) == ""


with tempfile.TemporaryDirectory() as _folder:
    CAN_MOUNT = can_mount(Path(_folder) / "try")

if CAN_MOUNT:

    async def test_a_real_mount_is_recognised(tmp_path):
        with mounted(tmp_path / "here", "size=8m"):
            assert file_identity.file_system_of(tmp_path / "here" / "pollux.db") == "tmpfs"
            store = SqliteStore(tmp_path / "here" / "pollux.db")
            await store.open()
            await store.close()
