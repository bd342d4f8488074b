"""Many worlds: the seeds of a range on all processes, the corpus first, and a table of what was reached.

python -m pollux.testing.world --seeds 2000 --profile kills --nodes 3 --jobs 2
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput, PolluxError
from pollux.model import TRANSITIONS
from pollux.testing.world.script import FAULT_KINDS, PROFILES, VERBS, Script, check_profile, check_seed, draw_script
from pollux.testing.world.shrink import ScriptShrinker, story_of
from pollux.testing.world.world import run_world

FAILURES_MAX = 5  # worlds that are shrunk and told; the others are counted
CHUNK = 5
ALL = tuple(name for name in PROFILES if name not in ("calm", "all"))


class CorpusEntry(Struct, frozen=True, omit_defaults=True):
    """A world that once broke a promise."""

    broke: str
    found: str
    script: Script


class SeedResult(Struct, frozen=True):
    """What one seed came to; `broken` is empty for a sound world."""

    seed: int
    profile: str
    broken: str
    faults: int
    reached: dict[str, int]


class WorldsWanted(Struct, frozen=True):
    """Which worlds to run."""

    seeds: int = 200
    first: int = 0
    profile: str = "all"
    nodes: int = 3
    minutes: float = 5.0
    processes: int = 1
    until_broken: bool = False  # end with the first broken world, and do not shrink it

    def script(self, seed: int) -> Script:
        """`all` takes the profiles in turn; each contains faults of every kind at times."""
        names = ("all", *ALL) if self.profile == "all" else (self.profile,)
        return draw_script(seed, profile=names[seed % len(names)], nodes=self.nodes, minutes=self.minutes)


def read_corpus(path: Path) -> list[CorpusEntry]:
    """The worlds of a corpus file; none if it is not there."""
    return msgspec.json.decode(path.read_bytes(), type=list[CorpusEntry]) if path.exists() else []


def write_corpus(path: Path, entries: Sequence[CorpusEntry]) -> None:
    path.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, entries)) + b"\n]\n")


def try_seeds(wanted: WorldsWanted, seeds: Sequence[int]) -> list[SeedResult]:
    """Run the worlds of these seeds in this process."""
    tried = []
    for seed in seeds:
        script = wanted.script(seed)
        result = run_world(script)
        broken = f"{result.broken[0].kind}: {result.broken[0].words}" if result.broken else ""
        tried.append(SeedResult(seed, script.profile, broken, len(script.faults), dict(result.reached)))
    return tried


def try_all(wanted: WorldsWanted) -> Iterator[SeedResult]:
    """Run all worlds, in chunks over the processes; in any order."""
    seeds = range(wanted.first, wanted.first + wanted.seeds)
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if wanted.processes == 1:
        for chunk in chunks:
            yield from try_seeds(wanted, chunk)
        return
    with ProcessPoolExecutor(wanted.processes) as pool:
        for found in pool.map(try_seeds, [wanted] * len(chunks), chunks):
            yield from found


def run_campaign(wanted: WorldsWanted, corpus: Path | None) -> int:
    """Replay the corpus, run the worlds, print what was found; the number of broken worlds."""
    failed = _replay(corpus) if corpus is not None else 0
    reached: Counter[str] = Counter()
    began, done, faults = time.monotonic(), 0, 0
    broken: list[SeedResult] = []
    for tried in try_all(wanted):
        done += 1
        faults += tried.faults
        reached.update(tried.reached)
        if tried.broken:
            broken.append(tried)
            _say(f"seed {tried.seed} ({tried.profile}): {tried.broken}")
            if wanted.until_broken:
                _say(f"broken after {done} worlds")
                return 1
        if done % 10 == 0 and sys.stderr.isatty():
            rate = done / (time.monotonic() - began)
            _show(f"{done} of {wanted.seeds} worlds, {rate:.1f} a second")
    seconds = max(time.monotonic() - began, 1e-9)
    for tried in broken[:FAILURES_MAX]:
        _tell(wanted, tried, corpus)
    _say(coverage_table(reached))
    _say(
        f"{done} worlds in {seconds:.1f} s ({60 * done / seconds:.0f} a minute), {faults / seconds:.0f} faults a second"
    )
    _say(f"{len(broken)} broken" if broken else "all sound")
    return failed + len(broken)


def _replay(corpus: Path) -> int:
    failed = 0
    for entry in read_corpus(corpus):
        result = run_world(entry.script)
        if result.broken:
            failed += 1
            _say(f"corpus: {entry.broke} ({entry.found}) is broken again\n{story_of(result)}\n")
    return failed


def _tell(wanted: WorldsWanted, tried: SeedResult, corpus: Path | None) -> None:
    """Shrink a broken world, print its story, and keep it in the corpus."""
    result = run_world(wanted.script(tried.seed))
    if not result.broken:
        _say(f"seed {tried.seed} broke a promise in one process and not in another: it is not reproducible")
        return
    small = ScriptShrinker(result).shrink()
    _say(f"\n{story_of(small)}\n")
    if corpus is not None:
        entry = CorpusEntry(small.broken[0].kind, f"seed {tried.seed}, profile {tried.profile}", small.script)
        known = read_corpus(corpus)
        if all(each.script != entry.script for each in known):
            write_corpus(corpus, [*known, entry])


def coverage_table(reached: Counter[str]) -> str:
    """What was reached, by kind, and what never."""
    groups: dict[str, list[str]] = {}
    for name, count in sorted(reached.items()):
        kind, _, what = name.partition(" ")
        groups.setdefault(kind, []).append(f"{what} {count}")
    lines = [f"{kind}: {', '.join(found)}" for kind, found in groups.items()]
    never = [f"fault {kind}" for kind in FAULT_KINDS if not reached[f"fault {kind}"]]
    never += [f"user {verb}" for verb in VERBS if not any(name.startswith(f"user {verb} ") for name in reached)]
    moves = {f"transition {each.before} -> {each.after}" for each in TRANSITIONS if each.before is not None}
    never += sorted(move for move in moves if not any(name.startswith(move) for name in reached))
    return "\n".join([*lines, f"never reached: {', '.join(never) or 'nothing'}"])


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _show(words: str) -> None:
    sys.stderr.write(f"\r\033[K{words}")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pollux.testing.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--profile", default="all", help=f"one of {', '.join(PROFILES)}")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0, help="virtual minutes with faults")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--corpus", type=Path, help="file of worlds that are replayed first, and added to")
    parser.add_argument("--until-broken", action="store_true", help="end with the first broken world")
    given = parser.parse_args(arguments)
    try:
        check_profile(given.profile)
        check_seed(given.first)
        check_seed(given.first + max(given.seeds, 1) - 1)
        if given.seeds < 1 or given.jobs < 1:
            raise InvalidInput("there is nothing to run", cure="give --seeds and --jobs of at least 1")
        wanted = WorldsWanted(
            given.seeds, given.first, given.profile, given.nodes, given.minutes, given.jobs, given.until_broken
        )
        wanted.script(given.first)
        return 1 if run_campaign(wanted, given.corpus) else 0
    except PolluxError as error:
        sys.stderr.write(f"worlds: {error}\n")
        return 2
