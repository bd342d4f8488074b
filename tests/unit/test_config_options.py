"""Precedence of option values: defaults < file < environment < arguments."""

import pytest
import yaml

from pollux import Pollux
from pollux.config import Config, load_config
from pollux.config.descriptions import effective_options
from pollux.config.settings import OPTIONS
from pollux.config.yaml_reader import FILE_BYTES_MAX
from pollux.errors import InvalidConfig, InvalidInput
from pollux.store.memory import MemoryStore
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from pollux.store.sqlite import SqliteStore
from pollux.store.urls import EXAMPLES

EVERYTHING = """
store: sqlite:///x.db
app: "pkg.mod:app"
pool: {seats: 3, lease: 1m, grace: 5s, long_poll: 0, min_poll: 250ms, batch: 50, child_memory: 512 MB}
plans: false
reload: false
job_timeout: 5m
leader: {ttl: 30s, renew: 7s, key: shop}
redis: {prefix: shop}
durability: required
release: 4
scheduler_version: 3
allow_exec: true
history: {keep: 5, age: 1d, dead: 50, dead_age: 30d, audit: 500}
log: {level: debug, format: json}
name: shop
http: {per_target: 3, allow_networks: [10.0.0.0/8]}
traces: {endpoint: "http://collector:4318", sample: 0.5, namespace: shop}
heartbeat: {url: "https://example.com/ping", every: 30s}
metrics: {prefix: crawler, port: 9091, host: 10.0.0.7}
health: {queue_depth: 7, staleness: 2m, intervals: 9, wait: 3m, loop_lag: 5s}
server:
  {enabled: false, host: 0.0.0.0, port: 1, hosts: [a.example, 10.0.0.5], tls: {cert: c.pem, key: k.pem},
   behind_proxy: true, proxies: [10.0.0.0/8], token: "${env:HOME}", token_file: t, socket: false, rate: 0.5,
   connections: 9, requests: 8}
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text: str | bytes | None, environ=None, **arguments):
        if text is not None:
            (tmp_path / "p.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(None if text is None else "p.yaml", environ=environ or {}, arguments=arguments)

    return load


def complaint(call) -> str:
    with pytest.raises(InvalidConfig) as caught:
        call()
    [problem] = caught.value.problems
    return str(problem)


def test_no_file_and_an_empty_file_give_the_defaults(load):
    nothing, empty = load(None), load("")
    assert (nothing.store, nothing.seats, nothing.jobs, nothing.source) == ("sqlite:///pollux.db", 10, (), "")
    assert (empty.store, empty.seats, empty.jobs, empty.source) == ("sqlite:///pollux.db", 10, (), "file:p.yaml")
    assert set(empty.origins.values()) == {"default"}


def test_empty_sections_are_fine(load):
    assert load("pool:\nleader:\nhistory:\ndefaults:\ngroups:\njobs:\n").jobs == ()


def test_everything_can_be_set_in_the_file(load):
    config = load(EVERYTHING, {"HOME": "a-secret-of-the-operator"})
    assert (config.store, config.app, config.release) == ("sqlite:///x.db", "pkg.mod:app", 4)
    assert (config.seats, config.lease_ms, config.grace_ms) == (3, 60_000, 5_000)
    assert (config.long_poll_ms, config.min_poll_ms, config.batch) == (0, 250, 50)
    assert (config.plans, config.reload, config.job_timeout_ms) == (False, False, 300_000)
    assert (config.child_memory, config.allow_exec) == (512_000_000, True)
    assert (config.leader_ttl_ms, config.leader_renew_ms, config.leader_key) == (30_000, 7_000, "shop")
    assert (config.history_keep, config.history_age_ms) == (5, 86_400_000)
    assert (config.history_dead, config.history_dead_age_ms, config.history_audit) == (50, 30 * 86_400_000, 500)
    assert (config.log_level, config.log_format) == ("debug", "json")
    assert (config.source, config.scheduler_version, config.durability) == ("file:shop", 3, "required")
    assert (config.traces_endpoint, config.traces_sample, config.traces_namespace) == (
        "http://collector:4318",
        0.5,
        "shop",
    )
    assert (config.heartbeat_url, config.heartbeat_every_ms) == ("https://example.com/ping", 30_000)
    assert (config.metrics_prefix, config.metrics_port, config.metrics_host) == ("crawler", 9091, "10.0.0.7")
    assert (config.health_queue_depth, config.health_staleness_ms) == (7, 120_000)
    assert (config.health_intervals, config.health_wait_ms, config.health_loop_lag_ms) == (9, 180_000, 5_000)
    assert (config.server_enabled, config.server_host, config.server_port) == (False, "0.0.0.0", 1)
    assert (config.server_hosts, config.server_tls) == ("a.example, 10.0.0.5", "c.pem, k.pem")
    assert (config.server_behind_proxy, config.server_proxies) == (True, "10.0.0.0/8")
    assert (config.server_token, config.server_token_file) == ("a-secret-of-the-operator", "t")
    assert (config.server_socket, config.server_rate) == ("off", 0.5)
    assert (config.server_connections, config.server_requests) == (9, 8)
    assert config.origins["pool.lease"] == "p.yaml:4"
    assert all(config.is_given(option.path) for option in OPTIONS)


HOME = {"HOME": "a-secret-of-the-operator"}


def said(option) -> str:
    """What the file above says of it, as a variable or an argument would."""
    value = yaml.safe_load(EVERYTHING)
    for key in option.path.split("."):
        value = value[key]
    if isinstance(value, list | dict):
        return ", ".join(value if isinstance(value, list) else value.values())
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("which", [0, 1, -1])
def test_everything_can_be_set_by_each_of_its_variables(load, which):
    """The short one, the nested one, and the last of those that older schedulers had."""
    names = {option: option.variables[min(which, len(option.variables) - 1)] for option in OPTIONS}
    config = load(None, HOME | {name: said(option) for option, name in names.items()})
    in_file = load(EVERYTHING, HOME)
    for option, name in names.items():
        assert getattr(config, option.field) == getattr(in_file, option.field), option.path
        assert config.origins[option.path] == f"environment {name}"


def test_everything_can_be_set_by_its_argument(load):
    config = load(None, HOME, **{option.argument: said(option) for option in OPTIONS})
    in_file = load(EVERYTHING, HOME)
    for option in OPTIONS:
        assert getattr(config, option.field) == getattr(in_file, option.field), option.path
        assert config.origins[option.path] == "argument"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("hosts: evil", None),
        ("hosts: [a b]", "no name"),
        ("hosts: ['a.example:8060']", "no name"),
        ("tls: {cert: c.pem}", "a cert and a key"),
        ("tls: c.pem", "a certificate and a key"),
        ("tls: 'c.pem, k.pem'", None),
        ("socket: /run/p.sock", None),
        ('socket: "a\\nb"', "no path"),
        ("rate: -1", "no rate"),
        ("rate: fast", "no rate"),
        ("proxies: [10.0.0.1/8]", "no network"),
        ("connections: 1", "cannot be used"),
    ],
)
def test_what_the_api_is_told_is_checked(load, text, what):
    if what is None:
        assert load(f"server: {{{text}}}").is_given(f"server.{text.partition(':')[0]}")
    else:
        assert what in complaint(lambda: load(f"server: {{{text}}}"))


def test_a_token_is_never_told(load):
    config = load('server: {token: "${env:SECRET}"}', {"SECRET": "tschuess-0815-geheim"})
    [line] = [line for line in effective_options(config) if line.option == "server.token"]
    assert line.value == "${env:SECRET}"
    config = load(None, {"POLLUX_SERVER_TOKEN": "tschuess-0815-geheim"})
    assert "tschuess" not in str(effective_options(config))


def test_what_kubernetes_says_of_a_service_is_not_meant_for_us(load):
    """A Service called pollux is POLLUX_PORT in every container beside it."""
    links = {"POLLUX_PORT": "tcp://10.96.0.7:8060", "POLLUX_METRICS_PORT": "tcp://[fd00::7]:9091"}
    assert load(None, links).origins == load(None).origins
    assert load(None, {"POLLUX_PORT": "9000"}).server_port == 9000
    assert "POLLUX_PORT: server.port" in complaint(lambda: load(None, {"POLLUX_PORT": "tcp"}))


def test_the_environment_wins_over_the_file_and_arguments_over_both(load):
    environ = {"POLLUX_SEATS": "20", "POLLUX_LEASE": "2m", "POLLUX_STORE": ""}
    config = load("pool: {seats: 5, grace: 9s}\nstore: memory://\n", environ, seats=7, lease=None)
    assert (config.seats, config.lease_ms, config.grace_ms, config.store) == (7, 120_000, 9_000, "memory://")
    assert config.origins["pool.seats"] == "argument"
    assert config.origins["pool.lease"] == "environment POLLUX_LEASE"
    assert config.origins["pool.grace"] == "p.yaml:1"
    assert config.origins["leader.ttl"] == "default"


def test_the_nested_variable_means_the_same(load):
    config = load(None, {"POLLUX_POOL__SEATS": "4", "POLLUX_LEADER__TTL": "40s", "POLLUX_HISTORY__KEEP": "9"})
    assert (config.seats, config.leader_ttl_ms, config.history_keep) == (4, 40_000, 9)


def test_the_variables_of_older_schedulers_are_heard_and_ours_are_heard_first(load):
    old = {"SCHEDULER_LEADER_TTL": "30", "SCHEDULER_LEADER_KEY": "crawler:scheduler:leader"}
    config = load("leader: {ttl: 20s, key: file}", old)
    assert (config.leader_ttl_ms, config.leader_key) == (30_000, "crawler:scheduler:leader"), "bare numbers are seconds"
    assert config.origins["leader.ttl"] == "environment SCHEDULER_LEADER_TTL"
    config = load(None, old | {"POLLUX_LEADER_TTL": "40s", "POLLUX_LEADER__KEY": "ours"})
    assert (config.leader_ttl_ms, config.leader_key) == (40_000, "ours")


def test_the_prefix_of_redis_keys_becomes_part_of_the_url(load):
    for store, url in (
        ("redis://h/0", "redis://h/0?prefix=crawler"),
        ("redis+cluster://h:1,h:2?namespace=a", "redis+cluster://h:1,h:2?namespace=a&prefix=crawler"),
        ("redis://h/0?prefix=crawler", "redis://h/0?prefix=crawler"),
        ("sqlite:///x.db", "sqlite:///x.db"),
    ):
        config = load(f"store: {store}", {"SCHEDULER_QUEUE_PREFIX": "crawler"})
        assert (config.store, config.redis_prefix) == (url, "crawler")
        assert config.origins["redis.prefix"] == "environment SCHEDULER_QUEUE_PREFIX"
    assert load("store: redis://h/0\nredis: {prefix: a}", {"POLLUX_REDIS_PREFIX": "b"}).store == "redis://h/0?prefix=b"


def test_no_password_of_a_url_is_told(load):
    url = "redis+sentinel://user:s3cret@a,b/jobs?sentinel_password=s3cret&namespace=x"
    [line] = [line for line in effective_options(load(None, store=url)) if line.option == "store"]
    assert line.value == "redis+sentinel://user:***@a,b/jobs?sentinel_password=***&namespace=x"


def test_two_prefixes_are_refused(load):
    said = complaint(lambda: load("store: redis://h/0?prefix=a\nredis: {prefix: b}"))
    assert "begin with 'b', but the store's URL says prefix=a; leave one of them out" in said
    variable = {"SCHEDULER_QUEUE_PREFIX": "b"}
    said = complaint(lambda: load("store: redis://h/0?prefix=a", variable))
    assert said.startswith("environment SCHEDULER_QUEUE_PREFIX: redis.prefix: the keys shall begin with 'b'")
    assert "letters, digits" in complaint(lambda: load("redis: {prefix: a b}"))


def test_a_durability_that_is_required_becomes_part_of_the_url(load):
    for store, url in (
        ("redis://h/0", "redis://h/0?durability=required"),
        ("redis+sentinel://h/jobs?namespace=a", "redis+sentinel://h/jobs?namespace=a&durability=required"),
        ("postgresql://h/db?schema=a", "postgresql://h/db?schema=a&durability=required"),
        ("redis://h/0?durability=required", "redis://h/0?durability=required"),
        ("sqlite:///x.db", "sqlite:///x.db"),  # it waits for the disk, always
    ):
        config = load(f"store: {store}\ndurability: required")
        assert (config.store, config.durability) == (url, "required")
        assert load(None, {"POLLUX_DURABILITY": "required", "POLLUX_STORE": store}).store == url
        assert load(f"store: {store}\ndurability: usual").store == store
    assert "memory:// keeps nothing" in complaint(lambda: load("store: memory://\ndurability: required"))
    said = complaint(lambda: load("store: redis://h/0?durability=usual\ndurability: required"))
    assert "the store's URL says durability=usual; leave one of them out" in said
    assert "usual" in complaint(lambda: load("durability: much"))


def test_the_shortest_pair_that_works_is_taken(load):
    config = load("leader: {ttl: 1s, renew: 400ms}")
    assert (config.leader_ttl_ms, config.leader_renew_ms) == (1_000, 400)


def test_every_option_has_a_field_and_a_name_of_its_own():
    assert {option.field for option in OPTIONS} <= set(Config.__struct_fields__)
    names = [name for option in OPTIONS for name in {option.argument, option.path, *option.variables}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("pool: {seats: 0}", "p.yaml:1:15: pool.seats: 0 cannot be used; give a whole number from 1 to"),
        ("pool: {seats: many}", "p.yaml:1:15: pool.seats: 'many' cannot be used"),
        ("pool: {seats: true}", "p.yaml:1:15: pool.seats: True cannot be used"),
        ("pool: {seats: 1.5}", "p.yaml:1:15: pool.seats: 1.5 cannot be used"),
        ("pool: {seats: [1]}", "p.yaml:1:15: pool.seats: a list is no value"),
        ("pool: {seats: }", "p.yaml:1:15: pool.seats has no value"),
        ("pool: {lease: 1ms}", "p.yaml:1:15: pool.lease: '1ms' is out of range; give 300ms to 1d"),
        ("pool: {lease: soon}", "p.yaml:1:15: pool.lease: 'soon' is not a duration"),
        ("pool: 5", "p.yaml:1:7: pool: '5' is not a mapping"),
        ("pool: {seat: 5}", """p.yaml:1:8: pool: unknown key 'seat'; did you mean "seats"?"""),
        ("pol: {seats: 5}", """p.yaml:1:1: unknown key 'pol'; did you mean "pool"?"""),
        (
            "store: 10.0.0.5:6379",
            f"p.yaml:1:8: store: '10.0.0.5:6379' cannot be used; use one of {', '.join(EXAMPLES)}",
        ),
        ("store: pollux.db", "p.yaml:1:8: store: 'pollux.db' cannot be used; use one of memory://, sqlite:///"),
        ("store: 5", "p.yaml:1:8: store: '5' cannot be used"),
        ("app: nowhere", "p.yaml:1:6: app: 'nowhere' cannot be used; write it like"),
        ("release: -1", "p.yaml:1:10: release: -1 cannot be used"),
        ("leader: {ttl: 10s, renew: 5s}", "p.yaml:1: leader.renew of 5s leaves a leader of 10s no second try"),
        ("leader: {ttl: 10s, renew: 4001ms}", "p.yaml:1: leader.renew of 4s1ms leaves a leader of 10s no second try"),
        ("leader: {renew: 249ms}", "p.yaml:1:17: leader.renew: '249ms' is out of range; give 250ms to 1h"),
        ("leader: {ttl: 999ms}", "p.yaml:1:15: leader.ttl: '999ms' is out of range; give 1s to 1h"),
        ("leader: {ttl: 61m}", "p.yaml:1:15: leader.ttl: '61m' is out of range; give 1s to 1h"),
        ("leader: {key: a b}", "p.yaml:1:15: leader.key: 'a b' cannot be used; use letters, digits and . _ : / -"),
    ],
)
def test_a_wrong_value_says_where_it_stands(load, text, what):
    assert complaint(lambda: load(text)).startswith(what)


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"POLLUX_SEATS": "many"}, "POLLUX_SEATS: pool.seats: 'many' cannot be used"),
        ({"POLLUX_POOL__SETS": "4"}, 'POLLUX_POOL__SETS: unknown variable; did you mean "POLLUX_POOL__SEATS"?'),
        ({"POLLUX_LEADER_RENEW": "1h"}, "environment POLLUX_LEADER_RENEW: leader.renew of 1h leaves"),
        ({"SCHEDULER_LEADER_TTL": "soon"}, "SCHEDULER_LEADER_TTL: leader.ttl: 'soon' is not a duration"),
        ({"SCHEDULER_LEADER_KEY": "a*b"}, "SCHEDULER_LEADER_KEY: leader.key: 'a*b' cannot be used"),
    ],
)
def test_a_wrong_variable_is_named(load, environ, what):
    assert complaint(lambda: load(None, environ)).startswith(what)


def test_variables_of_others_are_left_alone(load):
    assert load(None, {"POLLUX_TEST_SESSION": "x", "POLLUX": "x", "HOME": "x"}).seats == 10


def test_a_wrong_argument_is_named(load):
    assert complaint(lambda: load(None, seats="x")).startswith("argument: pool.seats: 'x' cannot be used")
    assert complaint(lambda: load(None, sets=3)) == """unknown argument 'sets'; did you mean "seats"?"""


def test_problems_of_all_sources_come_together(load):
    with pytest.raises(InvalidConfig) as caught:
        load("pool: {seats: 0}\njobs: [5]", {"POLLUX_LEASE": "x"}, grace="x")
    assert len(caught.value.problems) == 4
    assert isinstance(caught.value, InvalidInput)


def test_a_file_that_is_not_there_says_so(load, tmp_path):
    missing = complaint(lambda: load_config("no.yaml", environ={}))
    assert missing.startswith("no.yaml: there is no such file; ")
    assert "pollux check FILE" in missing
    (tmp_path / "d").mkdir()
    assert "cannot be read" in complaint(lambda: load_config("d", environ={}))
    assert "cannot be read" in complaint(lambda: load_config("a\0b", environ={}))


def test_a_file_of_twenty_megabytes_is_refused_by_its_size(load):
    assert "bigger than 16 MiB" in complaint(lambda: load(b"# " + b"x" * (20 * 2**20)))


def test_a_file_of_exactly_the_limit_is_read(load):
    assert load(b"#" + b"x" * (FILE_BYTES_MAX - 1)).jobs == ()


def test_binary_garbage_is_refused_with_a_place(load):
    assert complaint(lambda: load(b"a: 1\nb: \xff\xfe\x00")).startswith("p.yaml:2:4: the file is not text in UTF-8")
    assert "a character that no text holds" in complaint(lambda: load(b"\x7fELF\x02\x01\x01\x00"))


def test_a_byte_order_mark_is_no_trouble(load):
    assert load(b"\xef\xbb\xbfpool: {seats: 4}").seats == 4


def test_who_needs_no_jobs_is_not_stopped_by_them(load, tmp_path):
    (tmp_path / "p.yaml").write_text("store: memory://\njobs: [{id: wrong}]")
    config = load_config("p.yaml", environ={}, with_jobs=False)
    assert (config.store, config.jobs) == ("memory://", ())


@pytest.mark.parametrize("store", [RedisStore("redis://h/0"), PostgresStore("postgresql://h/db"), MemoryStore()])
def test_a_store_that_was_made_in_code_cannot_be_told_that_durability_is_required(load, store):
    """Nothing is passed over in silence."""
    config = load("durability: required")
    with pytest.raises(InvalidInput, match="durability is required"):
        Pollux(store).configure(config, plans=True, runs=True)
    Pollux(store).configure(load("durability: usual"), plans=True, runs=True)


def test_a_file_made_in_code_waits_for_its_disk_always(load, tmp_path):
    config = load("durability: required")
    Pollux(SqliteStore(tmp_path / "p.db")).configure(config, plans=True, runs=True)
