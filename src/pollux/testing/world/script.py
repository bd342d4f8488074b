"""Script of a world: everything that happens to it from outside, as data, drawn from one seed.

A script lists jobs, user operations and faults, each with its time, so that a failing world can be kept in a file and
shrunk by leaving items out.  What is drawn while it runs (latencies, the behaviour of handlers) comes from its seed.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model.job import Cron, Interval, Once, Schedule

SEED_MAX = 2**63 - 1
NODES_MAX = 20
FAR_JUMPS_MS = (-86_400_000, -3_600_000, -90_000, -7_000, 7_000, 90_000, 3_600_000, 3 * 86_400_000)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu")
STARTS_MS = (
    1_767_225_600_000,  # 2026-01-01T00:00Z
    1_774_745_700_000,  # 2026-03-29T00:55Z: clocks in Berlin go ahead five minutes later
    1_792_889_700_000,  # 2026-10-25T00:55Z: and back
    1_775_314_500_000,  # 2026-04-04T14:55Z: Lord Howe goes back by half an hour
    1_772_953_000_000,  # 2026-03-08T06:56Z: New York goes ahead
)
LINES = ("* * * * *", "*/2 * * * *", "*/20 * * * * *", "30 * * * * *", "H/3 * * * *", "* 1-3 * * *", "*/15 2 * * * *")

CALL_FAULTS = ("refused", "answer_lost", "late", "late_answer", "twice", "hung", "hung_done")
WAKEUP_FAULTS = ("wakeup_lost", "wakeup_late", "wakeup_twice")
NODE_FAULTS = ("kill", "freeze", "restart")
NETWORK_FAULTS = ("partition", "partition_out", "partition_in", "store_away")
CLOCK_FAULTS = ("clock_jump", "clock_drift", "store_clock_jump", "clock_right")
FAULT_KINDS = (*CALL_FAULTS, *WAKEUP_FAULTS, *NODE_FAULTS, *NETWORK_FAULTS, *CLOCK_FAULTS)

# Weights of the kinds of faults, by profile.
PROFILES: dict[str, dict[str, int]] = {
    "calm": {},
    "clocks": dict.fromkeys(CLOCK_FAULTS, 3) | {"kill": 1, "answer_lost": 1},
    "kills": {"kill": 4, "freeze": 3, "restart": 1, "answer_lost": 1},
    "network": dict.fromkeys((*CALL_FAULTS, *WAKEUP_FAULTS), 4) | dict.fromkeys(NETWORK_FAULTS, 1),
    "deploys": {"restart": 5, "kill": 1, "answer_lost": 1, "refused": 1},
    "all": dict.fromkeys((*CALL_FAULTS, *WAKEUP_FAULTS), 3)
    | dict.fromkeys((*NODE_FAULTS, *NETWORK_FAULTS), 1)
    | dict.fromkeys(CLOCK_FAULTS, 1),
}
VERBS = {  # of users, with their weights
    "enqueue": 8, "run_now": 3, "pause": 2, "resume": 3, "cancel": 3, "change": 3, "put": 2, "delete": 1,
    "revive": 2, "drop": 1, "drain": 1, "undrain": 2, "why": 2, "health": 2,
}  # fmt: skip
HURT_VERBS = ("claim", "settle", "advance", "feed", "renew", "elect", "enqueue", "beat", "put_jobs", "cancel", "any")


class ScriptedJob(Struct, frozen=True, omit_defaults=True):
    """A job, and how its handler behaves: ms of work, shares of failures, of calls that ignore requests to stop."""

    id: str
    schedule: Schedule | None = None
    overlap: str = "skip"
    misfire: str = "one"
    priority: int = 2
    target: str = ""
    timeout_ms: int = 20_000
    attempts_max: int = 3
    work_ms: int = 100
    fails: float = 0.0
    permanent: float = 0.0
    stubborn: float = 0.0


class Operation(Struct, frozen=True, omit_defaults=True):
    """A call of a user.  `seed` draws its details."""

    at_ms: int
    verb: str
    job: str
    seed: int
    by: int = 0  # the node it goes through


class WorldFault(Struct, frozen=True, omit_defaults=True):
    """A fault.  `ms` is how long it lasts or how far a clock jumps, `count` how many calls or steps it concerns."""

    at_ms: int
    kind: str
    node: int = 0
    ms: int = 0
    count: int = 0
    verb: str = ""


class Script(Struct, frozen=True, omit_defaults=True):
    """A world before it runs.  Faults and operations end at `faults_ms`; then it is calm for `calm_ms`."""

    seed: int
    profile: str
    nodes: int
    start_ms: int
    faults_ms: int
    calm_ms: int
    lease_ms: int
    leader_ttl_ms: int
    seats: int
    jobs: tuple[ScriptedJob, ...]
    operations: tuple[Operation, ...]
    faults: tuple[WorldFault, ...]
    skews_ms: tuple[int, ...] = ()  # of the nodes' clocks at the start
    stores_wait: bool = True
    writes_are_cheap: bool = True


def check_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= SEED_MAX:
        raise InvalidInput(f"{seed!r} is no seed", cure=f"use a whole number from 0 to {SEED_MAX}")
    return seed


def check_profile(profile: str) -> str:
    if profile not in PROFILES:
        raise InvalidInput(f"there is no profile {profile!r}", cure=f"use one of {', '.join(PROFILES)}")
    return profile


def draw_script(
    seed: int,
    *,
    profile: str = "all",
    nodes: int = 3,
    jobs: int = 24,
    minutes: float = 5.0,
    fault_every_ms: int = 3_000,
) -> Script:
    """The script of a seed."""
    check_seed(seed)
    if not 1 <= nodes <= NODES_MAX:
        raise InvalidInput(f"{nodes} nodes are not possible", cure=f"use 1 to {NODES_MAX}")
    weights = PROFILES[check_profile(profile)]
    dice = Random(f"script {seed} {profile}")  # noqa: S311  nothing here is a secret
    faults_ms = round(minutes * 60_000)
    drawn = tuple(_job(dice, number) for number in range(jobs))
    lease_ms = dice.choice((5_000, 10_000, 30_000))
    return Script(
        seed=seed,
        profile=profile,
        nodes=nodes,
        start_ms=dice.choice(STARTS_MS) + dice.randrange(60_000),
        faults_ms=faults_ms,
        calm_ms=180_000,
        lease_ms=lease_ms,
        leader_ttl_ms=dice.choice((6_000, 15_000)),
        seats=dice.choice((3, 10, 10)),
        jobs=drawn,
        operations=tuple(_operation(dice, at, drawn, nodes) for at in _times(dice, faults_ms, 4_000)),
        faults=tuple(
            _fault(dice, at, weights, nodes, lease_ms) for at in _times(dice, faults_ms, fault_every_ms) if weights
        ),
        skews_ms=tuple(dice.choice((0, 0, 300, -2_500, 40_000, -3_600_000)) for _ in range(nodes)),
        stores_wait=dice.random() < 0.8,
        writes_are_cheap=dice.random() < 0.5,
    )


def _times(dice: Random, until_ms: int, every_ms: int) -> list[int]:
    times, at = [], dice.expovariate(1 / every_ms)
    while at < until_ms:
        times.append(round(at))
        at += dice.expovariate(1 / every_ms)
    return times


def _job(dice: Random, number: int) -> ScriptedJob:
    schedule: Schedule | None
    match dice.choices(("interval", "cron", "once", "asked"), (5, 3, 1, 2))[0]:
        case "interval":
            schedule = Interval(dice.choice((5_000, 12_000, 30_000, 60_000, 100_000)), spread=dice.random() < 0.8)
        case "cron":
            schedule = Cron(dice.choice(LINES), dice.choice(ZONES))
        case "once":
            schedule = Once()
        case _:
            schedule = None
    return ScriptedJob(
        id=f"job-{number}",
        schedule=schedule,
        overlap=dice.choice(("skip", "skip", "queue", "cancel", "allow")),
        misfire=dice.choice(("one", "one", "skip", "all")),
        priority=dice.choice((1, 2, 2, 3)),
        target=dice.choice(("", "", "host-1", "host-2")),
        timeout_ms=dice.choice((2_000, 20_000, 20_000)),
        attempts_max=dice.choice((1, 3, 5)),
        work_ms=dice.choice((0, 50, 50, 400, 1_500, 3_000)),
        fails=dice.choice((0.0, 0.0, 0.0, 0.2, 0.7)),
        permanent=dice.choice((0.0, 0.0, 0.0, 0.1)),
        stubborn=dice.choice((0.0, 0.0, 0.3)),
    )


def _operation(dice: Random, at_ms: int, jobs: tuple[ScriptedJob, ...], nodes: int) -> Operation:
    verb = dice.choices(tuple(VERBS), tuple(VERBS.values()))[0]
    job = dice.choice(jobs).id if jobs else ""
    return Operation(at_ms, verb, job, dice.getrandbits(32), dice.randrange(nodes))


def _fault(dice: Random, at_ms: int, weights: dict[str, int], nodes: int, lease_ms: int) -> WorldFault:
    kind = dice.choices(tuple(weights), tuple(weights.values()))[0]
    node = dice.randrange(nodes)
    if kind in CALL_FAULTS:
        ms = dice.choice((300, 3_000, 13_000, 20_000)) if kind.startswith("late") else 0
        return WorldFault(at_ms, kind, node, ms=ms, count=dice.choice((1, 1, 3)), verb=dice.choice(HURT_VERBS))
    if kind in WAKEUP_FAULTS:
        return WorldFault(at_ms, kind, node, ms=dice.choice((1_000, 10_000)))
    if kind in ("clock_jump", "store_clock_jump"):
        return WorldFault(at_ms, kind, node, ms=dice.choice(FAR_JUMPS_MS))
    if kind == "clock_drift":
        return WorldFault(at_ms, kind, node, ms=dice.choice((-20_000, -500, 500, 20_000)))
    if kind == "kill":
        return WorldFault(at_ms, kind, node, ms=dice.choice((500, 5_000, 40_000)), count=dice.randrange(40))
    lasts_ms = dice.choice((500, 4_000, lease_ms + 1_000, 2 * lease_ms + 15_000))
    return WorldFault(at_ms, kind, node, ms=lasts_ms)
