"""Who was turned away leaves a trace that an operator sees, and cannot fill the log."""

import logging
from itertools import count

import pytest

from pollux.events import Events, RequestRefused
from pollux.server.auth import Identity, Role
from pollux.server.limits import LINES_A_MINUTE, Refusals
from tests.acceptance.api_world import named, served
from tests.acceptance.strangers import world

NODES = "/api/v2/nodes"


class Listener:
    """Refusals with a clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.told: list[RequestRefused] = []
        self.now = 0.0
        events = Events()
        events.listen(RequestRefused, self.told.append)
        self.refusals = Refusals({}, events, lambda: self.now)

    def refuse(self, status: int, address: str = "192.0.2.7", name: str = "", **options: bool) -> None:
        state = {"identity": Identity(name, Role.VIEWER)} if name else {}
        scope = {"client": (address, 5), "method": "POST", "path": "/api/v2/jobs", "state": state}
        self.refusals.take(status, scope, **options)


def test_the_same_one_is_told_of_once_a_minute_with_how_many_there_were():
    heard = Listener()
    for _ in range(5):
        heard.refuse(401)
    heard.refuse(403, name="token:grafana")
    assert [(each.caller, each.status, each.more) for each in heard.told] == [
        ("192.0.2.7", 401, 0),
        ("token:grafana", 403, 0),
    ]
    heard.now = 61.0
    heard.refuse(401)
    assert heard.told[-1].more == 4
    assert heard.refusals.counts == {401: 6, 403: 1}


def test_many_strangers_together_cannot_fill_the_log():
    heard = Listener()
    for number in range(1_000):
        heard.refuse(401, address=f"198.51.100.{number}")
    assert len(heard.told) == LINES_A_MINUTE
    assert heard.refusals.counts == {401: 1_000}
    heard.now = 61.0
    heard.refuse(401, address="203.0.113.1")
    assert heard.told[-1].more == 1_000 - LINES_A_MINUTE, "nobody is lost from the count"


@pytest.mark.parametrize(("status", "is_counted"), [(200, False), (404, False), (409, False), (421, True), (429, True)])
def test_what_is_no_attempt_at_anything_is_counted_at_most(status, is_counted):
    heard = Listener()
    heard.refuse(status)
    heard.refuse(401, has_token=False)
    assert heard.told == []
    assert heard.refusals.counts == ({status: 1, 401: 1} if is_counted else {401: 1})


async def test_a_role_that_is_not_enough_and_a_wrong_token_are_in_log_and_metrics(caplog):
    """On a node that works: the words of the log, the numbers of the scrape, and no token in either."""
    wrong = f"pf_first_{'y' * 43}"
    async with served(runs=False) as client:
        with caplog.at_level(logging.WARNING, "pollux"):
            assert (await client.as_(Role.VIEWER)("POST", f"/api/v2/jobs/{named('a/b')}/pause")).status == 403
            said = await client("GET", f"{NODES}/{wrong}", headers={"authorization": f"Bearer {wrong}"}, token=wrong)
            assert said.status == 401
            assert (await client.as_(None)("GET", NODES)).status == 401
        text = (await client("GET", "/metrics")).body.decode()
        audited = (await client.ok("GET", "/api/v2/audit"))["lines"]
    assert (
        "the API refused token:viewer (403): POST /api/v2/jobs/a%2Fb/pause is not allowed for the role viewer"
        in caplog.text
    )
    assert "the API refused 127.0.0.1 (401): the token is invalid" in caplog.text
    assert caplog.text.count("the API refused") == 2, "a request without any token is only counted"
    assert wrong not in caplog.text
    assert 'pollux_api_requests_refused_total{status="401"} 2.0' in text
    assert 'pollux_api_requests_refused_total{status="403"} 1.0' in text
    assert audited == [], "nothing was changed"


async def test_a_page_of_another_site_and_another_host_are_counted_on_a_real_connection():
    async with world() as api:
        heard = []
        api.app.events.listen(RequestRefused, heard.append)
        token = (await api.token("operator")).secret
        page = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
        assert (await api.ask("/api/v2/jobs", "POST", token=token, headers=page, body=b"{}")).status == 403
        assert (await api.ask(NODES, token=token, headers={"Host": "evil.example"})).status == 421
        assert api.app.watch.refused == {403: 1, 421: 1}
        assert [(each.status, each.why) for each in heard] == [(403, "a cross-site request")]


def test_time_that_leaps_makes_no_difference_to_the_counts():
    leaps = count(0, 60)
    events = Events()
    refusals = Refusals({}, events, lambda: float(next(leaps)))
    for _ in range(20):
        refusals.take(401, {"client": None, "state": {}})
    assert refusals.counts == {401: 20}
