"""Jobs of the config file: YAML nodes to jobs, by the same rules as every other job (`job_builder.job_of`).

What a job leaves out comes from its group's `defaults:`, then from the file's; `params` are merged, everything else is
taken from the nearest.  Every problem is reported once, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pollux.config.yaml_reader import BROKEN, Place, Problems, YamlNode, shortened
from pollux.errors import InvalidConfig, InvalidInput, did_you_mean, foreign_word
from pollux.handlers import BUILT_IN, params_in_file
from pollux.job_builder import JOB_OPTIONS, job_of
from pollux.model import Job, Schedule
from pollux.schedule import builders
from pollux.units import duration_ms, moment_ms

HANDLER_KEYS = ("python", *BUILT_IN)
SCHEDULE_KEYS = ("interval", "cron", "at", "once", "event")
MODIFIERS = {"tz": "cron", "start": "interval", "spread": "interval"}  # and the schedule each belongs to
JOB_KEYS = ("id", *HANDLER_KEYS, *SCHEDULE_KEYS, *MODIFIERS, *JOB_OPTIONS)
DEFAULTS_KEYS = (*(option for option in JOB_OPTIONS if option not in {"name", "source_id"}), "tz")
EXAMPLE = '{id: home, python: "checks:home", interval: 30s}'

_OPTIONS = frozenset({*JOB_OPTIONS, "tz"})
_TEXTS = frozenset({"name", "group", "target", "source_id", "tz"})
_WORD = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PYTHON = re.compile(f"{_WORD}:{_WORD}")
_WORDS_OF_THE_FILE = {"every": "interval", "line": "cron", "handler": "python"}

Entries = Mapping[str, YamlNode]


class FileJobs:
    """The jobs of one file; `places` and `python` give later problems their place."""

    def __init__(self, problems: Problems, *, source: str, release: int, timeout_ms: int | None = None) -> None:
        self.problems, self.source, self.release = problems, source, release
        self.jobs: dict[str, Job] = {}
        self.wrong: dict[str, Job] = {}  # jobs with a reported problem, as far as they can be read
        self.places: dict[str, str] = {}  # job id -> file:line:column
        self.python: dict[str, str] = {}  # module:function -> where it is named first
        self._seen: dict[str, YamlNode] = {}  # by id, also invalid ones
        self._defaults: dict[str, Any] = {} if timeout_ms is None else {"timeout": timeout_ms / 1000}
        self._of_group: dict[str, dict[str, Any]] = {}

    def read_defaults(self, node: YamlNode) -> None:
        self._defaults |= self._defaults_of(node, "defaults", DEFAULTS_KEYS)

    def read_groups(self, node: YamlNode) -> None:
        example = "{edge: {defaults: {timeout: 30s}}}"
        allowed = tuple(key for key in DEFAULTS_KEYS if key != "group")
        for name, group in entries_of(node, "groups", self.problems, example=example).items():
            label = f"group {shortened(name)!r}"
            entries = entries_of(group, label, self.problems, example="{defaults: {timeout: 30s}}")
            check_keys(group, ("defaults",), label, self.problems)
            if "defaults" in entries:
                self._of_group[name] = self._defaults_of(entries["defaults"], f"{label}: defaults", allowed)

    def read_jobs(self, node: YamlNode) -> None:
        if node.value is None or node.value is BROKEN:
            return
        if type(node.value) is not list:
            self.problems.add(node.place, "jobs is not a list", cure=f"write an item for each: - {EXAMPLE}")
            return
        for number, item in enumerate(node.value, start=1):
            self._read_job(item, number)

    def _read_job(self, node: YamlNode, number: int) -> None:
        if type(node.value) is not dict:
            if node.value is not BROKEN:
                self.problems.add(node.place, f"job {number} is not a mapping", cure=f"write it like {EXAMPLE}")
            return
        count = self.problems.count
        entries: Entries = node.value
        label = self._identify(node, entries, number)
        check_keys(node, JOB_KEYS, label, self.problems, place_of=lambda key: _place_of(key, entries))
        handler = self._handler(node, entries, label)
        options = overlaid(self._inherited(entries), self._options(entries, label))
        before = self.problems.count
        if handler in BUILT_IN:
            options["params"] = self._built_in_params(handler, entries, label)
        is_fit = self.problems.count == before  # else errors of the remaining params would mislead
        schedule = self._schedule(entries, options.pop("tz", None), label)
        job_id = text_of(entries.get("id"))
        job = self._declare(node, label, job_id, handler, schedule, options)
        if handler is not None and "python" in entries:
            self.python.setdefault(handler, self.problems.where(entries["python"].place))
        if job is None or handler is None:
            return
        if self.problems.count == count:
            self.jobs[job.id] = job
        elif job.id not in self.jobs and job_id is not None and is_fit:
            self.wrong.setdefault(job.id, job)
        self.places.setdefault(job.id, self.problems.where(node.place))

    def _identify(self, node: YamlNode, entries: Entries, number: int) -> str:
        """Return the name of the job for messages; report a missing or repeated id."""
        given = entries.get("id")
        job_id = text_of(given)
        if given is None:
            self.problems.add(node.place, f"job {number} has no id", cure="give it one that stays: id: home")
        elif job_id is None and given.value is not BROKEN:
            self.problems.add(given.place, f"job {number}: the id is no text", cure="write it like id: home")
        elif job_id is not None:
            first = self._seen.setdefault(job_id, node)
            if first is not node:
                what = f"job {shortened(job_id)!r} is there already, in line {first.line}"
                self.problems.add(given.place, what, cure="give one of them another id")
            return f"job {shortened(job_id)!r}"
        return f"job {number}"

    def _handler(self, node: YamlNode, entries: Entries, label: str) -> str | None:
        """Return `module:function`, or a built-in handler; only the form is checked here, the app imports it."""
        named = [key for key in HANDLER_KEYS if key in entries]
        if not named:
            cure = 'add python: "module:function", or http: "https://..."'
            self.problems.add(node.place, f"{label}: no handler is named", cure=cure)
            return None
        if len(named) > 1:
            what = f"{label}: {' and '.join(named)} cannot both be its handler"
            self.problems.add(entries[named[1]].place, what, cure="keep one of them")
            return None
        if named[0] in BUILT_IN:
            return named[0]
        given = entries["python"]
        name = text_of(given)
        if given.value is BROKEN or (name is not None and _PYTHON.fullmatch(name)):
            return name
        what = f"{label}: python: {shown(given)} names no function"
        self.problems.add(given.place, what, cure='write it like python: "reports:daily" (module:function)')
        return None

    def _built_in_params(self, handler: str, entries: Entries, label: str) -> dict[str, Any]:
        """Return the params of a built-in handler; those of `defaults:` are for the user's own handlers."""
        if "params" in entries:
            what, cure = f"{label}: params next to {handler}", f"write them under {handler}: {{...}}"
            self.problems.add(entries["params"].place, what, cure=cure)
        node = entries[handler]
        if node.value is BROKEN:
            return {}
        partial = not any(key in entries for key in SCHEDULE_KEYS)
        try:
            return params_in_file(handler, node.plain(), partial=partial)
        except InvalidInput as error:
            for problem in error.problems if isinstance(error, InvalidConfig) else (error,):
                self._report(entries, node.place, label, problem.at(handler))
            return {}

    def _schedule(self, entries: Entries, tz: str | None, label: str) -> Schedule | None:
        kinds = [key for key in SCHEDULE_KEYS if key in entries]
        if len(kinds) > 1:
            what = f"{label}: {' and '.join(kinds)} cannot both be the schedule"
            self.problems.add(entries[kinds[1]].place, what, cure="keep one of them")
            return None
        for modifier, owner in MODIFIERS.items():
            if modifier in entries and owner not in kinds:
                what = f"{label}: {modifier} means nothing without {owner}"
                self.problems.add(entries[modifier].place, what, cure=f"remove it, or give the job {owner}")
        if not kinds or entries[kinds[0]].value is BROKEN:
            return None
        try:
            return _schedule_of(kinds[0], entries, tz)
        except InvalidInput as error:
            self._report(entries, entries[kinds[0]].place, label, error.at("schedule"))
            return None

    def _options(self, entries: Entries, label: str) -> dict[str, Any]:
        """Return the job options among these entries; other keys are ignored."""
        options = {}
        for key, node in entries.items():
            if key not in _OPTIONS or node.value is BROKEN:
                continue
            if node.value is None:
                self.problems.add(node.place, f"{label}: {key} has no value", cure="give it one, or remove it")
            elif key in _TEXTS and text_of(node) is None:
                self.problems.add(node.place, f"{label}: {key} is no text", cure=f"write it like {key}: something")
            else:
                options[key] = _option_of(key, node)
        return options

    def _inherited(self, entries: Entries) -> dict[str, Any]:
        group = text_of(entries.get("group")) or self._defaults.get("group", "")
        of_group = self._of_group.get(group)
        return self._defaults if of_group is None else overlaid(self._defaults, of_group)

    def _defaults_of(self, node: YamlNode, label: str, allowed: tuple[str, ...]) -> dict[str, Any]:
        """Return options to inherit, each checked by itself; an invalid one is reported here and not inherited."""
        entries = entries_of(node, label, self.problems, example="{timeout: 30s}")
        place_of = lambda key: "" if foreign_word(key, allowed) else place_in_job(key)  # noqa: E731
        check_keys(node, allowed, label, self.problems, place_of=place_of)
        good = {}
        for key, value in self._options(entries, label).items():
            is_tz = key == "tz"
            schedule = builders.cron("0 0 * * *", tz=value) if is_tz else None
            if key in allowed and self._declare(node, label, "x", "x", schedule, {} if is_tz else {key: value}):
                good[key] = value
        return good

    def _declare(
        self,
        node: YamlNode,
        label: str,
        job_id: str | None,
        handler: str | None,
        schedule: Schedule | None,
        options: dict[str, Any],
    ) -> Job | None:
        """Return the job, or None with every problem reported at its place; earlier problems get placeholder values."""
        named = {"id": "x" if job_id is None else job_id, "handler": handler or "x"}
        try:
            return job_of(**named, schedule=schedule, source=self.source, release=self.release, **options)
        except InvalidConfig as error:
            found: tuple[InvalidInput, ...] = error.problems
        except InvalidInput as error:
            found = (error,)
        for problem in found:
            self._report(node.value, node.place, label, problem)
        return None

    def _report(self, entries: Entries, fallback: Place, label: str, problem: InvalidInput) -> None:
        """Report a problem at the value that it is about: `retry.base`, `schedule.tz`, `schedule`."""
        path = [_WORDS_OF_THE_FILE.get(part, part) for part in dict.fromkeys(problem.where.split(".")) if part]
        if path[:1] == ["schedule"]:
            kind = next((key for key in SCHEDULE_KEYS if key in entries), "schedule")
            path = path[1:] if path[1:] and path[1] in entries else [kind]
        node = entries.get(path[0]) if path else None
        for part in path[1:]:
            if node is not None and type(node.value) is dict:
                node = node.value.get(part, node)
        named = f"{'.'.join(path)}: " if path else ""
        self.problems.add(node.place if node else fallback, f"{label}: {named}{problem.what}", cure=problem.cure)


def entries_of(node: YamlNode, label: str, problems: Problems, *, example: str) -> dict[str, YamlNode]:
    """Return the entries of a mapping; of anything else none, with a problem unless it is empty."""
    if type(node.value) is dict:
        return node.value
    if node.value is not None and node.value is not BROKEN:
        problems.add(node.place, f"{label}: {shown(node)} is not a mapping", cure=f"write it like {example}")
    return {}


def check_keys(
    node: YamlNode,
    allowed: tuple[str, ...],
    label: str,
    problems: Problems,
    *,
    place_of: Callable[[str], str] = lambda _: "",
) -> None:
    """Report every key that is not allowed; `place_of` returns where one belongs, if that is known."""
    for key, place in node.keys.items():
        if key not in allowed and node.value[key].value is not BROKEN:
            what, word = f"unknown key {shortened(key)!r}", shortened(key)
            cure = place_of(word) or did_you_mean(word, allowed).strip("; ") or f"known are {', '.join(allowed)}"
            problems.add(place, f"{label}: {what}" if label else what, cure=cure)


def _place_of(key: str, entries: Entries) -> str:
    """Return where a key belongs that no job has, if the rest of it shows that."""
    if key == "schedule":
        text = text_of(entries[key]) or ""
        if text.startswith("@") or len(text.split()) in (5, 6):
            return f'write it as cron: "{shortened(text)}"'
        return (
            f"write it as interval: {text}"
            if _is_duration(text)
            else f"give a schedule by one of {', '.join(SCHEDULE_KEYS)}"
        )
    if "http" in entries:
        from pollux.handlers.http.options import OPTION_NAMES

        return f"it belongs into http: {{url: ..., {key}: ...}}" if key in OPTION_NAMES else ""
    return ""


def _is_duration(text: str) -> bool:
    try:
        return duration_ms(text) > 0
    except InvalidInput:
        return False


def place_in_job(key: str) -> str:
    """Return where a key belongs that a job has, by our name or by another scheduler's."""
    ours = key if key in JOB_KEYS else foreign_word(key, JOB_KEYS)
    example = "id: home" if ours == "id" else f"id: home, {ours}: ..."
    return f"it belongs to a job: jobs: [{{{example}}}]" if ours else ""


def text_of(node: YamlNode | None) -> str | None:
    """Return a scalar as it is written: 5, true and 1.10 are valid names."""
    if node is None or node.value is None or node.value is BROKEN or type(node.value) in (dict, list):
        return None
    return node.text


def shown(node: YamlNode) -> str:
    if type(node.value) in {dict, list}:
        return "a mapping" if type(node.value) is dict else "a list"
    return repr(shortened(node.text))


def overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nearer options; params are merged."""
    both = {**below, **above}
    if "params" in below and type(above.get("params")) is dict:
        both["params"] = {**below["params"], **above["params"]}
    return both


def _option_of(key: str, node: YamlNode) -> Any:
    if key in _TEXTS:
        return node.text
    if key == "tags" and type(node.value) is list:
        return [text_of(item) if type(item.value) is not dict else None for item in node.value]
    return node.plain()


def _schedule_of(kind: str, entries: Entries, tz: str | None) -> Schedule:
    node = entries[kind]
    if node.value is None:
        raise InvalidInput("there is no value", cure="give it one, or remove it")
    match kind:
        case "interval":
            start = _read("start", entries, _moment_text)
            spread = _read("spread", entries, _flag)
            return builders.every(node.plain(), start=start, spread=spread is not False)
        case "cron":
            return builders.cron(_required_text(node), tz=tz or "UTC")
        case "at":
            return builders.once(_required_text(node))
        case _ if node.value is not True:
            what, cure = f"{shown(node)} is not true", f"write {kind}: true, or remove it"
            raise InvalidInput(what, cure=cure)
        case "once":
            return builders.once()
        case _:
            return builders.on_event()


def _read(key: str, entries: Entries, convert: Callable[[YamlNode], Any]) -> Any:
    node = entries.get(key)
    if node is None or node.value is BROKEN:
        return None
    try:
        return convert(node)
    except InvalidInput as error:
        raise error.at(key) from error


def _moment_text(node: YamlNode) -> str:
    moment_ms(_required_text(node))
    return node.text


def _required_text(node: YamlNode) -> str:
    text = text_of(node)
    if text is None:
        raise InvalidInput(f"{shown(node)} is no text", cure="write the text, in quotes if need be")
    return text


def _flag(node: YamlNode) -> bool:
    if type(node.value) is not bool:
        raise InvalidInput(f"{shown(node)} is neither true nor false", cure="write true or false")
    return node.value
