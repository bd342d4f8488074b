"""A yard for each test; the tests of this ring stay in one process of xdist, for they measure leases against time."""

import pytest

from tests.chaos.yard import Yard


def pytest_collection_modifyitems(items):
    for item in items:
        if "/chaos/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("chaos"))


@pytest.fixture
async def yard(tmp_path):
    yard = Yard(tmp_path)
    try:
        yield yard
    finally:
        await yard.close()
