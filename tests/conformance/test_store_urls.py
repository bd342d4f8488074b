"""Store URLs and the stores that they open."""

import subprocess
import sys

import pytest

from pollux.errors import InvalidInput
from pollux.store.urls import open_store


async def test_memory_is_a_store_of_this_process():
    store = open_store("memory://")

    assert store.capabilities.name == "memory"
    assert (store.capabilities.durable, store.capabilities.shared, store.capabilities.waits) == (False, False, True)


async def test_sqlite_with_three_slashes_is_a_file_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///sub.db")
    await store.open()
    await store.close()

    assert (tmp_path / "sub.db").exists()
    assert store.capabilities.name == "sqlite"


async def test_sqlite_with_four_slashes_is_an_absolute_path(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/abs.db")
    await store.open()
    await store.close()

    assert (tmp_path / "abs.db").exists()


@pytest.mark.parametrize("port", ["99999", "0"])
def test_a_port_that_is_none_is_told_as_that(port):
    with pytest.raises(InvalidInput, match=rf"names a port that is none: {port}; use one from 1 to 65535"):
        open_store(f"redis://localhost:{port}/0")


@pytest.mark.parametrize("url", ["mysql://localhost", "pollux.db", "", "://", "memory:", "MEMORY://x"])
def test_an_unknown_url_is_refused_with_what_exists(url):
    with pytest.raises(InvalidInput, match=r"memory://.*sqlite:///"):
        open_store(url)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://pollux.db", "memory://x"])
def test_a_url_that_is_almost_right_is_refused_with_the_cure(url):
    with pytest.raises(InvalidInput, match=r"use (sqlite:///pollux\.db|memory://)"):
        open_store(url)


def test_no_store_is_imported_before_it_is_asked_for():
    code = "import sys, pollux.store.urls; print([m for m in sys.modules if m == 'apsw' or 'store.memory' in m])"

    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert seen.stdout.strip() == "[]"


def test_the_package_for_users_does_not_need_pytest():
    code = "import sys, pollux.testing; print('pytest' in sys.modules)"

    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert seen.stdout.strip() == "False"
