"""Which jobs does the file name?  Nodes to jobs, by the same rules as every other job (`declare.job_of`).

What a job leaves out comes from its group's `defaults:`, then from the file's; `params` are laid over each other, everything
else is taken from the nearest.  Every problem is told once, where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pollux.config.reading import BROKEN, Node, Problems
from pollux.declare import JOB_OPTIONS, did_you_mean, job_of
from pollux.errors import InvalidConfig, InvalidInput
from pollux.model import Job, Schedule
from pollux.schedule import words

HANDLER_KEYS = ("python",)
SCHEDULE_KEYS = ("interval", "cron", "at", "once", "event")
MODIFIERS = {"tz": ("cron",), "start": ("interval",), "spread": ("interval",)}  # and the schedules they belong to
JOB_KEYS = ("id", *HANDLER_KEYS, *SCHEDULE_KEYS, *MODIFIERS, *JOB_OPTIONS)
DEFAULTS_KEYS = (*(option for option in JOB_OPTIONS if option not in {"name", "source_id"}), "tz")

_TEXTS = {"name", "group", "target", "source_id", "tz"}
_PYTHON = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_SCHEDULE_WORDS = {"every": "interval", "line": "cron"}  # what the arithmetic calls them


class FileJobs:
    """The jobs of one file, as they are found; `places` and `python` tell later complaints where they belong."""

    def __init__(self, problems: Problems, *, source: str, release: int) -> None:
        self.problems, self.source, self.release = problems, source, release
        self.jobs: dict[str, Job] = {}
        self.places: dict[str, str] = {}  # job id -> file:line:column
        self.python: dict[str, str] = {}  # module:function -> where it is named first
        self._lines: dict[str, int] = {}
        self._defaults: dict[str, Any] = {}
        self._of_group: dict[str, dict[str, Any]] = {}

    def read_defaults(self, node: Node | None, groups: Node | None) -> None:
        self._defaults = self._read_defaults(node, "defaults")
        for name, group in (groups.value.items() if groups else ()):
            entries = mapping(group, f"group {name!r}", self.problems, example="{defaults: {timeout: 30s}}")
            check_keys(group, entries, ("defaults",), f"group {name!r}", self.problems)
            if "defaults" in entries:
                self._of_group[name] = self._read_defaults(entries["defaults"], f"defaults of group {name!r}", name)

    def read_job(self, node: Node, number: int) -> None:
        """One item of `jobs:`."""
        entries = mapping(node, f"job {number}", self.problems, example="{id: home, python: ..., interval: 30s}")
        if not entries:
            if node.value == {}:
                self.problems.add(node.place, f"job {number} is empty", cure="give it an id and a handler")
            return
        told = len(self.problems.all())
        label = self._identify(node, entries, number)
        check_keys(node, entries, JOB_KEYS, label, self.problems)
        handler = self._handler(node, entries, label)
        options = self._options(entries, label)
        schedule = self._schedule(entries, options.pop("tz", None), label)
        self._declare(node, label, _text(entries.get("id")), handler, schedule, options)
        if len(self.problems.all()) > told:
            return

    def _identify(self, node: Node, entries: Mapping[str, Node], number: int) -> str:
        """How the job is called in messages; tells if its id is missing or taken."""
        given = entries.get("id")
        if given is None:
            self.problems.add(node.place, f"job {number} has no id", cure="give it one that stays: id: home")
            return f"job {number}"
        job_id = _text(given)
        if given.value is BROKEN or job_id is None:
            if given.value is not BROKEN:
                self.problems.add(given.place, f"job {number}: the id is no text", cure="write it like id: home")
            return f"job {number}"
        if job_id in self._lines:
            what = f"job {job_id!r} is there already, in line {self._lines[job_id]}"
            self.problems.add(given.place, what, cure="give one of them another id")
        else:
            self._lines[job_id] = node.line
        return f"job {job_id!r}"
