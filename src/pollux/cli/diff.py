"""Changes that a config file would make, and the file it replaces: for `check --diff` and `reload --dry-run`.

A file that is being prepared mostly lies beside the one that is used, under another name: `new.yaml` beside
`pollux.yaml`.  By its name it would be another source of jobs, to which none of these belong.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pollux.cli.options import ask, store_lacks
from pollux.cli.output import clean
from pollux.errors import InvalidInput
from pollux.units import format_size

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.config import Config

TEXT_BYTES_MAX = 490_000  # of a text that a node is asked about: as JSON at most twice as long
PAGE = 1_000

as_option = click.option(
    "--as", "as_file", metavar="FILE", help="It is to take the place of this file; else of the one that has its jobs."
)


def place_for(config: Config, url: str) -> str:
    """The source in whose place this file would come, if not in one of its own: all its known jobs are that one's."""
    if url.startswith("memory:") or store_lacks(url):
        return ""
    ids = [job.id for job in config.jobs]

    async def question(operations: OperationsProtocol) -> set[str]:
        pages = [await operations.jobs.jobs_by_id(ids[start : start + PAGE]) for start in range(0, len(ids), PAGE)]
        return {job.source for page in pages for job in page if job is not None}

    owners = ask(url, question) if ids else set()
    [owner] = owners if len(owners) == 1 else [""]
    return owner if owner.startswith("file:") and owner != config.source else ""


def say_place(config: Config, source: str) -> None:
    name = Path(config.path).name
    words = f"{config.path} has jobs of {source}: compared as its next text"
    click.echo(f"pollux: {clean(words)}; --as {clean(name)}: as a file of its own", err=True)


def text_at(path: str) -> str:
    """What a file holds, to be shown to a node."""
    try:
        raw = Path(path).read_bytes()
        text = raw.decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"it cannot be read: {error.strerror}", where=path, cure="name a readable file") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("it is not text in UTF-8", where=path, cure="save it as UTF-8") from error
    if len(raw) > TEXT_BYTES_MAX:
        what = f"it is bigger than {format_size(TEXT_BYTES_MAX)}, too big to be shown to a node"
        raise InvalidInput(what, where=path, cure="compare it with the store itself: pollux check --diff")
    return text
