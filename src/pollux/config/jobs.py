"""Which jobs does the file name?  Nodes to jobs, by the same rules as every other job (`declare.job_of`).

What a job leaves out comes from its group's `defaults:`, then from the file's; `params` are laid over each other, everything
else is taken from the nearest.  Every problem is told once, where it stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pollux.config.reading import BROKEN, Node, Problems
from pollux.declare import JOB_OPTIONS, did_you_mean, job_of
from pollux.errors import InvalidConfig, InvalidInput
from pollux.model import Job, Schedule
from pollux.schedule import words

HANDLER_KEYS = ("python",)
SCHEDULE_KEYS = ("interval", "cron", "at", "once", "event")
MODIFIERS = {"tz": "cron", "start": "interval", "spread": "interval"}  # and the schedule each belongs to
JOB_KEYS = ("id", *HANDLER_KEYS, *SCHEDULE_KEYS, *MODIFIERS, *JOB_OPTIONS)
DEFAULTS_KEYS = (*(option for option in JOB_OPTIONS if option not in {"name", "source_id"}), "tz")
EXAMPLE = '{id: home, python: "checks:home", interval: 30s}'

_TEXTS = frozenset({"name", "group", "target", "source_id", "tz"})
_WORD = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PYTHON = re.compile(f"{_WORD}:{_WORD}")
_FILE_WORDS = {"every": "interval", "line": "cron"}  # what the arithmetic of schedules calls them


class FileJobs:
    """The jobs of one file, as they are found; `places` and `python` tell later complaints where they belong."""

    def __init__(self, problems: Problems, *, source: str, release: int) -> None:
        self.problems, self.source, self.release = problems, source, release
        self.jobs: dict[str, Job] = {}
        self.places: dict[str, str] = {}  # job id -> file:line:column
        self.python: dict[str, str] = {}  # module:function -> where it is named first
        self._lines: dict[str, int] = {}  # job id -> line, also of jobs that are wrong
        self._defaults: dict[str, Any] = {}
        self._of_group: dict[str, dict[str, Any]] = {}

    def read_defaults(self, defaults: Node | None, groups: Node | None) -> None:
        if defaults is not None:
            self._defaults = self._defaults_of(defaults, "defaults", DEFAULTS_KEYS)
        for name, group in (entries_of(groups, "groups", self.problems, example="{edge: {...}}") if groups else {}).items():
            label = f"group {name!r}"
            entries = entries_of(group, label, self.problems, example="{defaults: {timeout: 30s}}")
            check_keys(group, ("defaults",), label, self.problems)
            if "defaults" in entries:
                allowed = tuple(key for key in DEFAULTS_KEYS if key != "group")
                self._of_group[name] = self._defaults_of(entries["defaults"], f"{label}: defaults", allowed)

    def read(self, node: Node) -> None:
        """Everything below `jobs:`."""
        if node.value is None or node.value is BROKEN:
            return
        if type(node.value) is not list:
            cure = f"write one item for each: - {EXAMPLE}"
            self.problems.add(node.place, "jobs is not a list", cure=cure)
            return
        for number, item in enumerate(node.value, start=1):
            self._read_job(item, number)

    def _read_job(self, node: Node, number: int) -> None:
        count = self.problems.count
        entries = entries_of(node, f"job {number}", self.problems, example=EXAMPLE)
        if self.problems.count > count or node.value is BROKEN:
            return
        label = self._identify(node, number)
        check_keys(node, JOB_KEYS, label, self.problems)
        options = {**self._inherited(entries), **self._options(entries, label)}
        handler = self._handler(node, label)
        schedule = self._schedule(entries, options.pop("tz", None), label)
        job_id = text_of(entries.get("id"))
        job = self._declare(node, label, id=job_id or "x", handler=handler or "x", schedule=schedule, options=options)
        if job is None or self.problems.count > count or handler is None:
            return
        self.jobs[job.id] = job
        self.places[job.id] = place = f"{self.problems.name}:{node.line}:{node.column}"
        self.python.setdefault(handler, place)

    def _identify(self, node: Node, number: int) -> str:
        """How messages call the job; tells if its id is missing or taken."""
        given = node.value.get("id")
        if given is None:
            self.problems.add(node.place, f"job {number} has no id", cure="give it one that stays: id: home")
        elif given.value is not BROKEN and (job_id := text_of(given)) is None:
            self.problems.add(given.place, f"job {number}: the id is no text", cure="write it like id: home")
        elif given.value is not BROKEN and job_id in self._lines:
            what = f"job {job_id!r} is there already, in line {self._lines[job_id]}"
            self.problems.add(given.place, what, cure="give one of them another id")
            return f"job {job_id!r}"
        elif given.value is not BROKEN:
            self._lines[job_id] = node.line
            return f"job {job_id!r}"
        return f"job {number}"

    def _handler(self, node: Node, label: str) -> str | None:
        """`module:function`; only the form is looked at here, the app imports it."""
        given = node.value.get("python")
        if given is None:
            self.problems.add(node.place, f"{label}: no handler is named", cure='add python: "module:function"')
            return None
        name = text_of(given)
        if given.value is BROKEN or (name is not None and _PYTHON.fullmatch(name)):
            return name
        what = f"{label}: python: {_shown(given)} names no function"
        self.problems.add(given.place, what, cure='write it like python: "reports:daily" (module:function)')
        return None

    def _schedule(self, entries: Mapping[str, Node], tz: str | None, label: str) -> Schedule | None:
        kinds = [key for key in SCHEDULE_KEYS if key in entries]
        if len(kinds) > 1:
            what = f"{label}: {' and '.join(kinds)} cannot both be the schedule"
            self.problems.add(entries[kinds[1]].place, what, cure="keep one of them")
            return None
        for modifier, owner in MODIFIERS.items():
            if modifier in entries and owner not in kinds:
                what = f"{label}: {modifier} means nothing without {owner}"
                self.problems.add(entries[modifier].place, what, cure=f"take it away, or give the job {owner}")
        if not kinds or any(entries[key].value is BROKEN for key in (*kinds, *MODIFIERS) if key in entries):
            return None
        try:
            return _schedule_of(kinds[0], entries, tz)
        except InvalidInput as error:
            self._tell(entries, entries[kinds[0]].place, label, error.at("schedule"), kinds[0])
            return None

    def _options(self, entries: Mapping[str, Node], label: str) -> dict[str, Any]:
        """What the file says for these job options; keys that are no options are left alone."""
        options = {}
        for key in entries.keys() & {*JOB_OPTIONS, "tz"}:
            node = entries[key]
            if node.value is None:
                self.problems.add(node.place, f"{label}: {key} has no value", cure="give it one, or take the line away")
            elif key in _TEXTS and text_of(node) is None and node.value is not BROKEN:
                self.problems.add(node.place, f"{label}: {key} is no text", cure=f"write it like {key}: something")
            elif node.value is not BROKEN:
                options[key] = _option_of(key, node)
        return options

    def _inherited(self, entries: Mapping[str, Node]) -> dict[str, Any]:
        group = text_of(entries.get("group")) or self._defaults.get("group", "")
        of_group = self._of_group.get(group)
        inherited = self._defaults if of_group is None else overlaid(self._defaults, of_group)
        return inherited

    def _defaults_of(self, node: Node, label: str, allowed: tuple[str, ...]) -> dict[str, Any]:
        """Job options to be inherited, each tried by itself; one that is wrong is told here and inherited by nobody."""
        entries = entries_of(node, label, self.problems, example="{timeout: 30s}")
        check_keys(node, allowed, label, self.problems, among="defaults")
        options = {key: value for key, value in self._options(entries, label).items() if key in allowed}
        good = {}
        for key, value in options.items():
            schedule = words.cron("0 0 * * *", tz=value) if key == "tz" else None
            probe = {} if key == "tz" else {key: value}
            if self._declare(node, label, id="x", handler="x", schedule=schedule, options=probe) is not None:
                good[key] = value
        return good

    def _declare(
        self, node: Node, label: str, *, id: str, handler: str, schedule: Schedule | None, options: dict[str, Any]
    ) -> Job | None:
        """The job, or None and every problem told at its place."""
        try:
            return job_of(
                id=id, handler=handler, schedule=schedule, source=self.source, release=self.release, **options
            )
        except InvalidConfig as error:
            found = error.problems
        except InvalidInput as error:
            found = (error,)
        for problem in found:
            self._tell(node.value, node.place, label, problem, _schedule_key(node.value))
        return None

    def _tell(
        self, entries: Mapping[str, Node], fallback: tuple[int, int], label: str, problem: InvalidInput, schedule_key: str
    ) -> None:
        """Say a problem of `job_of` at the value that it is about."""
        path = problem.where.removeprefix("schedule").strip(".").split(".")
        path = [_FILE_WORDS.get(part, part) for part in path if part] or [schedule_key]
        node = entries.get(path[0]) or entries.get(schedule_key if problem.where.startswith("schedule") else "")
        place, named = (node.place, f"{path[0]}: ") if node else (fallback, f"{path[0]}: " if path[0] else "")
        self.problems.add(place, f"{label}: {named}{problem.what}", cure=problem.cure)


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The nearer options; params are laid over each other."""
    both = {**below, **above}
    if "params" in below and "params" in above:
        both["params"] = {**below["params"], **above["params"]}
    return both
