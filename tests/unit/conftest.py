"""The world of the planner's tests, new for each of them."""

import pytest

from tests.unit.plan_world import Leader, World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def leader(world):
    return Leader(world)
