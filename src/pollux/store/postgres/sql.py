"""Where are the statements?  In `queries/<verb>.sql`, each under its name; read when the first of a file is asked for.

-- name: probe
SELECT ...;
"""

from __future__ import annotations

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Statements:
    """The statements of one file as attributes."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__.update(read(self._verb))
        found = self.__dict__.get(name)
        if found is None:
            raise AttributeError(f"queries/{self._verb}.sql has no statement named {name!r}")
        return str(found)


def read(verb: str) -> dict[str, str]:
    """Every statement of a file by its name."""
    text = files(__package__).joinpath("queries", f"{verb}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    return {name: _bare(sql) for name, sql in zip(parts[1::2], parts[2::2], strict=True)}


def verbs() -> list[str]:
    """The names of all files."""
    return sorted(
        entry.name.removesuffix(".sql")
        for entry in files(__package__).joinpath("queries").iterdir()
        if entry.name.endswith(".sql")
    )


def _bare(sql: str) -> str:
    """Without comments and the last semicolon: statements are cached by their text."""
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return " ".join(" ".join(lines).split()).removesuffix(";")
