"""`pollux why`: why a job or run does not run, and what to do."""

from __future__ import annotations

import click

from pollux.cli.completion import job_ids
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import ago, now_ms, print_json, print_pairs
from pollux.cli.runner import TeachingCommand


@click.command(cls=TeachingCommand)
@click.argument("ref", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def why(ref: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Say why a job or run does not run (or that it does), when it is expected, and what to do.

    For example:
      pollux why home
      pollux why home@1790000000000 --json
    """
    answer = ask(existing_store(StoreChoice(config, store)), lambda operations: operations.status.why(ref))
    if as_json:
        print_json({"id": ref, "why": answer})
        return
    expected = ago(answer.expected_ms, now=now_ms())
    print_pairs((("answer", answer.answer), ("reason", answer.reason), ("expected", expected), ("cure", answer.cure)))
