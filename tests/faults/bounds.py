"""Time bounds that are proved in virtual time, and the margin that real processes get."""

from tests.chaos.node import OPTIONS

LEASE_S, LEADER_TTL_S = (float(OPTIONS[name].removesuffix("s")) for name in ("lease", "leader_ttl"))
SLACK_S = 10.0  # a machine that is shared may be busy just now
BACKOFF_S = 3.0  # of every loop at most: so soon it works again

WORKS_AGAIN_S = BACKOFF_S + SLACK_S  # after the fault is over
TAKEN_UP_S = LEASE_S + 2 + SLACK_S  # what a dead node ran, by another one
LED_AGAIN_S = LEADER_TTL_S + 3 + SLACK_S  # what a dead leader led, by another one
RESIGNED_S = 1 + SLACK_S  # what a leader led that was asked to leave
