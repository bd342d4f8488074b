"""Options of the config: one table with the path, variable and argument of each, their parsers, and live settings.

Live settings are options changed while nodes run, as notes `setting:<option>` in the store, read by all nodes.  Order:
defaults < file < **live** < environment < arguments.  A live setting survives restarts, until it is unset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from pollux.errors import InvalidInput, did_you_mean
from pollux.model import RENEW_MIN_MS, SCHEDULER_VERSION, SETTING, VERSION_MAX, Job, Note
from pollux.store.urls import EXAMPLES, check_url
from pollux.units import DAY_MS, HOUR_MS, duration_ms, format_moment, format_ms, format_size, size_bytes

OFF = "off"
NAMES_MAX = 100
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?|\[?[0-9A-Fa-f:.]{2,45}\]?")
_PATH = re.compile(r"[^\x00-\x1f\x7f,]{1,4000}")
_TLS_CURE = "write {cert: server.pem, key: server.key}"


def names(value: Any) -> str:
    """Parse a list of host names, or text with commas, into such a text."""
    given = [part for part in re.split(r"[,\s]+", value) if part] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) > NAMES_MAX:
        raise InvalidInput("it is no list of names", cure="write [pollux.example, 10.0.0.5]")
    for each in given:
        if not isinstance(each, str) or not _HOST_NAME.fullmatch(each):
            raise InvalidInput(f"{str(each)[:60]!r} is no name", cure="a name or an address, without a port")
    return ", ".join(given)


def tls(value: Any) -> str:
    """Parse `{cert: ..., key: ...}`, or text `cert,key`, into such a text."""
    if isinstance(value, dict):
        if set(value) != {"cert", "key"}:
            raise InvalidInput("it needs a cert and a key, and nothing else", cure=_TLS_CURE)
        given = [value["cert"], value["key"]]
    else:
        given = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    if len(given) != 2 or not all(isinstance(each, str) and _PATH.fullmatch(each) for each in given):
        raise InvalidInput("it does not name a certificate and a key", cure=_TLS_CURE)
    return ", ".join(given)


def token(value: Any) -> str:
    """Parse the token; no message shows it."""
    if not isinstance(value, str) or not value:
        raise InvalidInput("it is no token", cure="name one by reference: ${file:/run/secrets/token} or ${env:NAME}")
    return value


def path(value: Any) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise InvalidInput("it is no path of a file", cure="write it like /run/pollux/pollux.token")
    return value


def path_or_off(value: Any) -> str:
    """Parse a path, or `false`."""
    return OFF if value is False or (isinstance(value, str) and value.lower() in {"false", "no", OFF}) else path(value)


DEFAULT = "default"
ENVIRONMENT = "environment "  # prefix of the origin of a value from a variable
SEATS_MAX = 10_000
_ATTRIBUTE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_KEY = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
_PREFIX = re.compile(r"[A-Za-z0-9._{}-]{1,100}")
_PREFIX_CURE = "use letters, digits and . _ -"
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_WEB = re.compile(r"https?://[^\s/?#]+[^\s]*")
_METRIC = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")
_STORE = re.compile(r"[a-z][a-z0-9+.-]*://.*")


class Config(Struct, frozen=True, kw_only=True):
    """The whole configuration, validated.  `origins` holds for each option where its value came from."""

    store: str = "sqlite:///pollux.db"
    name: str = ""  # of the file as a source of jobs; else the file's own name
    app: str = ""  # module:attribute of a Pollux
    plans: bool = True  # take part in planning
    reload: bool = True  # read the file again when it changes
    job_timeout_ms: int | None = None  # of the file's jobs that set none; None: by their handler
    seats: int = 10
    lease_ms: int = 30_000
    grace_ms: int = 25_000
    long_poll_ms: int = 30_000
    min_poll_ms: int | None = None  # None: by the kind of store
    batch: int = 1_000  # runs claimed at once
    child_memory: int = 1_000_000_000  # bytes
    leader_ttl_ms: int = 15_000
    leader_renew_ms: int | None = None  # None: a third of the ttl
    leader_key: str = ""  # the name of the leadership; the same on all nodes of a store
    durability: str = (
        "usual"  # or required: a server whose answered writes may be lost before they reach a disk is refused
    )
    redis_prefix: str = ""  # prefix of all keys on Redis; "": as in the store's URL
    release: int = 0
    scheduler_version: int = SCHEDULER_VERSION
    allow_exec: bool = False  # jobs may run commands
    history_keep: int = 100  # finished runs of a job
    history_age_ms: int = 7 * DAY_MS
    history_dead: int = 10_000  # dead letters
    history_dead_age_ms: int = 90 * DAY_MS
    history_audit: int = 100_000  # lines of the audit log
    log_level: str = "info"
    log_format: str = "text"
    server_enabled: bool = True  # the HTTP API
    server_host: str = "localhost"  # 127.0.0.1 and ::1
    server_port: int = 8060
    server_hosts: str = ""  # further names, with commas between them
    server_tls: str = ""  # certificate, key
    server_behind_proxy: bool = False
    server_proxies: str = "127.0.0.0/8, ::1/128"  # networks, with commas between them
    server_token: str = ""  # valid as well as those in the store
    server_token_file: str = ""  # "": next to the store
    server_socket: str = ""  # "": next to the store; OFF: none
    server_rate: float = 50.0  # requests a second of one token; 0: any number
    server_connections: int = 1_000
    server_requests: int = 256  # at work at the same time
    http_per_target: int = 4  # requests at a time to one host and port
    http_allow_networks: str = ""  # networks, with commas between them
    traces_endpoint: str = ""  # of an OpenTelemetry collector; "": runs have no traces
    traces_sample: float = 1.0  # the share of runs that have one
    traces_namespace: str = ""
    heartbeat_url: str = ""  # called while health is good; "": no calls
    heartbeat_every_ms: int = 60_000
    metrics_prefix: str = "pollux"
    metrics_port: int | None = None  # None: metrics have no port of their own
    metrics_host: str = "127.0.0.1"
    health_queue_depth: int = 50
    health_staleness_ms: int = 5_000
    health_intervals: int = 3
    health_wait_ms: int = 60_000
    health_loop_lag_ms: int = 1_000

    path: str = ""  # of the file, as it was passed
    source: str = ""  # of its jobs: file:<name>; "" without a file
    jobs: tuple[Job, ...] = ()
    places: dict[str, str] = field(default_factory=dict)  # job id -> file:line:column
    python: dict[str, str] = field(default_factory=dict)  # module:function -> file:line:column that names it first
    origins: dict[str, str] = field(default_factory=dict)  # "pool.seats" -> default, file:line, environment, argument
    written: dict[str, str] = field(default_factory=dict)  # "store" -> as it is written, if it holds a reference
    arguments: dict[str, Any] = field(default_factory=dict)  # as they were passed, to load all of it again
    ignored_variables: tuple[str, ...] = ()  # ignored variables with invalid values
    digest: str = ""  # of the file's bytes

    def is_given(self, option: str) -> bool:
        """Whether the option was set, not defaulted.  `option` is the path in the file, like "pool.seats"."""
        return self.origins.get(option, DEFAULT) != DEFAULT


class Option(NamedTuple):
    """One option: `pool: {seats: 10}`, POLLUX_SEATS or POLLUX_POOL__SEATS, --seats."""

    path: str
    field: str
    argument: str
    read: Callable[[Any], Any]
    takes_list: bool = False
    live: bool = False  # it can change while a node runs: by `pollux set`, and by reading the file again
    also: tuple[str, ...] = ()  # its variables in older schedulers

    @property
    def variables(self) -> tuple[str, ...]:
        """The short one, the nested one, and those of others; the first that is set counts."""
        names = (f"POLLUX_{self.argument.upper()}", f"POLLUX_{self.path.upper().replace('.', '__')}", *self.also)
        return tuple(dict.fromkeys(names))


def _text(pattern: re.Pattern[str], cure: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InvalidInput(f"{_shown(value)} cannot be used", cure=cure)
        return value

    return read


def _store(value: Any) -> str:
    return check_url(_text(_STORE, f"use one of {', '.join(EXAMPLES)}")(value))


def _duration(at_least: int, at_most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        ms = duration_ms(value)
        if not at_least <= ms <= at_most:
            cure = f"give {format_ms(at_least)} to {format_ms(at_most)}"
            raise InvalidInput(f"{_shown(value)} is out of range", cure=cure)
        return ms

    return read


def _whole(at_least: int, at_most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value, re.ASCII):  # from the environment
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            cure = f"give a whole number from {at_least} to {at_most}"
            raise InvalidInput(f"{_shown(value)} cannot be used", cure=cure)
        return value

    return read


def _size(at_least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        size = size_bytes(value)
        if size < at_least:
            raise InvalidInput(f"{_shown(value)} is too little", cure=f"give at least {format_size(at_least)}")
        return size

    return read


def flag(value: Any) -> bool:
    flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    known = value if isinstance(value, bool) else flags.get(value.lower()) if isinstance(value, str) else None
    if known is None:
        raise InvalidInput(f"{_shown(value)} is neither true nor false", cure="write true or false")
    return known


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise InvalidInput(f"{_shown(value)} is unknown", cure=f"write one of {', '.join(choices)}")
        return value.lower()

    return read


def _networks(value: Any) -> str:
    """Parse a list of networks, or text with commas, into such a text."""
    from pollux.handlers.http.addresses import networks_of

    given = re.split(r"[,\s]+", value.strip(" ,")) if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"{_shown(value)} is no list of networks", cure="write [10.0.0.0/8, fd00::/8]")
    return ", ".join(str(network) for network in networks_of(given))


def _web(value: Any) -> str:
    """Parse a URL; it may hold a secret, so no message shows it."""
    if not isinstance(value, str) or not _WEB.fullmatch(value):
        raise InvalidInput("it is no URL of the web", cure="write it like https://host:port/path")
    return value


def _number(noun: str, at_most: float, cure: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        try:
            number = -1.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not 0 <= number <= at_most:
            raise InvalidInput(f"{_shown(value)} is no {noun}", cure=cure)
        return number

    return read


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _option(path: str, read: Callable[[Any], Any], argument: str = "", *, unit: str = "", **more: Any) -> Option:
    """An option; its argument and field are named by its path, those of `pool` by its last part."""
    name = path.removeprefix("pool.").replace(".", "_")
    return Option(path, f"{name}{unit}", argument or name, read, **more)


def _time(path: str, at_least: int, at_most: int, **more: Any) -> Option:
    return _option(path, _duration(at_least, at_most), unit="_ms", **more)


_OTEL = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OPTIONS = (
    _option("store", _store),
    _option("name", _text(_NAME, _PREFIX_CURE)),
    _option("app", _text(_ATTRIBUTE, 'write it like "monitor:app" (module:attribute)')),
    _option("plans", flag, also=("SCHEDULER_V2_ENABLED",)),
    _option("reload", flag),
    _time("job_timeout", 1, 7 * DAY_MS, also=("SCHEDULER_JOB_TIMEOUT",)),
    _option("pool.seats", _whole(1, SEATS_MAX), live=True, also=("SCHEDULER_WORKER_POOL_SIZE",)),
    _time("pool.lease", 300, DAY_MS),
    _time("pool.grace", 0, DAY_MS, live=True),
    _time("pool.long_poll", 0, HOUR_MS, live=True),
    _time("pool.min_poll", 0, HOUR_MS, live=True),
    _option("pool.batch", _whole(1, 1_000), live=True, also=("SCHEDULER_QUEUE_BATCH_SIZE",)),
    _option("pool.child_memory", _size(64_000_000), live=True),
    _time("leader.ttl", 1_000, HOUR_MS, also=("SCHEDULER_LEADER_TTL",)),
    _time("leader.renew", RENEW_MIN_MS, HOUR_MS),
    _option("leader.key", _text(_KEY, "use letters, digits and . _ : / -"), also=("SCHEDULER_LEADER_KEY",)),
    _option("redis.prefix", _text(_PREFIX, _PREFIX_CURE), also=("SCHEDULER_QUEUE_PREFIX",)),
    _option("durability", _one_of("usual", "required")),
    _option("release", _whole(0, 2**53)),
    _option("scheduler_version", _whole(1, VERSION_MAX), also=("SCHEDULER_VERSION",)),
    _option("allow_exec", flag),
    _option("history.keep", _whole(1, 1_000_000), live=True),
    _time("history.age", 1_000, 3_653 * DAY_MS, live=True),
    _option("history.dead", _whole(1, 1_000_000), live=True),
    _time("history.dead_age", 1_000, 3_653 * DAY_MS, live=True),
    _option("history.audit", _whole(1, 100_000_000), live=True),
    _option("log.level", _one_of("debug", "info", "warning", "error"), live=True),
    _option("log.format", _one_of("text", "json")),
    _option("server.enabled", flag, "server"),
    _option("server.host", _text(_HOST, "write a name or an address"), "host"),
    _option("server.port", _whole(0, 65_535), "port"),
    _option("server.hosts", names, takes_list=True),
    _option("server.tls", tls, takes_list=True),
    _option("server.behind_proxy", flag, "behind_proxy"),
    _option("server.proxies", _networks, takes_list=True),
    _option("server.token", token),
    _option("server.token_file", path),
    _option("server.socket", path_or_off),
    _option("server.rate", _number("rate", 1_000_000, "requests a second, like 50; 0: any number")),
    _option("server.connections", _whole(2, 100_000)),
    _option("server.requests", _whole(1, 100_000)),
    _option("http.per_target", _whole(1, 1_000), live=True),
    _option("http.allow_networks", _networks, takes_list=True),
    _option("traces.endpoint", _web, also=_OTEL),
    _option("traces.sample", _number("share", 1, "write a number from 0 to 1")),
    _option("traces.namespace", _text(_NAME, _PREFIX_CURE)),
    _option("heartbeat.url", _web),
    _time("heartbeat.every", 1_000, DAY_MS),
    _option("metrics.prefix", _text(_METRIC, "use letters, digits and _")),
    _option("metrics.port", _whole(0, 65_535)),
    _option("metrics.host", _text(_HOST, "write a name or an address")),
    _option("health.queue_depth", _whole(0, 10_000), live=True),
    _time("health.staleness", 0, DAY_MS, live=True),
    _option("health.intervals", _whole(1, 1_000), live=True),
    _time("health.wait", 0, DAY_MS, live=True),
    _time("health.loop_lag", 1, HOUR_MS, live=True),
)
BY_PATH = {option.path: option for option in OPTIONS}
SECTIONS = tuple(dict.fromkeys(option.path.partition(".")[0] for option in OPTIONS if "." in option.path))
FILE_KEYS = (*dict.fromkeys(option.path.partition(".")[0] for option in OPTIONS), "defaults", "groups", "jobs")


LIVE_PATHS = tuple(option.path for option in OPTIONS if option.live)
_TEXT_MAX = 200


class LiveSetting(Struct, frozen=True):
    """An option that was set for all nodes."""

    path: str
    value: Any  # as it was entered: 50, "30s", "debug"
    by: str = ""
    at_ms: int = 0

    @property
    def origin(self) -> str:
        return f"live (by {self.by or 'unknown'}, {format_moment(self.at_ms - self.at_ms % 1_000)})"


def setting_key(path: str) -> str:
    return f"{SETTING}{path}"


def live_option(path: str) -> Option:
    """Return the option of that name, if it can change while a node runs; else raise with the cure."""
    option = BY_PATH.get(path)
    if option is None:
        cure = did_you_mean(path, LIVE_PATHS).strip("; ") or f"these can be set: {', '.join(LIVE_PATHS)}"
        raise InvalidInput("there is no option of that name", where=path[:60], cure=cure)
    if not option.live:
        raise InvalidInput(
            "it cannot change while a node runs",
            where=path,
            cure=f"change it in the file and restart; these can be set: {', '.join(LIVE_PATHS)}",
        )
    return option


def live_value(path: str, value: Any) -> Any:
    """Return the parsed value, checked as in a file."""
    option = live_option(path)
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > _TEXT_MAX):
        raise InvalidInput("this is no value", where=path, cure='give a number or a text, like 50 or "30s"')
    try:
        return option.read(value)
    except InvalidInput as error:
        raise error.at(path) from error


def read_live(notes: Iterable[Note]) -> dict[str, LiveSetting]:
    """Return the live settings among these notes, without those that only another release can read."""
    found: dict[str, LiveSetting] = {}
    for note in notes:
        path = note.key.removeprefix(SETTING)
        value = note.value if isinstance(note.value, dict) else {}
        if path in LIVE_PATHS and note.key != path and "value" in value:
            setting = LiveSetting(path, value["value"], str(value.get("by") or ""), int(value.get("at_ms") or 0))
            try:
                live_value(path, setting.value)
            except InvalidInput:
                continue
            found[path] = setting
    return found


def is_overruled(config: Config, path: str) -> bool:
    """Whether the environment or an argument overrides it in this process."""
    origin = config.origins.get(path, DEFAULT)
    return origin == "argument" or origin.startswith(ENVIRONMENT)


def with_live(config: Config, live: dict[str, LiveSetting]) -> Config:
    """Return the config with these live settings applied."""
    applied = {path: setting for path, setting in live.items() if not is_overruled(config, path)}
    if not applied:
        return config
    values = {BY_PATH[path].field: live_value(path, setting.value) for path, setting in applied.items()}
    origins = config.origins | {path: setting.origin for path, setting in applied.items()}
    return msgspec.structs.replace(config, **values, origins=origins)
