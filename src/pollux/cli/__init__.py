"""The command line: thin commands that parse, call the app and print the answer.

Nothing is imported before it is needed: the menu itself is plain text, a command's module comes with the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The program `pollux`; ends the process with one of the exit codes that `pollux --help` names."""
    if "_POLLUX_COMPLETE" in os.environ:
        from pollux.cli.completion import complete

        sys.exit(complete(os.environ["_POLLUX_COMPLETE"]))
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in ([], ["--help"], ["-h"]):
        from pollux.cli.command_table import menu_text

        sys.stdout.write(menu_text())
        sys.exit(0)
    from pollux.cli.runner import run_command

    sys.exit(run_command(given))
