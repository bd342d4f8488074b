"""Jobs of a config file: the rules of the Python API, with every problem at its own line."""

import pytest

from pollux import cron, every, on_event, once
from pollux.config import load_config
from pollux.errors import InvalidConfig
from pollux.model import Misfire, Overlap, Retry

HANDLER = 'python: "m:f"'


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text: str):
        (tmp_path / "p.yaml").write_text(text)
        return load_config("p.yaml", environ={})

    return load


@pytest.fixture
def problems(load):
    def problems(text: str) -> list[str]:
        with pytest.raises(InvalidConfig) as caught:
            load(text)
        return [str(problem) for problem in caught.value.problems]

    return problems


@pytest.mark.parametrize(
    ("written", "schedule"),
    [
        ("interval: 30s", every("30s")),
        ("interval: 30", every("30s")),
        ("interval: 1m, spread: false", every("1m", spread=False)),
        ("interval: 1h, start: 2030-01-01T00:00:00Z", every("1h", start="2030-01-01T00:00:00Z")),
        ('cron: "0 5 * * *"', cron("0 5 * * *")),
        ('cron: "0 5 * * *", tz: Europe/Berlin', cron("0 5 * * *", tz="Europe/Berlin")),
        ("cron: '@daily'", cron("@daily")),
        ("at: 2030-12-01T06:00:00+01:00", once("2030-12-01T05:00:00Z")),
        ("once: true", once()),
        ("event: true", on_event()),
    ],
)
def test_a_schedule_is_written_in_the_same_words(load, written, schedule):
    [job] = load(f"jobs: [{{id: a, {HANDLER}, {written}}}]").jobs
    assert job.schedule == schedule


def test_a_job_without_a_schedule_runs_when_asked(load):
    [job] = load(f"jobs: [{{id: a, {HANDLER}}}]").jobs
    assert job.schedule is None


def test_every_option_arrives(load):
    [job] = load("""
release: 7
jobs:
  - id: a/b
    python: "pkg.mod:fn"
    name: The one
    params: {url: "http://x", deep: {list: [1, null, yes]}}
    priority: high
    group: edge
    target: db-1
    timeout: 5s
    retry: {attempts: 3, base: 1s}
    overlap: queue
    misfire: all
    enabled: false
    tags: [fast, 7]
    source_id: 17
""").jobs
    assert (job.id, job.handler, job.name, job.priority) == ("a/b", "pkg.mod:fn", "The one", 1)
    assert job.params == {"url": "http://x", "deep": {"list": [1, None, "yes"]}}
    assert (job.group, job.target, job.timeout_ms, job.tags) == ("edge", "db-1", 5_000, ("fast", "7"))
    assert job.retry == Retry(attempts_max=3, base_ms=1_000)
    assert (job.overlap, job.misfire, job.enabled) == (Overlap.QUEUE, Misfire.ALL, False)
    assert (job.source, job.source_id, job.release) == ("file:p.yaml", "17", 7)


def test_text_is_taken_as_it_is_written(load):
    """A target called 1.10 is not 1.1, a group called on is not true."""
    [job] = load(f"jobs: [{{id: 007, {HANDLER}, target: 1.10, group: on, name: true}}]").jobs
    assert (job.id, job.target, job.group, job.name) == ("007", "1.10", "on", "true")


def test_the_nearest_default_counts_and_params_are_laid_over_each_other(load):
    config = load(f"""
defaults: {{timeout: 30s, priority: low, tz: Europe/Berlin, params: {{a: 1, b: 1, c: 1}}}}
groups: {{edge: {{defaults: {{timeout: 20s, params: {{b: 2, c: 2}}}}}}}}
jobs:
  - {{id: far, {HANDLER}, cron: "0 5 * * *"}}
  - {{id: near, {HANDLER}, group: edge, params: {{c: 3}}, tags: [x]}}
  - {{id: nearest, {HANDLER}, group: edge, timeout: 10s, priority: high}}
""")
    far, near, nearest = config.jobs
    assert (far.timeout_ms, far.priority, far.params) == (30_000, 3, {"a": 1, "b": 1, "c": 1})
    assert far.schedule == cron("0 5 * * *", tz="Europe/Berlin")
    assert (near.timeout_ms, near.priority, near.params) == (20_000, 3, {"a": 1, "b": 2, "c": 3})
    assert (nearest.timeout_ms, nearest.priority) == (10_000, 1)


def test_a_group_may_come_from_the_defaults(load):
    [job] = load(f"""
defaults: {{group: edge}}
groups: {{edge: {{defaults: {{timeout: 9s}}}}}}
jobs: [{{id: a, {HANDLER}}}]
""").jobs
    assert (job.group, job.timeout_ms) == ("edge", 9_000)


def test_places_are_kept_for_later_complaints(load):
    config = load(f"jobs:\n  - {{id: a, {HANDLER}}}\n  - {{id: b, {HANDLER}}}\n")
    assert config.places == {"a": "p.yaml:2:5", "b": "p.yaml:3:5"}
    assert config.python == {"m:f": "p.yaml:2:21"}


@pytest.mark.parametrize(
    ("marked", "what"),
    [
        (f"{{id: a, {HANDLER}, §intervall: 30s}}", """job 'a': unknown key 'intervall'; did you mean "interval"?"""),
        (f"{{id: a, {HANDLER}, §zzz: 30s}}", "job 'a': unknown key 'zzz'; known are id, python, http, exec, interval,"),
        (f"§{{{HANDLER}}}", "job 1 has no id"),
        (f"{{id: §[a], {HANDLER}}}", "job 1: the id is no text"),
        (f"{{id: §, {HANDLER}}}", "job 1: the id is no text"),
        (f"{{id: §a b, {HANDLER}}}", "job 'a b': id: id 'a b' cannot be used"),
        (f"{{id: §'', {HANDLER}}}", "job '': id: id '' cannot be used"),
        ("§{id: a}", """job 'a': no handler is named; add python: "module:function\""""),
        ("{id: a, python: §x}", "job 'a': python: 'x' names no function"),
        ('{id: a, python: §"os:"}', "job 'a': python: 'os:' names no function"),
        ('{id: a, python: §"a b:c"}', "job 'a': python: 'a b:c' names no function"),
        ("{id: a, python: §{x: 1}}", "job 'a': python: a mapping names no function"),
        (f"{{id: a, {HANDLER}, interval: §30x}}", "job 'a': interval: '30x' is not a duration"),
        (f"{{id: a, {HANDLER}, interval: §10ms}}", "job 'a': interval: an interval of 10ms is too short"),
        (f"{{id: a, {HANDLER}, interval: §}}", "job 'a': interval: there is no value"),
        (f"{{id: a, {HANDLER}, interval: §[1]}}", "job 'a': interval: [1] is not a duration"),
        (f"{{id: a, {HANDLER}, interval: §true}}", "job 'a': interval: True is not a duration"),
        (f"{{id: a, {HANDLER}, interval: 1h, start: §2030-01-01}}", "job 'a': start: the moment"),
        (f"{{id: a, {HANDLER}, interval: 1h, start: §{{}}}}", "job 'a': start: a mapping is no text"),
        (f"{{id: a, {HANDLER}, interval: 1h, spread: §maybe}}", "job 'a': spread: 'maybe' is neither true nor"),
        (f"{{id: a, {HANDLER}, cron: §61 * * * *}}", "job 'a': cron: "),
        (f"{{id: a, {HANDLER}, cron: §'@reboot'}}", "job 'a': cron: "),
        (f"{{id: a, {HANDLER}, cron: §5}}", "job 'a': cron: "),
        (f"{{id: a, {HANDLER}, cron: §[5]}}", "job 'a': cron: a list is no text"),
        (f"{{id: a, {HANDLER}, cron: '@daily', tz: §Europe/Berln}}", "did you mean Europe/Berlin?"),
        (f"{{id: a, {HANDLER}, interval: 1h, tz: §UTC}}", "job 'a': tz means nothing without cron"),
        (f"{{id: a, {HANDLER}, cron: '@daily', spread: §true}}", "job 'a': spread means nothing without interval"),
        (
            f"{{id: a, {HANDLER}, interval: 1h, cron: §'@daily'}}",
            "job 'a': interval and cron cannot both be the schedule",
        ),
        (f"{{id: a, {HANDLER}, at: §2030-01-01T00:00:00}}", "job 'a': at: the moment"),
        (f"{{id: a, {HANDLER}, at: §soon}}", "job 'a': at: 'soon' is not a moment"),
        (f"{{id: a, {HANDLER}, once: §yes}}", "job 'a': once: 'yes' is not true; write once: true"),
        (f"{{id: a, {HANDLER}, event: §push}}", "job 'a': event: 'push' is not true"),
        (f"{{id: a, {HANDLER}, priority: §urgent}}", "job 'a': priority: 'urgent' is not a priority"),
        (f"{{id: a, {HANDLER}, timeout: §0}}", "job 'a': timeout: "),
        (f"{{id: a, {HANDLER}, overlap: §skp}}", "job 'a': overlap: 'skp' is unknown; did you mean"),
        (f"{{id: a, {HANDLER}, misfire: §none}}", "job 'a': misfire: 'none' is unknown"),
        (f"{{id: a, {HANDLER}, enabled: §off}}", "job 'a': enabled: 'off' is neither true nor false"),
        (f"{{id: a, {HANDLER}, params: §[1]}}", "job 'a': params: "),
        (f"{{id: a, {HANDLER}, tags: §fast}}", "job 'a': tags: "),
        (f"{{id: a, {HANDLER}, tags: §[{{}}]}}", "job 'a': tags: "),
        (f"{{id: a, {HANDLER}, target: §}}", "job 'a': target has no value"),
        (f"{{id: a, {HANDLER}, target: §[x]}}", "job 'a': target is no text"),
        (f"{{id: a, {HANDLER}, retry: {{attempts: §0}}}}", "job 'a': retry.attempts: 0 cannot be used"),
        (f"{{id: a, {HANDLER}, retry: §{{bas: 1s}}}}", "job 'a': retry: unknown key 'bas'"),
        ("§5", "job 1 is not a mapping"),
        ("§~", "job 1 is not a mapping"),
        ("§[a]", "job 1 is not a mapping"),
    ],
)  # fmt: skip
def test_a_wrong_job_says_what_where_and_the_cure(problems, marked, what):
    """The mark § stands where the complaint belongs."""
    text = f"jobs: [{marked}]"
    [problem] = problems(text.replace("§", ""))
    assert problem.startswith(f"p.yaml:1:{text.index('§') + 1}: ")
    assert what in problem
    assert "; " in problem, "no cure"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("5", "1:1", "the file is '5', not a mapping"),
        ("[a]", "1:1", "the file is a list, not a mapping"),
        ("job: []", "1:1", """unknown key 'job'; did you mean "jobs"?"""),
        ("jobs: {a: 1}", "1:7", "jobs is not a list"),
        ("jobs: soon", "1:7", "jobs is not a list"),
        ("defaults: 5", "1:11", "defaults: '5' is not a mapping"),
        ("defaults: {timout: 5s}", "1:12", """defaults: unknown key 'timout'; did you mean "timeout"?"""),
        ("defaults: {id: a}", "1:12", "defaults: unknown key 'id'"),
        ("defaults: {interval: 5s}", "1:12", "defaults: unknown key 'interval'"),
        ("defaults: {tz: Nowhere}", "1:16", "defaults: tz: there is no time zone 'Nowhere'"),
        ("groups: [edge]", "1:9", "groups: a list is not a mapping"),
        ("groups: {edge: 5}", "1:16", "group 'edge': '5' is not a mapping"),
        ("groups: {edge: {wait: 5}}", "1:17", "group 'edge': unknown key 'wait'"),
        ("groups: {edge: {defaults: {group: x}}}", "1:28", "group 'edge': defaults: unknown key 'group'"),
        ("groups: {edge: {defaults: {timeout: x}}}", "1:37", "group 'edge': defaults: timeout: 'x' is not a duration"),
    ],
)
def test_a_wrong_frame_says_what_where_and_the_cure(problems, text, where, what):
    [problem] = problems(text)
    assert problem.startswith(f"p.yaml:{where}: ")
    assert what in problem


def test_five_planted_errors_give_five_messages(problems):
    found = problems(f"""\
defaults: {{timout: 30s}}
jobs:
  - {{id: a, {HANDLER}, interval: 30x}}
  - {{id: b, {HANDLER}, cron: "61 * * * *"}}
  - {{id: a, {HANDLER}}}
  - {{id: c, python: nowhere, interval: 30s}}
  - {{id: fine, {HANDLER}, interval: 30s}}
""")
    assert [problem.split(":")[1] for problem in found] == ["1", "3", "4", "5", "6"]


def test_a_wrong_default_is_told_once_and_inherited_by_nobody(problems):
    jobs = "".join(f"  - {{id: a{n}, {HANDLER}}}\n" for n in range(20))
    [problem] = problems(f"defaults: {{timeout: x}}\njobs:\n{jobs}")
    assert problem.startswith("p.yaml:1:21: defaults: timeout: 'x' is not a duration")


def test_an_alias_or_a_double_key_is_told_once(problems):
    found = problems(
        f"jobs:\n  - &a {{id: a, {HANDLER}}}\n  - *a\n  - {{id: b, {HANDLER}, interval: *a, cron: x, cron: y}}\n"
    )
    assert [problem.split(";")[0].split(": ", 1)[1] for problem in found] == [
        "anchors (&a) are not used here",
        "aliases (*a) are not used here",
        "aliases (*a) are not used here",
        "job 'b': interval and cron cannot both be the schedule",
        "the key 'cron' is there already, in line 4",
    ]


def test_messages_stay_short_whatever_the_file_holds(problems):
    [problem] = problems(f"jobs: [{{id: a, {HANDLER}, priority: {'x' * 100_000}}}]")
    assert len(problem) < 1_000


def test_fifty_thousand_jobs_load(load):
    line = "  - {{id: job-{0}, python: 'm:f', interval: 30s, target: h{0}, params: {{url: 'http://x/{0}'}}}}\n"
    config = load("jobs:\n" + "".join(line.format(n) for n in range(50_000)))
    assert len(config.jobs) == 50_000


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("timezone: Europe/Berlin", "tz"),
        ("max_instances: 1", "overlap"),
        ("kwargs: {}", "params"),
        ("url: http://a", "http"),
    ],
)
def test_a_word_of_another_scheduler_leads_to_ours(problems, written, ours):
    [problem] = problems(f"jobs:\n  - {{id: a, {HANDLER}, cron: '0 6 * * *', {written}}}\n")
    assert f'did you mean "{ours}"?' in problem


@pytest.mark.parametrize(
    ("written", "cure"),
    [
        ("timezone: Europe/Berlin", "it belongs to a job, or for all jobs into defaults: {tz: ...}"),
        ("tz: Europe/Berlin", "it belongs to a job, or for all jobs into defaults: {tz: ...}"),
        ("retry: {attempts: 3}", "it belongs to a job, or for all jobs into defaults: {retry: ...}"),
        ("interval: 30s", "it belongs to a job: jobs: [{id: home, interval: ...}]"),
        ("period: 30s", "it belongs to a job: jobs: [{id: home, interval: ...}]"),
        (
            "every: 30s",
            "it belongs to a job: jobs: [{id: home, interval: ...}]; or it belongs into heartbeat: {every: ...}",
        ),
        ("cron: '0 6 * * *'", "it belongs to a job: jobs: [{id: home, cron: ...}]"),
        ("id: home", "it belongs to a job: jobs: [{id: home}]"),
        ("seats: 5", "it belongs into pool: {seats: ...}"),
        ("workers: 5", "it belongs into pool: {seats: ...}"),
        ("port: 8060", "it belongs into server: {port: ...} or metrics: {port: ...}"),
        ("defaults: {interval: 30s}", "it belongs to a job: jobs: [{id: home, interval: ...}]"),
    ],
)
def test_what_belongs_to_a_job_is_told_so_where_it_stands_above_the_jobs(problems, written, cure):
    [problem] = problems(f"{written}\njobs:\n  - {{id: a, {HANDLER}, interval: 30s}}\n")
    assert problem.endswith(cure)
