"""Loader of the configuration: defaults < file < environment < arguments, with all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pollux.config.jobs import DEFAULTS_KEYS, FileJobs, check_keys, entries_of, place_in_job, shown, text_of
from pollux.config.lint import is_service_link
from pollux.config.settings import BY_PATH, DEFAULT, ENVIRONMENT, FILE_KEYS, OPTIONS, SECTIONS, Config, Option
from pollux.config.yaml_reader import BROKEN, FILE_BYTES_MAX, Place, Problems, YamlNode, read_yaml
from pollux.errors import InvalidConfig, InvalidInput, did_you_mean, foreign_word
from pollux.model import API_SOURCE, check_term
from pollux.secrets import Secrets, has_reference, hide
from pollux.store.urls import with_durability, with_prefix
from pollux.units import format_size


def load_config(
    path: str | None,
    *,
    environ: Mapping[str, str],
    arguments: Mapping[str, Any] | None = None,
    with_jobs: bool = True,
    raw: bytes | None = None,
    called: str = "",
    source: str = "",
    is_whole: bool = True,
) -> Config:
    """Return the config of a file (None: of none), or raise `InvalidConfig` with all problems of all sources.

    `arguments` are by name (`seats`) or path (`pool.seats`); None means not set.  `with_jobs=False` skips the jobs: a
    caller that only needs the store is not stopped by an invalid job.  `raw`: the text to read instead of the file's;
    `called`: its name in messages.  `source`: of its jobs, in place of its own.  `is_whole=False`: as much of it as can
    be read, invalid jobs included, for a caller that looks for further problems.
    """
    problems = Problems(called or path or "config")
    values: dict[str, Any] = {}
    origins = {option.path: DEFAULT for option in OPTIONS}
    raw = _bytes_of(path, problems) if raw is None and path is not None else raw
    root = None if raw is None else _root_of(raw, problems)
    taken = EffectiveValues(values, origins, Secrets(environ=environ, folder=Path(path).parent if path else None))
    _take(_from_file(root, problems), taken, problems)
    _take(_from_environment(environ, problems), taken, problems)
    _take(_from_arguments(arguments or {}, problems), taken, problems)
    _check_together(values, origins, problems)
    _add_to_url(values, origins, problems)
    source = source or (f"file:{values.get('name') or Path(path).name}" if path else "")
    timeout_ms = values.get("job_timeout_ms")
    jobs = FileJobs(problems, source=source, release=values.get("release", 0), timeout_ms=timeout_ms)
    if root is not None and with_jobs:
        _read_jobs(root, jobs)
    if problems.count and is_whole:
        raise InvalidConfig(problems.all())
    return Config(
        **values,
        path=path or "",
        source=source,
        jobs=tuple(jobs.jobs.values()) if is_whole else tuple((jobs.jobs | jobs.wrong).values()),
        places=jobs.places,
        python=jobs.python,
        origins=origins,
        written=taken.written,
        arguments={name: value for name, value in (arguments or {}).items() if value is not None},
        digest=digest_of(raw) if raw is not None else "",
    )


def store_of_invalid(
    path: str | None,
    wrong: InvalidConfig,
    *,
    environ: Mapping[str, str],
    arguments: Mapping[str, Any],
    guesses: bool = False,
    raw: bytes | None = None,
) -> Config | None:
    """Return as much of an invalid file and environment as names the store and the source; None: unknown.

    `wrong`: the problems.  `guesses`: of a file that is no YAML at all the default is assumed.  `raw`: the text to read
    instead of the file's.
    """
    problems = Problems(path or "")
    raw = _bytes_of(path, problems) if raw is None and path is not None else raw
    root = None if raw is None else _root_of(raw, problems)
    parts: dict[str, Any] = {}
    is_named = bool(arguments.get("store"))
    is_written = root is not None and "store" in root.value
    wanted = _PLACE if is_named else _PLACE | {"store" if is_written else "app"}
    for given in _from_file(root, problems):
        section, _, key = given.option.path.rpartition(".")
        if given.option.path in wanted:
            (parts.setdefault(section, {}) if section else parts)[key] = given.value
    ignored_variables = variables_in(wrong, environ)
    if (is_written and not is_named and "store" not in parts) or _names_any(
        ignored_variables, wanted if is_named else _NAMING
    ):
        return None
    valid = {name: value for name, value in environ.items() if name not in ignored_variables}
    try:
        found = load_config(
            path, environ=valid, arguments=arguments, raw=None if path is None else msgspec.json.encode(parts)
        )
    except InvalidConfig:
        return None
    is_known = guesses or path is None or root is not None or found.is_given("store")
    return msgspec.structs.replace(found, ignored_variables=ignored_variables) if is_known else None


def variables_in(wrong: InvalidConfig, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables with problems."""
    places = [problem.where.removeprefix(ENVIRONMENT) for problem in wrong.problems]
    return tuple(dict.fromkeys(place for place in places if place in environ))


def _names_any(variables: Sequence[str], options: AbstractSet[str]) -> bool:
    """Whether one of the variables sets one of these options."""
    return any(name in BY_PATH[path].variables for path in options for name in variables)


_PLACE = {"name", "scheduler_version", "redis.prefix", "server.socket"}  # with the store: the identity there
_NAMING = _PLACE | {"store", "app"}


def file_source(value: str) -> str:
    """Return the source of a file's jobs: `pollux.yaml`, `/etc/pollux.yaml` and `file:pollux.yaml` mean the same."""
    name = Path(value.removeprefix("file:")).name
    if not name or value == API_SOURCE or value.startswith("code:"):
        raise InvalidInput(f"{value[:60]!r} is no file", where="source", cure="name the file, like pollux.yaml")
    return f"file:{name}"


def digest_of(raw: bytes) -> str:
    """Return a short digest of a file's text."""
    return blake2b(raw, digest_size=8).hexdigest()


class OptionSource(NamedTuple):
    """Where an option was set."""

    option: Option
    value: Any
    where: str  # for messages
    origin: str
    place: Place | None = None  # in the file


class EffectiveValues:
    """The values so far: a later source overrides an earlier one."""

    def __init__(self, values: dict[str, Any], origins: dict[str, str], secrets: Secrets) -> None:
        self.values, self.origins, self.secrets = values, origins, secrets
        self.written: dict[str, str] = {}  # options whose value holds a reference, as they were written

    def take(self, option: Option, value: Any, origin: str) -> None:
        self.written.pop(option.path, None)
        self.values[option.field] = option.read(self._resolved(option, value))
        self.origins[option.path] = origin
        if isinstance(value, str) and has_reference(value):
            self.written[option.path] = value

    def _resolved(self, option: Option, value: Any) -> Any:
        if option.path in {"name", "app"}:  # these are stored: no place for a secret
            return value
        is_address = option.path == "store" and isinstance(value, str)
        return self.secrets.resolve_address(value) if is_address else self.secrets.resolve(value)


def _take(given: Iterator[OptionSource], taken: EffectiveValues, problems: Problems) -> None:
    for option, value, where, origin, place in given:
        try:
            taken.take(option, value, origin)
        except InvalidInput as error:
            problems.keep(InvalidInput(hide(f"{option.path}: {error.what}"), where=where, cure=error.cure), place)


def _from_file(root: YamlNode | None, problems: Problems) -> Iterator[OptionSource]:
    if root is None:
        return
    for key, node in root.value.items():
        if key in SECTIONS:
            yield from _from_section(key, node, problems)
        elif key in BY_PATH:
            yield from _from_node(BY_PATH[key], node, problems)


def _from_section(section: str, node: YamlNode, problems: Problems) -> Iterator[OptionSource]:
    known = {path.partition(".")[2]: option for path, option in BY_PATH.items() if path.startswith(f"{section}.")}
    entries = entries_of(node, section, problems, example=f"{section}: {{{next(iter(known))}: ...}}")
    check_keys(node, tuple(known), section, problems)
    for key, value in entries.items():
        if key in known:
            yield from _from_node(known[key], value, problems)


def _from_node(option: Option, node: YamlNode, problems: Problems) -> Iterator[OptionSource]:
    if node.value is BROKEN:
        return
    if node.value is None or (type(node.value) in {dict, list} and not option.takes_list):
        what = f"{option.path} has no value" if node.value is None else f"{option.path}: {shown(node)} is no value"
        problems.add(node.place, what, cure="give it one, or remove it")
        return
    value = text_of(node) if option.path in {"store", "app"} else node.plain()
    yield OptionSource(option, value, problems.where(node.place), f"{problems.name}:{node.line}", node.place)


def _from_environment(environ: Mapping[str, str], problems: Problems) -> Iterator[OptionSource]:
    known = {name for option in OPTIONS for name in option.variables}
    nested = tuple(f"POLLUX_{section.upper()}__" for section in SECTIONS)
    for name in environ:
        if name.startswith(nested) and name not in known:
            cure = did_you_mean(name, known).strip("; ") or "remove it"
            problems.keep(InvalidInput("unknown variable", where=name, cure=cure))
    for option in OPTIONS:
        given = [name for name in option.variables if environ.get(name) and not is_service_link(name, environ[name])]
        if given:
            yield OptionSource(option, environ[given[0]], given[0], f"{ENVIRONMENT}{given[0]}")


def _from_arguments(arguments: Mapping[str, Any], problems: Problems) -> Iterator[OptionSource]:
    known = {option.argument: option for option in OPTIONS} | BY_PATH
    for name, value in arguments.items():
        if value is None:
            continue
        if name in known:
            yield OptionSource(known[name], value, "argument", "argument")
        else:
            cure = did_you_mean(name, known).strip("; ") or f"known are {', '.join(known)}"
            problems.keep(InvalidInput(f"unknown argument {name!r}", cure=cure))


def _check_together(values: Mapping[str, Any], origins: Mapping[str, str], problems: Problems) -> None:
    ttl = values.get("leader_ttl_ms", Config().leader_ttl_ms)
    renew = values.get("leader_renew_ms")
    if renew is None:
        return  # a third of it
    try:
        check_term(ttl_ms=ttl, renew_ms=renew)
    except InvalidInput as error:
        problems.keep(error.at(origins["leader.renew"]))


_IN_URL = {"redis_prefix": ("redis.prefix", with_prefix), "durability": ("durability", with_durability)}


def _add_to_url(values: dict[str, Any], origins: Mapping[str, str], problems: Problems) -> None:
    """Add the key prefix and the requirements to the store's URL, where a store reads them."""
    for field, (path, add) in _IN_URL.items():
        if "store" in values and field in values:
            try:
                values["store"] = add(values["store"], values[field])
            except InvalidInput as error:
                problems.keep(InvalidInput(error.what, where=f"{origins[path]}: {path}", cure=error.cure))


def _root_of(raw: bytes, problems: Problems) -> YamlNode | None:
    """Return the file's mapping; None if it is empty or invalid as a whole."""
    text = _text_of(raw, problems)
    root = None if text is None else read_yaml(text, problems)
    if root is None:
        return None
    if type(root.value) is not dict:
        cure = "begin with a key: jobs:, store:, pool: ..."
        problems.add(root.place, f"the file is {shown(root)}, not a mapping", cure=cure)
        return None
    check_keys(root, FILE_KEYS, "", problems, place_of=_place_below_top)
    return root


def _place_below_top(key: str) -> str:
    """Return where a key at the top of the file belongs: to a job, into `defaults:` or into a section."""
    names = {path.rpartition(".")[2] for path in BY_PATH if "." in path}
    ours = key if key in names else foreign_word(key, names)
    shared = key if key in DEFAULTS_KEYS else foreign_word(key, DEFAULTS_KEYS)
    of_all = f"it belongs to a job, or for all jobs into defaults: {{{shared}: ...}}" if shared else ""
    sections = [f"{path.removesuffix(f'.{ours}')}: {{{ours}: ...}}" for path in BY_PATH if path.endswith(f".{ours}")]
    of_section = f"it belongs into {' or '.join(sections)}" if ours else ""
    return "; or ".join(filter(None, (of_all or place_in_job(key), of_section)))


_NO_FILE = "create it (an empty one is fine), or name another: pollux check FILE, or -c FILE with other commands"


def _bytes_of(path: str, problems: Problems) -> bytes | None:
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        problems.add(None, "there is no such file", cure=_NO_FILE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problems.add(None, f"the file cannot be read: {reason}", cure="name a readable file")
    return None


def _text_of(raw: bytes, problems: Problems) -> str | None:
    if len(raw) > FILE_BYTES_MAX:
        cure = "put jobs by the thousands into the store with the Python API, or split the fleet"
        problems.add(None, f"the file is bigger than {format_size(FILE_BYTES_MAX)}", cure=cure)
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        problems.add((line, column), "the file is not text in UTF-8", cure="save it as UTF-8")
        return None


def _read_jobs(root: YamlNode, jobs: FileJobs) -> None:
    for key, read in (("defaults", jobs.read_defaults), ("groups", jobs.read_groups), ("jobs", jobs.read_jobs)):
        if key in root.value:
            read(root.value[key])
