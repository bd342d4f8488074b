"""How far is it?  A bar on a terminal; nothing in a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Show = Callable[[str, int, int], None]  # what is done, how far, of how many (0: nobody knows)


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.columns import Columns
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=10) as live:

        def show(what: str, done: int, total: int) -> None:
            live.update(Columns([what, ProgressBar(total=total or None, completed=done, width=40, pulse=not total)]))

        yield show
