"""Named statements from `queries/<verb>.sql` of each store, read on first use, and numbered migrations.

-- name: probe
SELECT ...;
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_END = re.compile(r";\n\n|;\s*\Z")  # an empty line follows a statement; a function has statements inside


class NamedStatements(dict[str, str]):
    """All statements of a store by their names, as `jobs.get`; a file is read at the first use of one of it."""

    def __init__(self, package: str, written: Callable[[str], str] = str) -> None:
        super().__init__()
        self._package, self._written = package, written

    def __missing__(self, name: str) -> str:
        verb, _, _ = name.partition(".")
        for each, sql in read(self._package, verb).items():
            self[f"{verb}.{each}"] = self._written(sql)
        found = self.get(name)
        if found is None:
            raise LookupError(f"{self._package} has no statement named {name!r}")
        return found


def read(package: str, verb: str) -> dict[str, str]:
    """Every statement of a file by its name."""
    text = files(package).joinpath("queries", f"{verb}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return {name: _bare(sql) for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def verbs(package: str) -> list[str]:
    """The names of all files."""
    names = [entry.name for entry in files(package).joinpath("queries").iterdir()]
    return sorted(name.removesuffix(".sql") for name in names if name.endswith(".sql"))


def _bare(sql: str) -> str:
    """Without comments and the last semicolon: statements are cached by their text."""
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return " ".join(" ".join(lines).split()).removesuffix(";")


class Migration(NamedTuple):
    number: int
    name: str
    statements: tuple[str, ...]


def migrations_of(package: str) -> list[Migration]:
    """All of a store, in order."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
            parts = _END.split(entry.read_text("utf-8"))
            statements = tuple(part.strip() for part in parts if part.strip())
            found.append(Migration(int(match[1]), entry.name, statements))
    return sorted(found)
