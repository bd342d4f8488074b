"""Which mistakes does no rule make?  Changes by hand, for behaviours that none of the small ones turns red."""

from __future__ import annotations

from tests.sabotage.copy import Patch

SUBTLE: dict[str, Patch] = {}
