"""Base of all groups: the `store` fixture that a subclass provides, and the start time."""

from __future__ import annotations

import pytest

from pollux.testing.conformance.builders import T0


class Contract:
    """Subclass it with a fixture `store` that yields an opened, empty store and closes it afterwards."""

    @pytest.fixture
    def t0(self) -> int:
        return T0
