"""Imports of the PostgreSQL store: it loads no other store and no other driver."""

import subprocess
import sys

import pytest

LOADED = "import sys; import {name}; print(*sorted(name for name in sys.modules if name.startswith({foreign})))"


@pytest.mark.parametrize(
    ("name", "foreign"),
    [
        ("pollux.store.postgres.store", ("apsw", "redis", "pollux.store.sqlite", "pollux.store.redis")),
        ("pollux.store.sqlite.store", ("asyncpg", "redis", "pollux.store.postgres", "pollux.store.redis")),
    ],
)
def test_a_store_with_tables_loads_no_other_store(name, foreign):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(name=name, foreign=foreign)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
