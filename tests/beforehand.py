"""Caches that are filled once before a run of tests, not by each of its processes: `python -m tests.beforehand`.

* pytest rewrites every `assert`, which takes longer than all else that it does before the first test, and keeps what it
  wrote beside the tests.  In a fresh checkout nothing is kept yet, and where Python may keep nothing
  (`PYTHONDONTWRITEBYTECODE`) nothing ever is: then each process rewrites every file.  Here it is done on all
  processors, with pytest's own functions, into the files in which pytest looks.
* Hypothesis makes a table of all characters, which takes two seconds, and keeps it in `.hypothesis`.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace

from _pytest.assertion import rewrite

TESTS = Path(__file__).parent
SHIPPED = TESTS.parent / "src" / "pollux" / "testing" / "conformance"
SILENT = SimpleNamespace(trace=lambda _: None)  # whom pytest tells that it could not write
AT_ONCE = 8  # files


def all_files() -> list[Path]:
    """Those whose asserts pytest rewrites: tests, their fixtures, and the suite that the library ships."""
    return [*TESTS.rglob("test_*.py"), *TESTS.rglob("conftest.py"), *SHIPPED.glob("*.py")]


def keep(path: Path) -> Path:
    """Rewrite one file, unless that was done; answers where it is kept."""
    kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, kept) is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        source, code = rewrite._rewrite_test(path, None)  # type: ignore[arg-type]  # asked for an option that is off
        rewrite._write_pyc(SILENT, code, source, kept)  # type: ignore[arg-type]
    return kept


def look_at_characters() -> None:
    from hypothesis import given, settings
    from hypothesis import strategies as st

    settings(max_examples=1, database=None, deadline=None)(given(st.text())(lambda _: None))()


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        looked = processes.submit(look_at_characters)
        for _ in processes.map(keep, all_files(), chunksize=AT_ONCE):
            pass
        looked.result()


if __name__ == "__main__":
    main()
