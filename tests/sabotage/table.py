"""Table of the mutant that turns each behaviour red; written and checked here.

    python -m tests.sabotage.table check     every mutant of the table still turns its behaviours red
    python -m tests.sabotage.table write     find one for every behaviour that has none any more

Run by `python -m tests.sabotage` in a copy of source and tests: nobody changes the source meanwhile.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.sabotage.behaviours import BEHAVIOURS, CLAIM, CRASH, killed_by, look, touched_by
from tests.sabotage.mutants import Found, Mutant, files, mutants

TABLE = Path(__file__).parent / "behaviours.txt"
HEAD = """\
# Which change of the memory store turns each behaviour of the conformance suite red?  File, function and change.
# Held to its word by `make sabotage`; `python -m tests.sabotage --behaviours` fills what is missing.
"""
CHOICE = 60  # so many mutants that a behaviour claims against are enough to choose from
Table = dict[str, Mutant]


def read(text: str | None = None) -> Table:
    lines = [line for line in (text or TABLE.read_text()).splitlines() if line and not line.startswith("#")]
    names, told = lines[::2], lines[1::2]
    return {name: Mutant(*line.strip().split(" | ", 2)) for name, line in zip(names, told, strict=True)}


def written(table: Table) -> str:
    return HEAD + "".join(f"\n{name}\n    {table[name]}\n" for name in sorted(table))


def known() -> dict[Mutant, Found]:
    return {found.mutant: found for file in files() for found in mutants(file)}


def wrong(table: Table) -> list[str]:
    """What of it is not true any more, as far as reading can tell."""
    there = known()
    missing = [f"{name}: no mutant stands for it" for name in BEHAVIOURS if name not in table]
    gone = [f"{name}: there is no such behaviour" for name in table if name not in BEHAVIOURS]
    misfits = [f"{name}: its mutant fits no more: {table[name]}" for name in table if table[name] not in there]
    return [*missing, *gone, *misfits]


def standing(table: Table) -> Table:
    """The rows whose mutant still turns its behaviour red."""
    there = known()
    rows: dict[Mutant, list[str]] = defaultdict(list)
    for name in BEHAVIOURS:
        if name in table and table[name] in there:
            rows[table[name]].append(name)
    kept = {}
    for number, (mutant, names) in enumerate(rows.items(), 1):
        _show(f"{number} of {len(rows)} mutants")
        seen = killed_by(there[mutant], names, frozenset())
        kept |= {name: mutant for name in names if seen.get(name, CRASH) != CRASH}
    return kept


def search(names: list[str]) -> Table:
    """For each of these behaviours a mutant that it claims against, and that few others notice."""
    looked = look()
    rows: dict[Mutant, dict[str, str]] = {}
    width: dict[Mutant, tuple[int, int]] = {}
    asked = set(names)
    everything = list(known().values())
    claims: Counter[str] = Counter()
    for number, found in enumerate(everything, 1):
        touched = touched_by(found, looked)
        mine = [name for name in touched if name in asked and claims[name] < CHOICE]
        if mine:
            _show(f"{number} of {len(everything)} mutants")
            seen = killed_by(found, mine, looked.slow)
            others = [name for name in touched if seen and name not in mine]
            rows[found.mutant] = {name: how for name, how in seen.items() if how != CRASH}
            width[found.mutant] = len(seen) + len(killed_by(found, others, looked.slow)), len(touched)
            claims.update(name for name, how in seen.items() if how == CLAIM)
    return cover(rows, width)


def cover(rows: dict[Mutant, dict[str, str]], width: dict[Mutant, tuple[int, int]]) -> Table:
    """A claim is better than a refusal, a narrow mutant better than a wide one; among good ones, few for all."""
    good: dict[str, set[Mutant]] = {}
    for name in {name for row in rows.values() for name in row}:
        killers = [mutant for mutant, row in rows.items() if name in row]
        far = (
            5 * min(width[mutant][0] for mutant in killers) + 10
        )  # a claim against a store where nothing works is none
        claims = [mutant for mutant in killers if rows[mutant][name] == CLAIM and width[mutant][0] <= far]
        narrow = min(width[mutant][0] for mutant in claims or killers)
        good[name] = {mutant for mutant in claims or killers if width[mutant][0] <= 2 * narrow + 2}
    table: Table = {}
    while good:
        standing_for: dict[Mutant, list[str]] = defaultdict(list)
        for name, killers in good.items():
            for mutant in killers:
                standing_for[mutant].append(name)
        best = min(standing_for, key=lambda mutant: (-len(standing_for[mutant]), *width[mutant], mutant))
        for name in standing_for[best]:
            table[name] = best
            del good[name]
    return table


def _show(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)


def check() -> int:
    table = read()
    faults = wrong(table)
    stands = standing(table)
    faults += [
        f"{name}: stays green under {table[name]}" for name in table if name in BEHAVIOURS and name not in stands
    ]
    print(f"{len(stands)} of {len(BEHAVIOURS)} behaviours turn red under one of {len(set(stands.values()))} mutants")
    return _judged(faults, cure="python -m tests.sabotage --behaviours")


def write() -> int:
    table = standing(read()) if TABLE.exists() else {}
    missing = [name for name in BEHAVIOURS if name not in table]
    if missing:
        table |= standing(search(missing))
    TABLE.write_text(written(table))
    print(f"{len(table)} of {len(BEHAVIOURS)} behaviours have a mutant")
    left = [f"{name}: no mutant turns it red" for name in BEHAVIOURS if name not in table]
    return _judged(left, cure="write one by hand in tests/sabotage/by_hand.py, or mend the behaviour: it cannot fail")


def _judged(faults: list[str], *, cure: str) -> int:
    _show("")
    for fault in faults:
        print(fault)
    if faults:
        print(f"cure: {cure}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit({"check": check, "write": write}[sys.argv[1]]())
