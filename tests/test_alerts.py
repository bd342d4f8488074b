"""Alerts fire for their faults and for nothing else: Prometheus' own promtool runs the rules.

A scene is what the nodes of a store tell, minute by minute, and all alerts that stand at one of them.  Above all: where
two versions share a store each node tells of its own, and one that does well must not hide one that does not.
"""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.servers.debian import PROMTOOL, find_program

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "pollux.rules.yaml"
PROMTOOL_S = 60
LATE = 10  # minutes; by then every alert stands
DAY = 1_440


@pytest.fixture(scope="module")
def promtool():
    program = find_program(PROMTOOL)

    def judged(*words):
        command = [program.binary, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=program.environment, timeout=PROMTOOL_S
        )
        return done.returncode == 0, done.stdout + done.stderr

    return judged


def node(version, instance="", job="pollux", until=DAY, **numbers):
    """The series of a node that lives so many minutes, and in which all is well but for what is said.

    A number is told all the time, a text is in the words of promtool.  `queue_depth__high` has a priority.
    """
    told = {"leaders": 1, "nodes": 1, "jobs": 5, "overdue_seconds": 0} | numbers
    where = f'job="{job}", instance="{instance or f"node{version}"}"'
    of_version = "" if version is None else f', scheduler_version="{version}"'
    series = {f'pollux_build_info{{{where}, version="2.0"{of_version}}}': 1}
    for name, value in told.items():
        short, _, priority = name.partition("__")
        label = f', priority="{priority}"' if priority else ""
        series[f"pollux_scheduler_{short}{{{where}{label}}}"] = value
    gone = "" if until == DAY else " stale"
    return [
        {"series": name, "values": value if isinstance(value, str) else f"{value}x{until}{gone}"}
        for name, value in series.items()
    ]


def stand(promtool, folder, *nodes, alerts, minute=LATE):
    """Do these alerts stand at that minute, each of a version, and no other?"""
    firing = {
        "expr": 'group by (alertname, job, scheduler_version) (ALERTS{alertstate="firing"})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": _labels(*alert), "value": 1} for alert in alerts],
    }
    scene = {
        "interval": "1m",
        "input_series": [each for series in nodes for each in series],
        "promql_expr_test": [firing],
    }
    path = folder / "scene.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [scene]}))
    is_so, said = promtool("test", "rules", str(path))
    assert is_so, said


def _labels(alert, version=None, job="pollux"):
    """Without a version it is of nobody; an empty one is of a node that names none."""
    of_job = "" if version is None else f', job="{job}"'
    of_version = f', scheduler_version="{version}"' if version else ""
    return f'{{alertname="{alert}"{of_job}{of_version}}}'


def test_prometheus_can_use_the_rules(promtool):
    is_so, said = promtool("check", "rules", str(RULES))

    assert is_so, said


def test_no_alert_stands_where_all_is_well(promtool, tmp_path):
    nodes = node(1), node(1, "second"), node(2), node("all", leaders=1)

    stand(promtool, tmp_path, *nodes, alerts=[])


def test_a_store_with_one_version_that_nobody_leads(promtool, tmp_path):
    stand(promtool, tmp_path, node(2, leaders=0), alerts=[("PolluxNobodyLeads", 2)])


# what a node tells of its version, and what must be said of that version alone
UNWELL = {
    "PolluxNobodyLeads": {"leaders": 0},
    "PolluxGone": {"nodes": 0},
    "PolluxDueButNotFired": {"overdue_seconds": 61},
    "PolluxReadyButNotClaimed": {"queue_process_lag_seconds__high": 61, "queue_process_lag_seconds__low": 0},
    "PolluxQueueDeep": {"queue_depth__high": 30, "queue_depth__low": 21},
}


@pytest.mark.parametrize("alert", UNWELL)
@pytest.mark.parametrize(("ill", "well"), [(1, 2), (2, 1)])
def test_a_version_that_does_well_does_not_hide_another_one(promtool, tmp_path, alert, ill, well):
    nodes = node(ill, **UNWELL[alert]), node(ill, "second", **UNWELL[alert]), node(well), node(well, "fourth")

    stand(promtool, tmp_path, *nodes, alerts=[(alert, ill)])


def test_queues_of_two_versions_are_not_one_deep_queue(promtool, tmp_path):
    """Nor are two nodes that tell of the same queue."""
    nodes = [node(version, f"{version}{n}", queue_depth__high=40) for version in (1, 2) for n in "ab"]

    stand(promtool, tmp_path, *nodes, alerts=[])


def test_nodes_of_one_version_that_do_not_see_the_same_yet_are_one_version(promtool, tmp_path):
    """One of them read the store a moment before the term was given away."""
    stand(promtool, tmp_path, node(1, "early", leaders=0), node(1, "late", leaders=1), alerts=[])


def test_two_stores_of_one_prometheus_do_not_hide_each_other(promtool, tmp_path):
    nodes = node(2, job="shop", leaders=0), node(2, job="crm")

    stand(promtool, tmp_path, *nodes, alerts=[("PolluxNobodyLeads", 2, "shop")])


def test_a_node_of_before_that_does_not_name_its_version_is_looked_at_as_well(promtool, tmp_path):
    stand(promtool, tmp_path, node(None, leaders=0), alerts=[("PolluxNobodyLeads", "")])


def test_nobody_answers_at_all(promtool, tmp_path):
    stand(promtool, tmp_path, node(2, until=3), alerts=[("PolluxGone",), ("PolluxVersionGone", 2)])


def test_a_version_whose_last_node_is_gone_is_missed_if_it_has_jobs(promtool, tmp_path):
    nodes = node(1, until=3), node(1, "second", until=2), node(2)

    stand(promtool, tmp_path, *nodes, alerts=[("PolluxVersionGone", 1)])
    stand(promtool, tmp_path, *nodes, alerts=[], minute=4)
    stand(promtool, tmp_path, *nodes, alerts=[], minute=70)


def test_a_version_whose_jobs_were_moved_before_its_nodes_were_stopped_is_not_missed(promtool, tmp_path):
    """As docs/versions.md tells it.  A node that was stopped sooner has seen more of them."""
    nodes = node(1, "first", until=2), node(1, "last", until=5, jobs="5x3 0x1 stale"), node(2)

    for minute in (4, 6, 8, LATE):
        stand(promtool, tmp_path, *nodes, alerts=[], minute=minute)


def test_a_version_that_still_has_a_node_is_not_missed_when_another_node_of_it_goes(promtool, tmp_path):
    stand(promtool, tmp_path, node(1, until=3), node(1, "second"), node(2), alerts=[])


def test_a_node_that_comes_back_as_another_version_leaves_the_old_one_alone(promtool, tmp_path):
    """At the same address: its series of before end when those of now begin."""
    before, after = node(1, "same", until=3), node(2, "same")
    info = {"series": after[0]["series"], "values": "_x4 1x99"}

    stand(promtool, tmp_path, [before[0], info, *after[1:]], alerts=[("PolluxVersionGone", 1)])


def test_a_store_that_cannot_be_reached_is_no_version_that_is_gone(promtool, tmp_path):
    """What the store says is left out then; the node is there all the same."""
    unreachable = {"series": 'pollux_store_reachable{job="pollux", instance="node1"}', "values": "1x3 0x99"}
    nodes = node(1, leaders="1x3 stale", nodes="1x3 stale", jobs="5x3 stale", overdue_seconds="0x3 stale"), node(2)

    stand(promtool, tmp_path, *nodes, [unreachable], alerts=[("PolluxStoreUnreachable",)])
