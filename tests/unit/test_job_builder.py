"""Jobs constructed by hand: a field of a wrong type is refused with our error."""

import pytest

from pollux import Pollux
from pollux.errors import InvalidInput
from pollux.job_builder import check_job
from pollux.model import Job

DEFINITION = Job.__struct_fields__[: Job.__struct_fields__.index("declared") + 1]


@pytest.mark.parametrize("field", DEFINITION)
def test_a_field_of_another_kind_is_refused(field):
    with pytest.raises(InvalidInput):
        check_job(Job(**{"id": "home", "handler": "h", field: object()}))


@pytest.mark.parametrize("rule", [None, 5, "5", {"attempts_max": 5}])
def test_what_is_no_retry_rule_is_said_to_be_none(rule):
    with pytest.raises(InvalidInput, match=r"^job 'home'.*retry: .* is not a retry rule; give one, like Retry\("):
        check_job(Job(id="home", handler="h", retry=rule))


async def test_what_is_no_job_is_refused_with_the_way_to_make_one():
    app = Pollux("memory://")
    await app.open()
    with pytest.raises(InvalidInput, match=r"a job is a Job, not dict; make it with pollux.job_builder.job_of\("):
        await app.put_jobs([{"id": "a", "handler": "fine"}])
    await app.close()
