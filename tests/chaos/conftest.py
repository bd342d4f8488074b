"""Fixture of the chaos tests: a folder with a store, a ledger and processes for each test.

These tests stay in one process of xdist: they measure leases against time, and two of them at once would slow each
other down.
"""

import pytest

from tests.chaos.yard import Yard


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        if "/chaos/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("against time"))


@pytest.fixture
async def yard(tmp_path):
    yard = Yard(tmp_path)
    try:
        yield yard
    finally:
        await yard.close()
