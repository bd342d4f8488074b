"""Fixtures of the planner's tests: a new world for each."""

import pytest

from tests.unit.plan_world import Leader, World


@pytest.fixture
def world():
    return World()


@pytest.fixture
def leader(world):
    return Leader(world)
