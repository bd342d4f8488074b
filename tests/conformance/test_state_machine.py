"""The contract holds over any history: several stores in lockstep, any calls in any order, invariants after each.

Look further with `POLLUX_MACHINE_EXAMPLES=2000 POLLUX_MACHINE_STEPS=100` or `POLLUX_WALKS=500`;
`POLLUX_MACHINE_SHRINK=1` makes a red history short, which takes minutes (then also `-o faulthandler_timeout=0`).
"""

import os
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings

from pollux.model import Overlap, RunState
from tests.conformance.machine import DISTURBANCES, VERDICTS, VERSIONS, StoreMachine

TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=int(os.environ.get("POLLUX_MACHINE_EXAMPLES", "50")),
    stateful_step_count=int(os.environ.get("POLLUX_MACHINE_STEPS", "40")),
    deadline=None,
    phases=[phase for phase in Phase if phase is not Phase.shrink or "POLLUX_MACHINE_SHRINK" in os.environ],
    suppress_health_check=list(HealthCheck),
)


def a_new_run(dice):
    return {
        "job": dice.choice([0, 0, 1, 1, 2, 3, 4]),
        "key": dice.choice([None, None, "k1", "k2"]),
        "delay": dice.choice([0, 0, 0, 5, 60]),
        "priority": dice.randint(1, 3),
        "gated": dice.random() < 0.3,
        "again": dice.random() < 0.2,
    }


# One rule, how often, and with what: unlike Hypothesis a walk keeps an even pace, and so it gets far.
WALK = {
    "put_job": (3, lambda dice: (dice.randrange(4), dice.randrange(3), dice.random() < 0.8)),
    "delete_job": (1, lambda dice: (dice.randrange(4), True)),
    "move_jobs": (2, lambda dice: ([dice.randrange(4)], dice.choice(VERSIONS))),
    "enqueue": (
        6,
        lambda dice: (
            [a_new_run(dice) for _ in range(dice.randint(1, 3))],
            dice.choice([100, 100, 3]),
            dice.random() < 0.3,
        ),
    ),
    "claim": (
        4,
        lambda dice: (dice.randint(1, 4), dice.randint(1, 3), dice.choice([1_000, 1_000, 5]), dice.choice(VERSIONS)),
    ),
    "work": (
        8,
        lambda dice: (
            dice.randint(1, 3),
            dice.choice(["", "", "stalls", "is asked to stop", "its job goes"]),
            dice.choices(VERDICTS, k=3),
            [a_new_run(dice) for _ in range(dice.randrange(2))],
        ),
    ),
    "renew": (3, lambda dice: (dice.randrange(1_000), dice.choice([30, 5]))),
    "settle": (
        6,
        lambda dice: (
            dice.randrange(1_000),
            dice.choice(VERDICTS),
            [a_new_run(dice) for _ in range(dice.randrange(4))],
            dice.random() < 0.3,
        ),
    ),
    "replay": (3, lambda dice: (dice.randrange(1_000),)),
    "cancel_run": (2, lambda dice: (dice.randrange(1_000),)),
    "cancel_job": (1, lambda dice: (dice.randrange(4), dice.random() < 0.3)),
    "revive": (3, lambda dice: (dice.randrange(1_000),)),
    "lead": (3, lambda dice: (dice.randrange(2), dice.random() < 0.2)),
    "fire": (
        5,
        lambda dice: (
            dice.randrange(4),
            dice.choices([-2, -1, 0], k=dice.randint(1, 2)),
            dice.choice(list(Overlap)),
            dice.random() < 0.15,
            dice.random() < 0.15,
            dice.random() < 0.6,
        ),
    ),
    "begin_alone": (4, lambda dice: (dice.randrange(1_000), dice.randint(1, 3), dice.random() < 0.7)),
    "gate": (4, lambda dice: (dice.randrange(1_000), dice.choice(["release", "release", "hold", "cancel"]))),
    "consume": (3, lambda dice: (dice.randint(1, 20),)),
    "update": (2, lambda dice: (dice.randrange(1_000), dice.random() < 0.3)),
    "move_the_clock": (4, lambda dice: (dice.choice([1, 5, 31, 61, 3_600]), dice.random() < 0.25)),
    "disturb": (6, lambda dice: (dice.choice(DISTURBANCES), dice.randrange(1_000))),
}
NEEDS = {
    "renew": lambda machine: machine.leases,
    "settle": lambda machine: machine.leases,
    "replay": lambda machine: machine.calls,
    "cancel_run": lambda machine: machine.seen.runs,
    "revive": lambda machine: any(run.state is RunState.DEAD for run in machine.seen.runs.values()),
    "update": lambda machine: machine.seen.jobs,
}


@pytest.mark.parametrize("seed", range(int(os.environ.get("POLLUX_WALKS", "10"))))
def test_a_long_walk_keeps_every_invariant(seed):
    dice = Random(seed)
    names, weights = list(WALK), [often for often, _ in WALK.values()]
    machine = StoreMachine()
    steps = []
    try:
        machine.begin()
        machine.all_invariants_hold()
        for name in dice.choices(names, weights, k=int(os.environ.get("POLLUX_WALK_STEPS", "200"))):
            if name in NEEDS and not NEEDS[name](machine):
                continue
            arguments = WALK[name][1](dice)
            steps.append((name, arguments))
            getattr(machine, name)(*arguments)
            machine.all_invariants_hold()
    except AssertionError as error:
        error.add_note("the last steps: " + "\n".join(str(step) for step in steps[-8:]))
        raise
    finally:
        machine.teardown()
