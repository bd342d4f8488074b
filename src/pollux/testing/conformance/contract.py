"""What do all groups of the suite share?  A `store` fixture that the subclass brings, and when all begins."""

from __future__ import annotations

import pytest

from pollux.testing.conformance.builders import T0


class Contract:
    """Subclass it with a fixture `store` that gives an opened, empty store and closes it afterwards."""

    @pytest.fixture
    def t0(self) -> int:
        return T0
