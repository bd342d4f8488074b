"""`python -m tests.sabotage [names]`: exit 0 if every sabotage was caught, 1 if one escaped."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.sabotage.catalogue import SABOTAGES
from tests.sabotage.copy import REPOSITORY, Sabotage, Seen, broken_copy, run_in, run_tests

AT_ONCE = 2  # each in a copy of its own
TABLE = "tests/sabotage/behaviours.txt"
NOTHING = Sabotage("-", "nothing: the same tests must be green", (), ())


def chosen(names: list[str]) -> list[Sabotage]:
    """Those named, whole (`S1.sqlite`) or by their family (`S1`)."""
    known = {name for sabotage in SABOTAGES for name in (sabotage.name, sabotage.name.split(".")[0])}
    unknown = set(names) - known
    if unknown:
        sys.exit(f"no such sabotage: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SABOTAGES)}")
    return [s for s in SABOTAGES if not names or s.name in names or s.name.split(".")[0] in names]


def attempt(sabotage: Sabotage) -> Seen:
    with broken_copy(sabotage.patches) as root:
        return run_tests(root, sabotage.tests)


def check_table() -> int:
    """Does each mutant of the table still turn its behaviours red?"""
    with broken_copy(()) as root:
        return run_in(root, "tests.sabotage.table", "check")


def write_table() -> int:
    """Find a mutant for every behaviour that has none."""
    with broken_copy(()) as root:
        code = run_in(root, "tests.sabotage.table", "write")
        shutil.copy(root / TABLE, REPOSITORY / TABLE)
        return code


@contextmanager
def one_server(sabotages: list[Sabotage]) -> Iterator[None]:
    """One PostgreSQL for all that need one, unless one is named: making it takes longer than most of the tests."""
    from tests.servers.postgres import NAMED, QUICK, PostgresServer

    if NAMED in os.environ or not any("postgres" in test for each in sabotages for test in each.tests):
        yield
        return
    server = PostgresServer(*QUICK)
    try:
        os.environ[NAMED] = server.start().url()
        yield
    finally:
        os.environ.pop(NAMED, None)
        server.stop()


def row(name: str, broken: str, caught_by: str, seconds: float) -> str:
    return f"{name:<15} {broken:<80} {seconds:6.1f} s  {caught_by.removeprefix('tests/')}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sabotage", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these; `table` is the table of the behaviours")
    parser.add_argument("--list", action="store_true", help="name them and run nothing")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests on the unbroken source first")
    parser.add_argument("--behaviours", action="store_true", help=f"fill {TABLE}: a mutant for each behaviour")
    given = parser.parse_args()
    if given.behaviours:
        return write_table()
    names = [name for name in given.names if name != "table"]
    sabotages = chosen(names) if names or not given.names else []
    if given.list:
        for sabotage in sabotages:
            print(f"{sabotage.name:<15} {sabotage.broken}")
        return 0
    code = 0
    if sabotages:
        with one_server(sabotages):
            code = attempt_all(sabotages, has_baseline=not given.no_baseline)
    if not names:
        code = check_table() or code
    return code


def attempt_all(sabotages: list[Sabotage], *, has_baseline: bool) -> int:
    if has_baseline:
        tests = tuple(sorted({test for sabotage in sabotages for test in sabotage.tests}))
        seen = attempt(NOTHING._replace(tests=tests))
        print(row(NOTHING.name, NOTHING.broken, seen.caught_by or "green", seen.seconds), flush=True)
        if seen.caught_by:
            print(f"{seen.said}\nthe tests are red before anything is broken: mend that first")
            return 1
    escaped = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for sabotage, seen in zip(sabotages, pool.map(attempt, sabotages), strict=True):
            print(row(sabotage.name, sabotage.broken, seen.caught_by or "ESCAPED", seen.seconds), flush=True)
            if not seen.caught_by:
                escaped.append(sabotage.name)
    print(f"{len(sabotages) - len(escaped)} of {len(sabotages)} caught")
    if escaped:
        print(f"escaped: {', '.join(escaped)}; a test is missing for each")
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
