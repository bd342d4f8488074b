"""Cache of decoded jobs: a row is answered as it is stored now."""

import msgspec

from pollux.model import Job
from pollux.store.job_cache import JobCache


def row(params, *, revision=1, due_ms=None):
    job = Job(id="a", handler="h", params=params)
    return "a", revision, due_ms, None, None, msgspec.json.encode(job), 2


def test_an_unchanged_row_is_decoded_once():
    cache = JobCache()
    assert cache.job(row({"n": 1})) is cache.job(row({"n": 1}))


def test_another_due_time_is_seen():
    cache = JobCache()
    cache.job(row({"n": 1}))
    assert cache.job(row({"n": 1}, due_ms=7)).next_due_ms == 7


def test_another_definition_of_the_same_revision_is_seen():
    """A job that was deleted, and loaded from a dump that has another one of its id."""
    cache = JobCache()
    cache.job(row({"n": 1}))
    assert cache.job(row({"n": 2})).params == {"n": 2}
