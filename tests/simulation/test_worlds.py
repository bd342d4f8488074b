"""Worlds: the whole engine in virtual time, under faults drawn from seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux.testing.world import draw_script, run_world, story_of
from pollux.testing.world.campaign import ALL, CorpusEntry, read_corpus

CORPUS = read_corpus(Path(__file__).with_name("corpus.json"))
SEEDS, AT_ONCE = 150, 10
FIRST = 5_000
NAMES = ("all", *ALL)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.broke)
def test_no_world_of_the_corpus_breaks_again(entry: CorpusEntry):
    result = run_world(entry.script)
    assert result.is_sound, story_of(result)


@pytest.mark.parametrize("chunk", range(SEEDS // AT_ONCE))
def test_a_world_under_seeded_faults_keeps_every_promise(chunk: int):
    for seed in range(FIRST + chunk * AT_ONCE, FIRST + (chunk + 1) * AT_ONCE):
        script = draw_script(seed, profile=NAMES[seed % len(NAMES)], jobs=16, minutes=2)
        result = run_world(script)
        assert result.is_sound, f"make worlds ARGS='--first {seed} --seeds 1'\n{story_of(result)}"
