"""Parts of the documentation that are drawn from the code: `make docs` writes them anew; a test compares.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from pollux.cli import command_table
from pollux.clock import SystemClock
from pollux.config import Config
from pollux.config.descriptions import JOB, SETTINGS
from pollux.config.jobs import JOB_KEYS
from pollux.config.settings import OPTIONS
from pollux.model import TRANSITIONS, Job, Run
from pollux.observe.metrics_table import FAMILIES, INFO
from pollux.registry import Context, Handler
from pollux.units import format_ms

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


CONTEXT = {
    "run": "the run: `ctx.run.id` is the same for every attempt, so pass it on as the key of idempotent calls",
    "job": "the job: its id, params, target, and `ctx.job.memory`",
    "attempt": "1, and one more for each failure of this run",
    "delivery": "1, and one more each time the run is given to a worker again: after a failure, a lost lease or a "
    "drain, or where a node handed it back before its handler began. Above 1, an earlier delivery may have begun "
    "its work",
    "deadline": "when the attempt is cut off, a datetime",
    "cancelled": "has somebody asked it to stop? Look at it in long loops of sync handlers",
    "cancel_reason": "why",
    "wait_cancelled": "`wait_cancelled(seconds)`: sleep in a sync handler, but wake at once when asked to stop",
    "progress": '`progress(0.3)`, `progress(3, of=10)`, `progress("step two")`: see [commands](cli.md)',
    "traceparent": "the attempt as a W3C `traceparent`, for what you call; "
    "empty where runs have no [traces](traces.md)",
    "log": '`ctx.log.info("read %d rows", 7)`: a logger whose lines carry the ids of the run and the job',
    "enqueue": "`enqueue(job, params, key=, delay=, priority=)`: a follow-up, accepted with this run's success",
}
_NOT_FOR_HANDLERS = {"handler", "deadline_ms", "follow_ups", "last_progress", "cancel"}


def job_keys() -> str:
    """All that can be said of a job."""
    _must_be_all(JOB, JOB_KEYS)
    return _table(("key", "meaning"), ((f"`{key}`", JOB[key]) for key in JOB_KEYS))


def settings() -> str:
    """All that can be set besides jobs."""
    _must_be_all(SETTINGS, [option.path for option in OPTIONS])
    usual = Config()
    rows = []
    for option in OPTIONS:
        value = getattr(usual, option.field)
        shown = format_ms(value) if option.field.endswith("_ms") and value is not None else value
        default = "" if shown in (None, "") else f"`{shown}`"
        variables = ", ".join(f"`{name}`" for name in (option.variables[0], *option.also))
        rows.append((f"`{option.path}`", variables, default, SETTINGS[option.path]))
    return _table(("in the file", "in the environment", "default", "meaning"), rows)


def context() -> str:
    """What a handler gets as `ctx`."""
    ctx = Context(Run(id="r", job_id="j", due_ms=0), Job(id="j", handler="h"), Handler("h", len), SystemClock(), 0)
    _must_be_all(CONTEXT, [name for name in dir(ctx) if not name.startswith("_") and name not in _NOT_FOR_HANDLERS])
    return _table(("`ctx.`", "meaning"), ((f"`{name}`", words) for name, words in CONTEXT.items()))


def commands() -> str:
    """Every command of the program, in the words of its own help."""
    rows = []
    for name, entry in command_table.ENTRIES.items():
        module, _, attribute = entry.home.partition(":")
        command = getattr(import_module(module), attribute)
        inner: dict[str, Any] = getattr(command, "commands", {})
        rows += [(f"`pollux {name} {word}`", _first_line(each.help)) for word, each in inner.items()]
        if not inner:
            rows.append((f"`pollux {name}`", _first_line(command.help)))
    return _table(("command", "what it does"), rows)


def metrics() -> str:
    """Every metric, in the order in which they are written."""
    rows = []
    for family in FAMILIES:
        suffix = "_info" if family.kind == INFO else ""
        labels = ", ".join(f"`{label}`" for label in family.labels)
        name = f"`{family.full_name('pollux')}{suffix}`"
        rows.append((name, family.kind, family.scope, labels, family.help))
    return _table(("name", "kind", "whose", "labels", "meaning"), rows)


SENT = {  # what a body of the API calls otherwise than a file does, or has besides
    "id": "the name of the job; without one it gets one",
    "url": 'poll this; the same as `"http": {"url": ...}`',
    "handler": "the name of a handler that a living node has",
    "schedule_type": "what `cron_expression`, `interval` ... say already; `immediate` is once, now; `manual` is never",
    "cron_expression": "an older name of `cron`",
    "schedule_enabled": "an older name of `enabled`",
    "timeout_seconds": "an older name of `timeout`",
    "scheduler_version": "the version that serves it; 2 unless the node serves another",
    "depends_on": "not in this version: refused unless it is empty",
    "trigger_webhook": "not in this version: refused unless it is empty",
    "trigger_channel": "not in this version: refused unless it is empty",
    "revision": "with PUT: change the job only if this is its revision",
}


def routes() -> str:
    """Every path of the HTTP API, by subject."""
    from pollux.server.routes import EVERY  # here: the framework, for this part alone

    rows: dict[str, list[tuple[str, str, str]]] = {}
    for each in (each for group in EVERY for each in group.operations if each.include_in_schema):
        words = " ".join(inspect.cleandoc(each.call.__doc__ or "").split()).replace("|", "\\|")
        role = "" if each.role is None else each.role.word
        rows.setdefault(each.subject, []).append((f"`{each.method} {each.path}`", role, words))
    parts = [
        f"### {subject[:1].upper()}{subject[1:]}\n\n" + _table(("", "role", "what it does"), found)
        for subject, found in rows.items()
    ]
    return "\n\n".join(parts)


# Read-only fields of an answer; a body may have them, and they are ignored.
_ANSWERED = {"state", "held", "schedule", "next_due_at", "last_due_at", "last", "source", "release", "declared"}


def job_body() -> str:
    """All that can be sent of a job."""
    from pollux.server.schemas.jobs import JobBody

    _, components = msgspec.json.schema_components([JobBody])
    fields = {name: schema for name, schema in components["JobBody"]["properties"].items() if name not in _ANSWERED}
    rows = [(f"`{name}`", _type(schema), SENT.get(name) or JOB[name]) for name, schema in fields.items()]
    return _table(("field", "kind", "meaning"), rows)


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{choice}`" for choice in schema["enum"] if choice is not None)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "$ref" in schema:
        return "object"
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _first_line(text: str | None) -> str:
    """The first sentence, whole."""
    paragraph = inspect.cleandoc(text or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def _must_be_all(told: Iterable[str], there: Iterable[str]) -> None:
    different = set(told) ^ set(there)
    if different:
        raise SystemExit(f"docs/build.py: {', '.join(sorted(different))}: told but not there, or there but not told")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (lifecycle_chart, lifecycle_table, job_keys, settings, context, commands, metrics, routes, job_body)
}


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
    from docs.pictures import draw  # a real run: only when it is asked for

    for picture in draw():
        sys.stdout.write(f"{picture.relative_to(FOLDER.parent)}: drawn\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
