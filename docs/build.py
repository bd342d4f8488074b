"""Which parts of the documentation are drawn from the code?  `make docs` writes them anew; a test compares.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from pollux.model import TRANSITIONS

FOLDER = Path(__file__).parent
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def lifecycle_chart() -> str:
    """The states of a run and the arrows between them."""
    lines = ["```mermaid", "stateDiagram-v2"]
    for step in TRANSITIONS:
        before = "[*]" if step.before is None else step.before
        lines.append(f"    {before} --> {step.after}: {step.when}")
    lines += [f"    {state} --> [*]" for state in ("done", "cancelled")]
    return "\n".join([*lines, "```"])


def lifecycle_table() -> str:
    """The same arrows as a table, with the verb that makes each."""
    lines = ["| from | to | verb | when |", "|---|---|---|---|"]
    lines += [f"| {step.before or '(new)'} | {step.after} | `{step.verb}` | {step.when} |" for step in TRANSITIONS]
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {"lifecycle_chart": lifecycle_chart, "lifecycle_table": lifecycle_table}


def rebuilt(text: str) -> str:
    """The page with every generated part drawn anew."""
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


def pages() -> list[Path]:
    return sorted(page for page in FOLDER.rglob("*.md") if _PART.search(page.read_text()))


def main() -> int:
    for page in pages():
        old = page.read_text()
        new = rebuilt(old)
        if new != old:
            page.write_text(new)
        sys.stdout.write(f"{page.relative_to(FOLDER.parent)}: {'written' if new != old else 'unchanged'}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
