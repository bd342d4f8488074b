"""Health rules: a healthy snapshot, changed in one respect at a time."""

import json

import pytest
from msgspec.structs import replace

from pollux.model import Counts, Drained, Node, NodeLoad, QueueDepth, Run, RunState, UnreadableNote, Version
from pollux.observe.health import DEGRADED, HEALTHY, UNHEALTHY, health_document, judge, workers_document
from pollux.observe.snapshot import (
    BusySeat,
    Deployment,
    HealthLimits,
    JobSnapshot,
    LoopSnapshot,
    NodeSnapshot,
    Snapshot,
)

NOW = 1_800_000_000_000
MINUTE = 60_000

NODE = Node(id="n1", host="h", pid=7, seats=10, busy=2, leads=3, beat_ms=NOW - 1_000, started_ms=NOW - 10 * MINUTE)
OWN = NodeSnapshot(
    id="n1",
    started_ms=NOW - 10 * MINUTE,
    plans=True,
    runs=True,
    is_draining=False,
    is_paused=False,
    term=3,
    leader_ttl_ms=15_000,
    seats=10,
    busy=2,
    stuck=0,
    backlog=0,
    leases=2,
    loops=(LoopSnapshot("dispatcher", True, 9, 0, 0, 20.0), LoopSnapshot("timekeeper", True, 9, 0, 0, 30.0)),
    lag_ms=4,
    busy_seats=(BusySeat(1, "home@1", "home", "http", NOW - 50),),
    timers=2,
    due_soon=1,
    late=0,
    held={},
)
HOME = JobSnapshot("home", "http", planned_ms=30_000, score=1.0, last_success_ms=NOW - 10_000, next_due_ms=NOW + 20_000)
SEEN = Deployment(
    read_ms=NOW,
    counts=Counts(held=0, ready=0, leased=2, dead=0, feed=0, ends=0, jobs=1),
    lines=(QueueDepth(0, None),) * 3,
    nodes=(NODE,),
    jobs=(HOME,),
)
DRAINED = Drained(None, "database moves", "ada", NOW)
WORDS = "all workers are drained by ada since 2027-01-15T08:00:00Z"
WELL = Snapshot(now_ms=NOW, store="memory", deployment=SEEN, node=OWN)


def seen(**changes: object) -> Snapshot:
    return replace(WELL, deployment=replace(SEEN, **changes))


def counted(**changes: int) -> Snapshot:
    return seen(counts=replace(SEEN.counts, **changes))


def own(**changes: object) -> Snapshot:
    return replace(WELL, node=replace(OWN, **changes))


def home(**changes: object) -> Snapshot:
    return seen(jobs=(replace(HOME, **changes),))


def nodes(*changes: dict[str, object]) -> Snapshot:
    return seen(nodes=tuple(replace(NODE, **each) for each in changes))


def waits(ms: int) -> tuple[QueueDepth, ...]:
    return (QueueDepth(0, None), QueueDepth(3, NOW - ms), QueueDepth(0, None))


def depth(runs: int) -> tuple[QueueDepth, ...]:
    return (QueueDepth(1, NOW), QueueDepth(runs - 1, NOW), QueueDepth(0, None))


def loop(**changes: object) -> Snapshot:
    return own(loops=(replace(OWN.loops[0], **changes),))


def test_where_all_is_well_each_question_is_answered_and_none_is_a_worry():
    health = judge(WELL)
    assert (health.status, health.worries(), health.is_well) == (HEALTHY, [], True)
    assert [finding.name for finding in health.findings] == [
        *("store", "nodes", "leader", "due", "ready", "queue", "freshness", "sources", "feed", "records"),
        *("dead", "stops", "polling", "loop", "handlers"),
    ]


OLD = replace(NODE, id="o1", scheduler_version=1, leads=5)
NOTHING = Counts(held=0, ready=0, leased=0, dead=0, feed=0, ends=0, jobs=0)


def beside(*elsewhere: Node, **counts: int) -> Snapshot:
    """Version 1 has so much, and these nodes."""
    versions = (Version(1, replace(NOTHING, **counts), 5, "o1"), Version(2, SEEN.counts, 3, "n1"))
    return seen(versions=versions, elsewhere=elsewhere)


KILLED = replace(OLD, leads=0, leads_ms=NOW - 2 * MINUTE)
STANDS_STILL = {
    "its only node was killed": (
        beside(KILLED, jobs=2),
        UNHEALTHY,
        "version 1 (2 jobs): no leader, and no node can lead",
    ),
    "nobody serves it": (beside(jobs=1, held=2), UNHEALTHY, "version 1 (1 job, 2 live runs): no leader, and no"),
    "only a run is left": (
        beside(leased=1),
        UNHEALTHY,
        "version 1 (0 jobs, 1 live run): no leader, and no node can lead",
    ),
    "one stands by": (beside(KILLED, replace(OLD, leads=0), jobs=2), DEGRADED, "version 1 (2 jobs): no leader: no"),
    "not heard of": (
        beside(replace(OLD, beat_ms=NOW - 40_000), jobs=1),
        DEGRADED,
        "version 1 (1 job): o1 leads, no heartbeat for 40s",
    ),
}


@pytest.mark.parametrize("name", STANDS_STILL)
def test_a_version_beside_this_one_that_stands_still_is_told(name):
    snapshot, level, words = STANDS_STILL[name]
    health = judge(snapshot)
    [worry] = health.worries()
    assert (health.status, worry.name, worry.level) == (level, "versions", level)
    assert worry.seen.startswith(words)
    assert worry.cure


def test_the_cure_of_a_version_that_stands_still_names_it_and_where_its_jobs_could_go():
    [worry] = judge(beside(KILLED, jobs=2)).worries()
    assert worry.cure == (
        "start one that can: pollux serve --scheduler-version 1 (pollux worker and --no-plans never lead); "
        "or move what is there: pollux jobs move --from-version 1 --to-version 2"
    )


def test_a_version_beside_this_one_that_is_led_is_named_and_one_without_work_is_not():
    told = {each.name: each for each in judge(beside(OLD, jobs=2, leased=1)).findings}
    assert (told["versions"].level, told["versions"].seen) == (HEALTHY, "led as well: version 1 (2 jobs, 1 live run)")
    assert told["store"].seen == "the store answers; 1 job in version 2, 2 in others"
    told = {each.name: each for each in judge(beside()).findings}
    assert "versions" not in told, "one that is empty wants no leader"
    assert told["store"].seen == "the store answers; 1 job"


def test_just_after_a_start_the_other_version_may_be_about_to_start_too():
    young = replace(beside(jobs=2), node=replace(OWN, started_ms=NOW - 29_000))
    assert judge(young).status == DEGRADED


def test_where_no_node_of_this_version_lives_the_cure_is_one_of_this_version():
    alone = judge(seen(nodes=(), version=1))
    cures = {each.name: each.cure for each in alone.worries()}
    assert cures["nodes"] == "start one: pollux serve --scheduler-version 1"
    assert "pollux serve --scheduler-version 1 " in cures["leader"]
    found = {each.name: each for each in judge(seen(nodes=(), version=1, elsewhere=(NODE,))).findings}
    assert found["nodes"].seen == "no node serves version 1: nothing of it is planned or run"
    assert found["nodes"].cure.endswith("pollux jobs move --from-version 1 --to-version 2")


def test_where_no_node_lives_nothing_is_said_of_what_nodes_do():
    told = {each.name: each for each in judge(seen(nodes=(), lines=waits(1_000))).findings}
    assert told["ready"].seen == "none of 3 ready runs has waited for 1m"
    assert told["sources"].seen == "no node lives: all jobs wait"
    assert told["records"].seen == "no job is unreadable"
    told = {each.name: each for each in judge(seen(nodes=(), lines=waits(61_000))).findings}
    assert (told["ready"].level, told["ready"].cure) == (UNHEALTHY, "no node lives that could: pollux serve")


BAD = {
    "the store does not answer": (replace(WELL, deployment=None, trouble="refused"), "store", UNHEALTHY, "refused"),
    "no node lives": (nodes(), "nodes", UNHEALTHY, "no node lives"),
    "nobody has seats": (nodes({"seats": 0}), "nodes", UNHEALTHY, "none has seats"),
    "a node is not heard of": (
        nodes({}, {"id": "n2", "leads": 0, "beat_ms": NOW - 31_000}),
        "nodes",
        DEGRADED,
        "no heartbeat for 30s: n2",
    ),
    "nobody leads": (nodes({"leads": 0}), "leader", UNHEALTHY, "no leader"),
    "the leader is not heard of": (nodes({"beat_ms": NOW - 40_000}), "leader", DEGRADED, "no heartbeat for 40s"),
    "due but not fired": (
        seen(overdue_job="home", overdue_ms=NOW - 61_500),
        "due",
        UNHEALTHY,
        "due but not fired: job home for 1m1s",
    ),
    "due, and later than is usual for it": (
        seen(overdue_job="home", overdue_ms=NOW - 2_500, late_after_ms=1_000),
        "due",
        DEGRADED,
        "due but not fired: job home for 2s",
    ),
    "ready but not claimed": (seen(lines=waits(61_000)), "ready", UNHEALTHY, "ready but not claimed"),
    "ready, and all seats taken": (
        seen(lines=waits(61_000), nodes=(replace(NODE, busy=10),)),
        "ready",
        DEGRADED,
        "ready but not claimed",
    ),
    "ready, and drained": (seen(lines=waits(61_000), drained=(DRAINED,)), "ready", DEGRADED, "ready but not claimed"),
    "a deep queue": (seen(lines=depth(51)), "queue", DEGRADED, "51 runs wait"),
    "stale": (home(last_success_ms=NOW - 90_001), "freshness", DEGRADED, "home (1m30s)"),
    "stale by its interval": (home(planned_ms=1_000, last_success_ms=NOW - 5_001), "freshness", DEGRADED, "home (5s)"),
    "never polled": (home(last_success_ms=None, wanted_ms=90_001), "freshness", DEGRADED, "home (never)"),
    "never fresh": (home(last_success_ms=None, failures=3), "freshness", DEGRADED, "home (never)"),
    "ends unread": (counted(ends=10_001), "feed", DEGRADED, "10,001 ends are unread"),
    "claims refused": (counted(ends=100_001), "feed", UNHEALTHY, "nothing is claimed"),
    "a job that the leader cannot read": (
        seen(
            unreadable=(
                UnreadableNote("jobs", 2, 2, {"a": "odd", "b": "odd"}),
                UnreadableNote("feed", 2, 1, {"17": "cut off"}),
            )
        ),
        "records",
        DEGRADED,
        "the leader cannot read job a: odd (and 1 more): nothing of it is fired",
    ),
    "a schedule that the leader cannot use": (
        seen(unreadable=(UnreadableNote("schedules", 2, 2, {"a": "no such zone", "b": "no such zone"}),)),
        "schedules",
        DEGRADED,
        "a schedule cannot be used, and nothing of it is fired: job a: no such zone (and 1 more)",
    ),
    "dead letters": (counted(dead=1), "dead", DEGRADED, "1 dead letter"),
    "everything paused": (seen(stops=(("all", "night (by ada)"),)), "stops", DEGRADED, "everything is paused (night"),
    "drained": (seen(drained=(DRAINED,)), "stops", DEGRADED, f"{WORDS} (database moves)"),
    "code that is gone": (
        seen(orphaned=(("code:shop", ("mail", "stock")),)),
        "sources",
        DEGRADED,
        "no living node has code:shop (2 jobs: mail, stock)",
    ),
    "a file that was refused": (
        own(file="p.yaml", refused="p.yaml:3:5: no"),
        "file",
        DEGRADED,
        "p.yaml was changed and is refused: p.yaml:3:5: no",
    ),
    "a loop ended": (loop(is_alive=False), "polling", UNHEALTHY, "alive but not polling: dispatcher ended"),
    "a loop hangs": (loop(silent_ms=120_001.0), "polling", UNHEALTHY, "alive but not polling: dispatcher"),
    "a loop never turned": (loop(silent_ms=None), "polling", UNHEALTHY, "alive but not polling: dispatcher"),
    "a loop fails": (loop(errors_in_a_row=3), "polling", DEGRADED, "dispatcher (3 times)"),
    "this node drains": (own(is_draining=True), "polling", DEGRADED, "draining"),
    "a slow loop": (
        own(load=NodeLoad(blocked_ms=1_001, blocked_by="handler fetch, shop.py:31 in parse")),
        "loop",
        DEGRADED,
        "the event loop was blocked for 1s by handler fetch, shop.py:31 in parse",
    ),
    "a slow loop elsewhere": (
        nodes({}, {"id": "n2", "load": NodeLoad(blocked_ms=3_000, blocked_by="handler fetch, shop.py:31 in parse")}),
        "loop",
        DEGRADED,
        "the event loop of node n2 was blocked for 3s by handler fetch, shop.py:31 in parse",
    ),
    "a slow loop, and the store was asked": (
        replace(nodes({"load": NodeLoad(blocked_ms=3_000)}), node=None),
        "loop",
        DEGRADED,
        "the event loop of node n1 was blocked for 3s",
    ),
    "a deaf handler": (
        own(load=NodeLoad(stuck=1, stuck_at=("handler fetch, shop.py:31 in parse",))),
        "handlers",
        DEGRADED,
        "1 handler did not stop at the timeout, and still holds a seat: handler fetch, shop.py:31 in parse",
    ),
    "deaf handlers elsewhere": (
        nodes({}, {"id": "n2", "load": NodeLoad(stuck=2)}),
        "handlers",
        DEGRADED,
        "2 handlers of node n2 did not stop at the timeout, and still hold a seat each",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_found_named_and_has_a_cure(case):
    snapshot, name, level, words = BAD[case]
    health = judge(snapshot)
    [finding] = [finding for finding in health.worries() if finding.name == name]
    assert (finding.level, health.is_well) == (level, health.status != UNHEALTHY)
    assert words in finding.seen
    assert finding.cure
    assert health.status in (level, UNHEALTHY), "the worst finding is the status"


GOOD = {
    "at the limit of the queue": seen(lines=depth(50)),
    "runs for tomorrow": counted(ready=500),
    "due a moment ago": seen(overdue_job="home", overdue_ms=NOW - MINUTE),
    "due a moment ago, and often": seen(overdue_job="home", overdue_ms=NOW - 1_000, late_after_ms=1_000),
    "ready a moment ago": seen(lines=waits(MINUTE)),
    "ready, but only later": seen(lines=waits(-MINUTE)),
    "three intervals without a success": home(last_success_ms=NOW - 90_000),
    "a rare job": home(planned_ms=86_400_000, last_success_ms=NOW - 2 * 86_400_000),
    "a job that nobody watches": home(is_watched=False, last_success_ms=NOW - 86_400_000),
    "a new job": home(last_success_ms=None, failures=2),
    "one node drained": seen(drained=(replace(DRAINED, node="n1"),)),
    "a file that holds": own(file="p.yaml"),
    "one job paused": seen(stops=(("job:home", "by ada"),)),
    "no node here": replace(WELL, node=None),
}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_not_wrong_is_no_worry(case):
    assert judge(GOOD[case]).worries() == []


def test_whoever_has_all_seats_is_named():
    full = (replace(NODE, busy=10, load=NodeLoad(seated=("fetch (8)", "parse (2)"))),)
    health = judge(replace(seen(lines=waits(61_000), nodes=full), node=None))
    [ready] = health.worries()
    assert (
        ready.cure
        == "all seats are taken by fetch (8), parse (2) of node n1: add seats (pollux set pool.seats) or nodes"
    )
    [handlers] = [finding for finding in health.findings if finding.name == "handlers"]
    assert handlers.seen == "10 of 10 seats busy by fetch (8), parse (2) of node n1"


def test_who_has_just_started_is_given_time_to_elect():
    young = replace(nodes({"leads": 0}), node=replace(OWN, started_ms=NOW - 29_000))
    assert judge(young).status == DEGRADED
    old = replace(nodes({"leads": 0}), node=replace(OWN, started_ms=NOW - 31_000))
    assert judge(old).status == UNHEALTHY


def test_the_limits_are_options():
    strict = HealthLimits(queue_depth=0, staleness_ms=0, wait_ms=0, lag_ms=1)
    assert judge(replace(seen(lines=depth(1)), limits=strict)).status == DEGRADED
    stale = replace(home(planned_ms=1_000, last_success_ms=NOW - 3_001), limits=strict)
    assert [finding.name for finding in judge(stale).worries()] == ["freshness", "loop"]
    patient = replace(stale, limits=replace(strict, intervals=4))
    assert [finding.name for finding in judge(patient).worries()] == ["loop"]
    never = home(last_success_ms=None, failures=3)
    assert [judge(replace(never, limits=HealthLimits(intervals=n))).status for n in (3, 4)] == [DEGRADED, HEALTHY]
    assert judge(replace(seen(lines=waits(1)), limits=strict)).status == UNHEALTHY


def test_a_long_list_of_names_is_cut():
    jobs = tuple(replace(HOME, id=f"j{n}", last_success_ms=NOW - 3_600_000) for n in range(8))
    [finding] = judge(seen(jobs=jobs)).worries()
    assert finding.seen.endswith("j4 (1h) and 3 more")


# documents

OF_SCHEDULER = {
    *("status", "running", "is_leader", "workers_active", "workers_busy", "queue_depth", "cron_jobs_count"),
    *("last_check_at", "uptime_seconds", "circuit_breaker_state"),
}
OF_MONITOR = {"updatedAt", "enabled", "queue", "deadLetter", "breakers", "staleness", "instances"}


def test_the_document_has_every_field_of_older_schedulers_and_says_what_is_true():
    letter = Run(
        id="home@1",
        job_id="home",
        due_ms=1,
        state=RunState.DEAD,
        error="boom",
        attempt=4,
        started_ms=NOW - 9_000,
        finished_ms=NOW - 5,
    )
    cron = replace(
        HOME, id="nightly", kind="dump", is_cron=True, name="Nightly", target="db", score=0.0, last_success_ms=None
    )
    snapshot = replace(
        seen(counts=replace(SEEN.counts, ready=4, dead=1, jobs=2), jobs=(HOME, cron), lines=waits(5)), dead=(letter,)
    )
    told = health_document(judge(snapshot))
    assert set(told) >= OF_SCHEDULER | OF_MONITOR
    assert (told["status"], told["running"], told["is_leader"]) == ("degraded", True, True)
    assert (told["workers_active"], told["workers_busy"], told["queue_depth"]) == (10, 2, 3)
    assert (told["cron_jobs_count"], told["uptime_seconds"]) == (1, 600)
    assert told["last_check_at"] == told["updatedAt"] == "2027-01-15T08:00:00Z"
    assert told["queue"]["perPriority"] == {"high": 0, "normal": 3, "low": 0}
    assert told["queue"]["dueWithinSeconds"] == 1
    assert told["deadLetter"]["count"] == 1
    [dead] = told["deadLetter"]["tasks"]
    assert (dead["instance"], dead["type"], dead["lastError"], dead["failures"]) == ("home", "http", "boom", 5)
    first, second = told["staleness"]
    assert (first["instance"], first["score"], first["lastSuccess"]) == ("home", 0.0, "2027-01-15T07:59:50Z")
    assert (second["score"], second["lastSuccess"]) == (1.0, None)
    home_seen, nightly = told["instances"]
    assert (home_seen["deadLetter"]["present"], home_seen["deadLetter"]["reason"]) == (True, "boom")
    assert home_seen["deadLetter"]["firstAttempt"] == "2027-01-15T07:59:51Z", "it was never tried again"
    assert home_seen["pollStatus"] == {
        "lastSuccess": "2027-01-15T07:59:50Z",
        "lastError": None,
        "consecutiveFailures": 0,
        "firstFailureAt": None,
    }
    assert (nightly["key"], nightly["displayName"], nightly["connection"]) == ("dump::nightly", "Nightly", "db")
    json.dumps(told)


def test_the_document_says_nothing_that_nobody_counted():
    """Beyond what is looked at one by one, the number of cron jobs is unknown; and all of it, if the store is away."""
    assert health_document(judge(counted(jobs=201)))["cron_jobs_count"] is None
    away = health_document(judge(replace(WELL, deployment=None, trouble="refused")))
    assert (away["status"], away["queue_depth"], away["store"]["reachable"]) == ("unhealthy", None, False)
    assert set(away) >= OF_SCHEDULER | OF_MONITOR
    json.dumps(away)


def test_the_workers_are_those_of_all_nodes_and_ours_is_told_as_it_is_now():
    other = replace(NODE, id="n2", seats=5, busy=5, leads=0)
    told = workers_document(judge(seen(nodes=(replace(NODE, busy=0), other))))
    assert {key: told[key] for key in ("total", "active", "idle", "draining", "queue_size")} == {
        "total": 15,
        "active": 7,
        "idle": 8,
        "draining": False,
        "queue_size": 0,
    }
    ours, theirs = told["workers"]
    assert (ours["status"], ours["is_leader"], [run["job_id"] for run in ours["runs"]]) == ("busy", True, ["home"])
    assert (theirs["status"], theirs["is_leader"], theirs["runs"]) == ("busy", False, None)
    drained = replace(seen(drained=(DRAINED,)), node=replace(OWN, is_draining=True))
    told = workers_document(judge(drained))
    assert (told["total"], told["draining"], told["workers"][0]["status"]) == (0, True, "draining")
    json.dumps(told)


def test_an_entry_that_was_set_aside_is_named_and_is_no_worry():
    health = judge(seen(unreadable=(UnreadableNote("feed", 2, 3, {"17": "cut off"}),)))
    [found] = [finding for finding in health.findings if finding.name == "records"]
    assert (health.status, found.level) == (HEALTHY, HEALTHY)
    assert found.seen.endswith("skipped in the last week: entry 17 of the feed: cut off (and 2 more)")
