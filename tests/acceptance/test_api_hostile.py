"""Names that are meant to do harm: markup, marks that turn text around, and strings of a megabyte."""

import pytest

from tests.acceptance.api_world import served

MARKUP = "<img src=x onerror=alert(1)>"
TURNED = "safe\u202egpj.exe"
STEERING = "a\x1b[31mb"
LINES = "a\nb\r\nX-Injected: yes"
LONG = "x" * 990_000  # what still goes through the door
HOSTILE = {"markup": MARKUP, "turned": TURNED, "steering": STEERING, "lines": LINES, "nothing": "\0", "long": LONG}
JOBS, STOPS, TOKENS, RUNS = "/api/v2/jobs", "/api/v2/stops", "/api/v2/tokens", "/api/v2/runs"
PLACES = [  # where somebody may give a thing a name; and which hostile ones are kept as they are, since they are text
    ("POST", JOBS, "id", {"handler": "fine"}, ()),
    ("POST", JOBS, "name", {"id": "x", "handler": "fine"}, ("markup",)),
    ("POST", JOBS, "group", {"id": "x", "handler": "fine"}, ()),
    ("POST", JOBS, "target", {"id": "x", "handler": "fine"}, ("markup",)),
    ("POST", JOBS, "source_id", {"id": "x", "handler": "fine"}, ("markup",)),
    ("POST", JOBS, "handler", {"id": "x"}, ()),
    ("POST", JOBS, "cron", {"id": "x", "handler": "fine"}, ()),
    ("POST", JOBS, "url", {"id": "x"}, ()),
    ("POST", STOPS, "group", {}, ()),
    ("POST", STOPS, "target", {}, ("markup",)),
    ("POST", TOKENS, "name", {"role": "viewer"}, ()),
    ("POST", RUNS, "id", {"job_id": "page"}, ()),
    ("POST", RUNS, "job_id", {}, ()),
]


@pytest.mark.parametrize(("method", "path", "field", "rest", "kept"), PLACES, ids=lambda each: str(each)[:30])
async def test_a_hostile_name_is_refused_or_is_harmless_text(method, path, field, rest, kept):
    async with served(runs=False) as client:
        await client.ok("POST", JOBS, {"id": "page", "handler": "fine"})
        for word, name in HOSTILE.items():
            answer = await client(method, path, {**rest, field: name})
            assert answer.headers["content-type"] in {"application/json", "application/problem+json"}
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert len(answer.body) < 10_000, "what was too long is not sent back"
            text = answer.body.decode()
            assert not set(text) & {"\u202e", "\x1b", "\0", "\r"}, (word, text)
            if word in kept:
                assert answer.status == 201, (word, answer)
                await client.ok(
                    "DELETE",
                    f"{JOBS}/x" if path == JOBS else f"{STOPS}?target=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
                )
            else:
                assert answer.status in {404, 422}, (word, answer)
                assert answer.json["cure"], (word, answer)


@pytest.mark.parametrize("path", [JOBS, STOPS, TOKENS, RUNS, f"{JOBS}/page/pause"])
async def test_a_body_of_more_than_a_megabyte_is_refused_before_it_is_read(path):
    async with served(runs=False) as client:
        answer = await client("POST", path, {"reason": "x" * 1_000_001})
        assert (answer.status, answer.json["title"]) == (413, "request body too large")


async def test_a_reason_is_shown_as_it_was_given_and_cut_where_nobody_reads_on():
    """It is text of a person, and goes out as JSON; a line of a log or a terminal spells such marks out."""
    async with served(runs=False) as client:
        await client.ok("POST", JOBS, {"id": "page", "handler": "fine"})
        assert (await client("POST", f"{JOBS}/page/pause", {"reason": LONG})).status == 422
        await client.ok("POST", f"{JOBS}/page/pause", {"reason": MARKUP})
        [stop] = (await client.ok("GET", STOPS))["stops"]
        assert stop["reason"] == MARKUP
