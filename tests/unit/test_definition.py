"""Equality of jobs: equal definitions have equal JSON."""

import msgspec

from pollux.model import Cron, Job, Memory, Retry
from pollux.model.job import definition

BARE = Job(id="a", handler="h", schedule=Cron("0 6 * * *"), retry=Retry(attempts_max=7))
# The same with its defaults spelled out, as a client sends them: equal values, but other objects.
SPELLED = msgspec.json.decode(
    b'{"id": "a", "handler": "h", "schedule": {"type": "cron", "line": "0 6 * * *", "tz": "UTC"},'
    b' "retry": {"attempts_max": 7, "base_ms": 5000, "factor": 2.0, "max_ms": 300000, "jitter": 0.2},'
    b' "timeout_ms": 3600000, "source": "api", "tags": [], "params": {}, "memory": {}}',
    type=Job,
)


def test_a_default_that_is_spelled_out_is_the_default():
    assert definition(SPELLED) == definition(BARE)
    assert msgspec.json.encode(definition(SPELLED)) == msgspec.json.encode(definition(BARE))


def test_what_a_job_has_learnt_is_no_part_of_it():
    learnt = msgspec.structs.replace(BARE, memory=Memory(ended=3), revision=4, next_due_ms=5, last_due_ms=6)
    assert msgspec.json.encode(definition(learnt)) == msgspec.json.encode(BARE)
    assert definition(BARE) is not learnt


def test_what_differs_stays_different():
    for other in (
        {"timeout_ms": 5},
        {"source": "file:x"},
        {"retry": Retry()},
        {"schedule": Cron("0 6 * * *", "Asia/Tokyo")},
    ):
        changed = msgspec.structs.replace(BARE, **other)
        assert definition(changed) == changed != BARE
