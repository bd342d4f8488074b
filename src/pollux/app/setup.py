"""Apps made from a configuration, options of a node, and imports of `module:attribute` names.

Only files and the command line name modules, never data.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, get_type_hints

import msgspec

from pollux.config import Config
from pollux.config.settings import OPTIONS
from pollux.errors import InvalidConfig, InvalidInput, did_you_mean, foreign_word
from pollux.handlers import BuiltIn
from pollux.model import Isolate, Job
from pollux.registry import Registry
from pollux.runtime import RuntimeOptions
from pollux.runtime.isolation import check_place
from pollux.secrets import Secrets
from pollux.store.urls import with_durability, with_prefix
from pollux.units import duration_ms, size_bytes

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux

Duration = str | float
_OF_THE_APP = (
    "store",
    "name",
    "release",
    "scheduler_version",
    "actor",
    "allow_exec",
    "http_per_target",
    "http_allow_networks",
)


class NodeOptions(TypedDict, total=False):
    """Options of a node; the defaults are those of `RuntimeOptions`."""

    seats: int
    lease: Duration
    leader_ttl: Duration
    leader_renew: Duration
    leader_key: str
    grace: Duration
    long_poll: Duration
    min_poll: Duration
    batch: int
    turn_rest: Duration
    ready_max: int
    keep_history: int
    history_age: Duration
    keep_dead: int
    dead_age: Duration
    keep_audit: int
    child_memory: str | int
    traces_endpoint: str
    traces_sample: float
    traces_namespace: str
    heartbeat_url: str
    heartbeat_every: Duration
    metrics_prefix: str
    metrics_port: int
    metrics_host: str
    health_queue_depth: int
    health_staleness: Duration
    health_intervals: int
    health_wait: Duration
    health_loop_lag: Duration
    plans: bool
    runs: bool


# Options whose name in `RuntimeOptions` is another one, here and in the configuration.
_RUNTIME_NAMES = {
    "keep_history": "keep_per_job",
    "history_age": "keep_ms",
    "keep_dead": "dead_max",
    "dead_age": "dead_ms",
    "keep_audit": "log_max",
    "history_keep": "keep_per_job",
    "history_age_ms": "keep_ms",
    "history_dead": "dead_max",
    "history_dead_age_ms": "dead_ms",
    "history_audit": "log_max",
}
_HINTS = get_type_hints(NodeOptions)


def options_of(**given: Unpack[NodeOptions]) -> RuntimeOptions:
    """The runtime's options; a third of the leader's time to live is the default for renewing it."""
    options: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", given).items():
        if name not in _HINTS:
            _refuse(name)
        if _HINTS[name] == Duration:
            options[_RUNTIME_NAMES.get(name, f"{name}_ms")] = duration_ms(value)
        else:
            options[_RUNTIME_NAMES.get(name, name)] = size_bytes(value) if name == "child_memory" else value
    if "leader_ttl_ms" in options:
        options.setdefault("leader_renew_ms", options["leader_ttl_ms"] // 3)
    return RuntimeOptions(**options)


def _refuse(name: str) -> None:
    if name == "tz" or foreign_word(name, ["tz"]):
        cure = 'it belongs to a schedule: cron("0 6 * * *", tz="Europe/Berlin")'
        raise InvalidInput(f"unknown option {name!r}", cure=cure)
    known = [*_OF_THE_APP, *sorted(_HINTS)]
    raise InvalidInput(f"unknown option {name!r}{did_you_mean(name, known)}", cure=f"known are {', '.join(known)}")


_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*\Z")


def load_object(spec: str, *, beside: Path | None = None) -> Any:
    """Import `package.module:attribute`; modules beside the configuration file are found too."""
    if not _SPEC.match(spec):
        raise InvalidInput(f"{spec!r} names no Python object", cure='write "module:attribute", like "reports:daily"')
    module_name, _, path = spec.partition(":")
    _look_in(beside or Path.cwd())
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise InvalidInput(
            f"importing {module_name!r} raised {type(error).__name__}: {error}",
            cure="correct the module, or put it next to the configuration file or on PYTHONPATH",
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = (
                ", ".join(sorted(n for n in vars(found) if not n.startswith("_"))[:20])
                if hasattr(found, "__dict__")
                else ""
            )
            raise InvalidInput(f"{module_name!r} has no {name!r}", cure=f"it has {names or 'nothing'}") from None
    return found


def _look_in(folder: Path) -> None:
    path = str(folder.resolve())
    if path not in sys.path:
        sys.path.insert(0, path)


CODE = "code"  # the origin of options that an app sets itself
# An option's path in the file, its field in Config, and the runtime's own name for it.
FIELDS = tuple(
    (option.path, option.field, name)
    for option in OPTIONS
    if (name := _RUNTIME_NAMES.get(option.field, option.field)) in RuntimeOptions.__struct_fields__ and name != "plans"
)


def as_configured(url: str, config: Config) -> str:
    """The store URL of an app's code, with the store options of the configuration."""
    return with_durability(with_prefix(url, config.redis_prefix) if config.redis_prefix else url, config.durability)


def options_over(usual: RuntimeOptions, config: Config, *, plans: bool, runs: bool) -> RuntimeOptions:
    """The options of an app, overridden by those of the configuration."""
    given = {name: getattr(config, field) for path, field, name in FIELDS if config.is_given(path)}
    if "leader_ttl_ms" in given and given.get("leader_renew_ms") is None:
        given["leader_renew_ms"] = given["leader_ttl_ms"] // 3
    return msgspec.structs.replace(usual, **given, plans=plans and config.plans, runs=runs)


def with_code(config: Config, usual: RuntimeOptions, store_url: str, version: int) -> Config:
    """The configuration with the options that an app sets in its code, where nothing else sets them."""
    plain = Config()
    in_code = {path: (field, getattr(usual, name)) for path, field, name in FIELDS}
    in_code |= {"store": ("store", store_url), "scheduler_version": ("scheduler_version", version)}
    if usual.leader_renew_ms == usual.leader_ttl_ms // 3:
        del in_code["leader.renew"]
    applied = {
        path: (field, value)
        for path, (field, value) in in_code.items()
        if not config.is_given(path) and value != getattr(plain, field)
    }
    origins = config.origins | dict.fromkeys(applied, CODE)
    return msgspec.structs.replace(config, **dict(applied.values()), origins=origins)


def load_app(spec: str, kind: type[Pollux], *, beside: Path | None) -> Pollux:
    """The user's own `Pollux`, named by a file or the command line."""
    found = load_object(spec, beside=beside)
    if not isinstance(found, kind):
        raise InvalidInput(
            f"{spec!r} is {type(found).__name__}, not a Pollux", cure="name the attribute that holds the app"
        )
    return found


def missing_secrets(jobs: Iterable[Job], secrets: Secrets, places: Mapping[str, str]) -> list[InvalidInput]:
    """Every secret reference of these jobs that cannot be resolved here, with its place."""
    problems = []
    for job in jobs:
        where = f"{places[job.id]}: job {job.id!r}" if job.id in places else f"job {job.id!r}"
        problems += [problem.at(f"{where}: params") for problem in secrets.problems(job.params)]
    return problems


def register_python(
    registry: Registry,
    config: Config,
    *,
    beside: Path | None,
    also: Sequence[InvalidInput] = (),
    may_import: bool = True,
) -> tuple[str, ...]:
    """Import every function that the file names; raises `InvalidConfig` with every problem and its place.

    `also` are problems found before.  Without `may_import` nothing is imported; returns the unknown functions.
    """
    problems: list[InvalidInput] = [*also]
    unknown = () if may_import else tuple(spec for spec in config.python if registry.get(spec) is None)
    for spec, place in config.python.items():
        try:
            if may_import:
                registry.add(spec, _function(spec, beside=beside))
        except InvalidInput as error:
            problems.append(error.at(place))
    for job in config.jobs:
        try:
            _fit(registry, job)
        except InvalidInput as error:
            problems.append(error.at(f"{config.places.get(job.id, config.path)}: job {job.id!r}"))
    if problems:
        raise InvalidConfig(problems)
    return unknown


def _fit(registry: Registry, job: Job) -> None:
    """Raise if this process cannot run the job."""
    if (refusal := registry.refusal(job.handler)) is not None:
        raise refusal
    handler = registry.get(job.handler)
    if handler is not None and job.schedule is not None:
        handler.bind(job.params)
    check_isolation(registry, [job])


def check_isolation(registry: Registry, jobs: Iterable[Job]) -> None:
    """Raise `InvalidInput` for a job to run in a child process that could not import its function."""
    for job in jobs:
        handler = registry.get(job.handler) if job.isolate is Isolate.PROCESS else None
        if handler is not None:
            check_place(handler, is_whole=True)


def set_up(built_in: BuiltIn, config: Config) -> None:
    """Apply the options of the built-in handlers."""
    if config.is_given("http.allow_networks"):
        built_in.http.set(allow_networks=[text for text in config.http_allow_networks.split(", ") if text])
    if config.is_given("http.per_target"):
        built_in.http.set(per_target=config.http_per_target)


def _function(spec: str, *, beside: Path | None) -> Callable[..., Any]:
    found = load_object(spec, beside=beside)
    if not callable(found):
        raise InvalidInput(f"{spec!r} is {type(found).__name__}, which cannot be called", cure="name a function")
    function: Callable[..., Any] = found
    return function
