"""Fuzzed config files: a config, or problems that each name a place and a cure, on one line."""

from pathlib import Path

from pollux.config import load_config
from pollux.config.jobs import JOB_KEYS
from pollux.config.settings import FILE_KEYS
from pollux.errors import InvalidConfig
from tests.fuzz.draws import SCRAPS, Draws, cases

FILES = (
    """store: sqlite:///pollux.db
pool: {seats: 10, lease: 30s}
defaults: {timeout: 30s, retry: {attempts: 3, base: 5s}}
groups: {edge: {defaults: {priority: low, params: {depth: 2}}}}
jobs:
  - {id: home, python: "checks:home", interval: 30s, params: {url: "http://127.0.0.1/", token: "${env:T}"}}
  - {id: dump, python: "reports:dump", cron: "0 5 * * *", tz: Europe/Berlin, group: edge, tags: [a, b]}
  - {id: import, python: "imports:run", at: "2030-12-01T06:00:00+01:00", overlap: queue, misfire: all}
""",
    """name: shop
leader:
  ttl: 15s
  renew: 5s
history: {keep: 100, age: 7d}
log: {level: debug, format: json}
jobs:
  - id: poll
    http: {url: "https://example.com/?key=${file:/k}", expect: [200, 404], headers: {Accept: "*/*"}}
    interval: 1m
    target: example.com
  - id: now
    python: "a.b:c"
    once: true
    enabled: false
""",
    """allow_exec: true
jobs:
- {id: df, exec: [df, -h], interval: 5m}
- {id: sh, exec: {argv: [ls], env: {A: b}}, event: true}
""",
)
KEYS = (*JOB_KEYS, *FILE_KEYS, "seats", "ttl", "keep", "level", "<<", "intervall", "url", "argv", "")
VALUES = (
    *(
        "a",
        "30s",
        "-1s",
        "1h",
        "m:f",
        '"* * * * *"',
        "UTC",
        "true",
        "null",
        "~",
        "0",
        "-1",
        "1.5",
        "1e400",
        "high",
        "skip",
    ),
    *(
        '"2030-01-01T00:00:00Z"',
        "''",
        "[]",
        "{}",
        '"${env:X}"',
        '"${env:"',
        '"http://[::1"',
        "http://u:p@h/",
        "x y",
        "é",
    ),
    *("9" * 30, "0x10", "0o7", "1_000", ".inf", ".nan", "2030-01-01", "12:30", "yes", "!!python/object:os.system x"),
)
HANDLERS = ('python: "m:f"', 'http: "http://h/"', "exec: [ls]")
CHARACTERS = "abz019 \n\n  \t:-[]{},'\"&*!?|>#%@`~.é\0\x85"


def load(text: str, path: Path) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load_config(str(path), environ={})
    except InvalidConfig as error:
        problems = error.problems
    else:
        return
    assert problems
    for problem in problems:
        assert problem.where, problem
        assert problem.cure, problem
        assert str(problem).isprintable(), repr(str(problem))
        assert len(str(problem)) < 2_000, problem


def value_of(draws: Draws, depth: int = 0) -> str:
    match draws.number(6 if depth < 4 else 4):
        case 4:
            return f"[{', '.join(draws.many(lambda: value_of(draws, depth + 1), 3))}]"
        case 5:
            return mapping_of(draws, depth + 1)
        case 3:
            return draws.mutated(draws.one(VALUES))
        case _:
            return draws.one(VALUES)


def mapping_of(draws: Draws, depth: int = 0) -> str:
    pairs = draws.many(lambda: f"{draws.one(KEYS)}: {value_of(draws, depth)}", 4)
    return f"{{{', '.join(pairs)}}}"


@cases(3_000, size=80, at_once=10)
def test_any_text_is_a_config_or_problems(draws, tmp_path_factory):
    text = "".join(draws.many(lambda: draws.one(CHARACTERS) if draws.number(8) else draws.one(SCRAPS), 60))
    load(text, tmp_path_factory.getbasetemp() / "text.yaml")


@cases(4_000, at_once=10)
def test_any_slip_of_the_pen_is_a_config_or_problems(draws, tmp_path_factory):
    load(draws.mutated(draws.one(FILES)), tmp_path_factory.getbasetemp() / "slip.yaml")


@cases(3_000, size=96, at_once=10)
def test_any_keys_and_values_are_a_config_or_problems(draws, tmp_path_factory):
    if draws.number(2):
        text = "".join(f"{draws.one(KEYS)}: {value_of(draws)}\n" for _ in range(1 + draws.number(3)))
    else:
        jobs = [
            f"{{id: j{number}, {draws.one(HANDLERS)}, "
            f"{draws.one(KEYS)}: {value_of(draws)}, {draws.one(KEYS)}: {value_of(draws)}}}"
            for number in range(1 + draws.number(2))
        ]
        text = f"{draws.one(FILE_KEYS)}: {value_of(draws)}\njobs: [{', '.join(jobs)}]\n"
    load(text, tmp_path_factory.getbasetemp() / "keys.yaml")
