"""Worlds are reproducible: the same seed gives the same trace, whatever the hashes of Python's strings are."""

from __future__ import annotations

import os
import subprocess
import sys

SEEDS = 20
PRINT_DIGESTS = f"""
from pollux.testing.world import draw_script, run_world
from pollux.testing.world.campaign import ALL

for seed in range({SEEDS}):
    script = draw_script(seed, profile=("all", *ALL)[seed % 5], jobs=16, minutes=1)
    print(seed, run_world(script).digest)
"""


def digests(hash_seed: int) -> list[str]:
    command = [sys.executable, "-c", PRINT_DIGESTS]
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_same_seed_gives_the_same_trace_on_every_run():
    """Twice each, in processes whose hashes differ."""
    first = digests(1)

    assert len(set(first)) == SEEDS
    assert digests(4_711) == first
