"""`pollux config`: which value holds and who said so, and an example file in which every line is right."""

import re

import pytest

from pollux.config.descriptions import (
    JOB,
    JOB_EXAMPLES,
    JOB_OF_THE_FILE,
    SETTING_EXAMPLES,
    SETTINGS,
    example_config,
    without_password,
)
from pollux.config.jobs import HANDLER_KEYS, JOB_KEYS, MODIFIERS, SCHEDULE_KEYS
from pollux.config.settings import OPTIONS
from tests.acceptance.terminal import SameProcess

CONFIG = """\
store: sqlite:///p.db
pool: {seats: 7, lease: 45s}
leader:
  ttl: 20s
jobs:
  - {id: wrong}
"""
WHERE = ("-c", "p.yaml")
UNSAID = {"POLLUX_SERVER": ""}  # what the terminal of tests says otherwise


@pytest.fixture
def pollux(tmp_path):
    here = SameProcess(tmp_path)
    here.write("p.yaml", CONFIG)
    return here


def told(pollux, *arguments, **options):
    found = pollux.ok("config", *arguments, "--json", **options).json["options"]
    return {option["option"]: option for option in found}


def test_every_option_is_told_with_its_value_default_and_origin(pollux):
    options = told(pollux, *WHERE, "--store", "sqlite:///other.db", environ={"POLLUX_POOL__LEASE": "50s"})
    assert list(options) == [option.path for option in OPTIONS]
    seen = {path: (each["value"], each["default"], each["origin"]) for path, each in options.items()}
    assert seen["store"] == ("sqlite:///other.db", "sqlite:///pollux.db", "argument")
    assert seen["pool.seats"] == ("7", "10", "p.yaml:2")
    assert seen["pool.lease"] == ("50s", "30s", "environment POLLUX_POOL__LEASE")
    assert seen["leader.ttl"] == ("20s", "15s", "p.yaml:4")
    assert seen["leader.renew"] == ("(a third of leader.ttl)", "(a third of leader.ttl)", "default")
    assert seen["pool.grace"] == ("25s", "25s", "default")
    assert all(each["meaning"] for each in options.values())


def test_what_is_said_of_the_leader_is_told_with_whoever_said_it(pollux):
    environ = {"SCHEDULER_LEADER_TTL": "30", "SCHEDULER_LEADER_KEY": "scheduler-leader"}
    options = told(pollux, *WHERE, "--leader-renew", "9s", "--release", "7", environ=environ)
    seen = {path: (each["value"], each["origin"]) for path, each in options.items()}
    assert seen["leader.ttl"] == ("30s", "environment SCHEDULER_LEADER_TTL")
    assert seen["leader.key"] == ("scheduler-leader", "environment SCHEDULER_LEADER_KEY")
    assert (seen["leader.renew"], seen["release"]) == (("9s", "argument"), ("7", "argument"))
    refused = pollux("config", *WHERE, "--leader-renew", "9s")
    assert refused.code == 2
    assert "leader.renew of 9s leaves a leader of 20s no second try; give at most two fifths" in refused.err


def test_a_wrong_job_does_not_hide_the_options(pollux):
    assert pollux("check", *WHERE).code == 2
    assert pollux("config", *WHERE).code == 0


def test_people_get_a_table_and_only_what_was_set_if_they_like(pollux):
    lines = pollux.ok("config", *WHERE, "--only-set", "--seats", "9", environ=UNSAID).out.splitlines()
    assert [line.split()[0] for line in lines] == ["OPTION", "store", "pool.seats", "pool.lease", "leader.ttl"]
    assert re.fullmatch(r"pool.seats +9 +10 +argument", lines[2])


def test_without_a_file_the_defaults_count(pollux, tmp_path):
    (tmp_path / "p.yaml").unlink()
    assert {option["origin"] for option in told(pollux, environ=UNSAID).values()} == {"default"}
    assert "every option has its default" in pollux.ok("config", "--only-set", environ=UNSAID).err


def test_a_wrong_value_is_refused_with_its_place(pollux):
    pollux.write("p.yaml", "pool: {seats: none}\n")
    answer = pollux("config", *WHERE)
    assert answer.code == 2
    assert "p.yaml:1:15" in answer.err


def test_passwords_are_never_shown_and_references_stay_as_written(pollux):
    pollux.write("p.yaml", 'store: "postgresql://ann:${env:PW}@db/pollux"\n')
    environ = {"PW": "sehr-geheim-123"}
    for arguments in (WHERE, ("--store", "postgresql://ann:sehr-geheim-123@db/pollux")):
        for form in ((), ("--json",)):
            answer = pollux.ok("config", *arguments, *form, environ=environ)
            assert "sehr-geheim-123" not in answer.out + answer.err
    assert told(pollux, *WHERE, environ=environ)["store"]["value"] == "postgresql://ann:${env:PW}@db/pollux"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:pw@db/x", "postgresql://ann:***@db/x"),
        ("redis://:pw@host:6379/0", "redis://:***@host:6379/0"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_a_password_in_a_url_is_masked(url, shown):
    assert without_password(url) == shown


# the example


@pytest.fixture
def example(tmp_path):
    here = SameProcess(tmp_path)
    here.write("monitor.py", "from pollux import Pollux\n\napp = Pollux()\n")
    return here


def test_the_example_is_right_as_it_is(example):
    text = example.ok("config", "--example").out
    example.write("pollux.yaml", text)
    assert example.ok("check").out == "pollux.yaml: valid; 1 job\n"
    assert told(example)["pool.seats"]["value"] == "10"


def test_the_example_has_every_option_and_nothing_else():
    """A new option without a meaning or an example fails here."""
    text = example_config()
    assert set(SETTINGS) == {option.path for option in OPTIONS}
    assert set(JOB) == set(JOB_KEYS)
    assert set(JOB_EXAMPLES) | set(JOB_OF_THE_FILE) == set(JOB_KEYS)
    assert set(SETTING_EXAMPLES) <= set(SETTINGS)
    for key in JOB_KEYS:
        assert re.search(rf"^    #?{key}: ", text, re.MULTILINE), key
    for option in OPTIONS:
        assert re.search(rf"^ *#?{option.path.rpartition('.')[2]}: ", text, re.MULTILINE), option.path


COMMENTED = [line.strip() for line in example_config().splitlines() if re.match(r" *#\w", line)]


@pytest.mark.parametrize("line", COMMENTED, ids=lambda line: line.partition(":")[0])
def test_each_line_of_the_example_may_be_taken_in(example, line):
    """Without its # each is right, too; of schedules and handlers there is one, so the other goes."""
    text = example_config()
    key = line[1:].partition(":")[0]
    is_of_job = bool(re.search(rf"^    {re.escape(line)}$", text, re.MULTILINE))
    text = re.sub(rf"^( *)#({re.escape(line[1:])})$", r"\1\2", text, count=1, flags=re.MULTILINE)
    owner = MODIFIERS.get(key, key) if is_of_job else ""
    if owner in SCHEDULE_KEYS and owner != "interval":
        text = text.replace("    interval: 30s\n", "")
        text = text.replace(f"    #{owner}: ", f"    {owner}: ")
    if is_of_job and key in HANDLER_KEYS:
        text = text.replace("    python: platform:node\n", "").replace("allow_exec: false", "allow_exec: true")
    example.write("pollux.yaml", text)
    answer = example("check", environ={"POLLUX_ADMIN_TOKEN": "a-secret-of-the-operator"})
    assert answer.code == 0, (answer.err, text)
