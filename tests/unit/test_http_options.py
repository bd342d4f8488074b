"""Options of http polls: limits, and errors that name the problem and never a secret."""

import base64
import re
from pathlib import Path

import pytest

from pollux import Pollux, every
from pollux.config import load_config
from pollux.errors import InvalidConfig, InvalidInput, PolluxError
from pollux.handlers.http import errors
from pollux.handlers.http.options import OPTION_NAMES, read_options, target_of
from pollux.model import Interval, Job

URL = "https://example.com/health"


def read(**params):
    return read_options({"url": URL, **params})


def complaint(**params) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_options({"url": URL, **params}, declared=True)
    return str(caught.value)


def test_the_usual_values_are_the_documented_ones():
    options = read()
    assert (options.method, options.redirects, options.is_conditional, options.verify) == ("GET", 3, True, True)
    assert (options.timeout_ms, options.connect_ms, options.size_max) == (30_000, 5_000, 1_000_000)
    assert (options.content, options.take, options.keeps_body) == (None, None, False)
    assert options.expect.statuses == {*range(200, 300), 304}
    assert options.headers["Accept-Encoding"] == "gzip, deflate"
    assert options.headers["User-Agent"].startswith("pollux/")


@pytest.mark.parametrize(
    ("written", "statuses"),
    [
        (200, {200}),
        ("200", {200}),
        ([200, 404], {200, 404}),
        ("2xx", set(range(200, 300))),
        ("200-204", {200, 201, 202, 203, 204}),
        (["2XX", "304", "500-501"], {*range(200, 300), 304, 500, 501}),
    ],
)
def test_expected_statuses_are_numbers_classes_and_ranges(written, statuses):
    assert read(expect=written).expect.statuses == statuses


def test_a_body_makes_it_a_post_and_json_says_its_type():
    plain, data = read(body="häh"), read(json={"a": [1]})
    assert (plain.method, plain.content, plain.headers["Content-Type"]) == (
        "POST",
        "häh".encode(),
        "text/plain; charset=utf-8",
    )
    assert (data.method, data.content, data.headers["Content-Type"]) == ("POST", b'{"a":[1]}', "application/json")
    assert read(body="x", method="put").method == "PUT"


def test_own_headers_win_over_the_usual_ones_whatever_their_case():
    headers = read(headers={"user-agent": "me", "X-Number": 7}, json={}).headers
    assert headers["user-agent"] == "me"
    assert "User-Agent" not in headers
    assert headers["X-Number"] == "7"


def test_auth_becomes_one_header():
    assert read(auth={"bearer": "t0k"}).headers["Authorization"] == "Bearer t0k"
    basic = read(auth={"basic": {"user": "ann", "password": "p:w"}}).headers["Authorization"]
    assert base64.b64decode(basic.removeprefix("Basic ")) == b"ann:p:w"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"url": 5}, "url: it is no text"),
        ({"url": "ftp://x/"}, "url: it is of ftp, not of http or https"),
        ({"url": "example.com"}, "url: it is of no scheme"),
        ({"url": "http://"}, "url: it names no host"),
        ({"url": "http://a:b@x/"}, "url: it holds a user or a password"),
        ({"url": "http://x y/"}, "url: it holds blanks"),
        ({"url": "http://256.1.1.1/"}, "url: the host is neither a name nor an IPv4 address"),
        ({"url": "http://x:0/"}, "url: port 0"),
        ({"url": "http://x/" + "a" * 5_000}, "url: it is no text of 1 to 4096 characters"),
        ({"method": "GTE"}, 'did you mean "GET"'),
        ({"headers": ["a"]}, "headers: they are not a mapping"),
        ({"headers": {"Ho st": "x"}}, "is no name of a header"),
        ({"headers": {"Host": "x"}}, "headers.Host: Host is set by Pollux itself; remove it; the URL names it"),
        ({"headers": {"Accept-Encoding": "br"}}, "is set by Pollux itself"),
        ({"headers": {"X": "a\r\nY: b"}}, "headers.X: it holds a line break"),
        ({"headers": {"X": [1]}}, "headers.X: its value is no text"),
        ({"headers": {f"X{n}": "" for n in range(51)}}, "at most 50"),
        ({"body": {"a": 1}}, "body: it is no text"),
        ({"body": "a", "json": 1}, "json: body and json are both given"),
        ({"auth": "x"}, "auth: it is neither basic nor bearer"),
        ({"auth": {"basic": {"user": "x"}}}, "auth.basic: basic needs a user and a password"),
        ({"auth": {"bearer": "plain"}}, "auth.bearer: the secret is written here in plain text"),
        ({"auth": {"basic": {"user": "a", "password": "plain"}}}, "auth.basic.password: the secret is written here"),
        ({"expect": 700}, "expect: '700' is no status"),
        ({"expect": []}, "expect: there is none"),
        ({"expect": True}, "expect: 'True' is no status"),
        ({"take": "a.b"}, "take: it is not a mapping"),
        ({"take": {"jsn": "a"}}, 'did you mean "json"'),
        ({"take": {"json": "a", "regex": "b"}}, "both given"),
        ({"take": {"json": "a..b"}}, "take.json: 'a..b' cannot be read from '..b' on"),
        ({"take": {"json": "a[x]"}}, "take.json: 'a[x]' cannot be read"),
        ({"take": {"json": "a" * 257}}, "1 to 256 characters"),
        ({"take": {"json": ".".join("a" * 33)}}, "33 steps are too many"),
        ({"take": {"regex": "("}}, "take.regex: it is no regular expression"),
        ({"take": {"regex": "a" * 257}}, "1 to 256 characters"),
        ({"keep": "all"}, "keep: 'all' cannot be kept"),
        ({"conditional": "yes"}, "conditional: 'yes' is neither true nor false"),
        ({"redirects": 11}, "give 0 to 10"),
        ({"timeout": "11m"}, "timeout: 11m is out of range"),
        ({"timeout": 0}, "timeout: 0s is out of range"),
        ({"connect": "2m"}, "connect: 2m is out of range"),
        ({"max_size": "17 MiB"}, "max_size: 17 MiB is out of range"),
        ({"verify": 1}, "verify: '1' is neither true nor false"),
        ({"tiemout": "5s"}, "tiemout: unknown key 'tiemout'; did you mean \"timeout\"?"),
        ({"frobnicate": 1}, "known are url, method"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_name(params, words):
    assert words in complaint(**params)


def test_all_problems_come_at_once():
    with pytest.raises(InvalidConfig) as caught:
        read_options({"method": "x", "expect": 9, "redirects": -1, "bogus": 1})
    assert {problem.where for problem in caught.value.problems} == {"method", "expect", "redirects", "bogus", "url"}


@pytest.mark.parametrize(
    "params",
    [
        {"url": "http://host/?key=S3CRET value"},
        {"url": "http://S3CRET:x@host/"},
        {"url": "S3CRET"},
        {"headers": {"X": "S3CRET\n"}},
        {"auth": {"bearer": "S3CRET\n"}},
        {"auth": {"basic": {"user": "S3CRET:", "password": "S3CRET"}}},
        {"auth": {"S3CRET": 1}},
        {"body": ["S3CRET"]},
        {"headers": "S3CRET"},
        {"ca": "S3CRET\n"},
    ],
)
def test_no_complaint_quotes_what_may_be_a_secret(params):
    with pytest.raises(InvalidInput) as caught:
        read_options({"url": URL, **params})
    assert "S3CRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "${env:URL}",
        "https://${env:HOST}/x",
        "https://example.com/${env:TOKEN}/x",
        "https://example.com/?k=${file:/run/k}",
    ],
)
def test_references_to_secrets_may_stand_anywhere_in_a_url(url):
    read_options({"url": url}, declared=True)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com/a?b=c", "example.com:443"),
        ("http://example.com:8080/", "example.com:8080"),
        ("http://[2001:db8::1]/", "[2001:db8::1]:80"),
        ("http://example.com/${env:X}", "example.com:80"),
        ("http://${env:HOST}/", ""),
        ("${env:URL}", ""),
    ],
)
def test_the_target_is_host_and_port(url, target):
    assert target_of({"url": url}) == target


# declared in Python


def test_a_job_declared_in_code_is_checked_and_gets_its_target():
    app = Pollux("memory://")
    job = app.add("http", every("30s"), id="home", params={"url": URL})
    assert (job.target, job.handler) == ("example.com:443", "http")
    assert app.add("http", every("30s"), id="own", target="edge", params={"url": URL}).target == "edge"
    with pytest.raises(InvalidInput, match="did you mean"):
        app.add("http", every("30s"), id="bad", params={"url": URL, "tiemout": 1})


def test_the_url_of_a_job_that_runs_when_asked_may_come_with_the_asking():
    app = Pollux("memory://")
    assert app.add("http", id="any", params={"expect": 200}).target == ""
    with pytest.raises(InvalidInput, match="there is no URL"):
        app.add("http", every("1m"), id="none", params={})


async def test_jobs_that_are_put_are_checked_and_get_their_target():
    app = Pollux("memory://")
    await app.open()
    good = Job(id="good", handler="http", schedule=Interval(60_000), params={"url": URL})
    await app.put_jobs([good])
    assert (await app.operations.jobs.get_job("good")).target == "example.com:443"
    bad = Job(id="bad", handler="http", schedule=Interval(60_000), params={"url": "file:///etc/passwd"})
    with pytest.raises(InvalidInput, match=r"job 'bad': params.url: it is of file"):
        await app.put_jobs([bad])
    with pytest.raises(InvalidInput, match="unknown key 'expct'"):
        await app.enqueue("good", {"expct": 200})
    await app.close()


# declared in a file


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text: str):
        (tmp_path / "p.yaml").write_text(text)
        return load_config("p.yaml", environ={})

    return load


def problems(load, text: str) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load(text)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_names_a_url_or_a_mapping(load):
    short, long = load(f"""
jobs:
  - {{id: short, http: "{URL}", interval: 30s}}
  - {{id: long, http: {{url: "{URL}", expect: [200, 404], take: {{json: a.b}}}}, cron: "0 5 * * *", target: edge}}
""").jobs
    assert (short.handler, short.params) == ("http", {"url": URL})
    assert long.params == {"url": URL, "expect": [200, 404], "take": {"json": "a.b"}}


def test_a_file_s_jobs_get_their_target_when_the_app_takes_them(load):
    config = load(f'store: memory://\njobs:\n  - {{id: a, http: "{URL}", interval: 30s}}\n')
    [job] = Pollux.from_config(config).declared_jobs()
    assert (job.target, job.source) == ("example.com:443", "file:p.yaml")


def test_every_problem_of_a_file_is_told_at_its_own_place(load):
    assert problems(
        load,
        f"""
jobs:
  - id: a
    interval: 30s
    http:
      url: ftp://x/
      expect: 9
      take: {{json: "a..b"}}
      headers: {{Host: x}}
      tiemout: 5s
  - {{id: b, http: [1], interval: 30s}}
  - {{id: c, http: "{URL}", params: {{a: 1}}, interval: 30s}}
  - {{id: d, http: "{URL}", python: "m:f", interval: 30s}}
  - {{id: e, interval: 30s}}
  - {{id: f, interval: 30s, http: }}
""",
    ) == [
        "p.yaml:6:12: job 'a': http.url: it is of ftp, not of http or https; write it like https://example.com/health",
        "p.yaml:7:15: job 'a': http.expect: '9' is no status; write 200, \"2xx\", \"200-204\" or a list of them",
        (
            "p.yaml:8:20: job 'a': http.take.json: 'a..b' cannot be read from '..b' on; "
            'write it like "data.items[0].price" or ["a name"].x'
        ),
        "p.yaml:9:23: job 'a': http.headers.Host: Host is set by Pollux itself; remove it; the URL names it",
        "p.yaml:10:16: job 'a': http.tiemout: unknown key 'tiemout'; did you mean \"timeout\"?",
        (
            "p.yaml:11:19: job 'b': http: it is neither a URL nor a mapping; "
            'write http: "https://example.com/health", or http: {url: "https://example.com/health", expect: 200}'
        ),
        "p.yaml:12:57: job 'c': params next to http; write them under http: {...}",
        "p.yaml:13:19: job 'd': python and http cannot both be its handler; keep one of them",
        'p.yaml:14:5: job \'e\': no handler is named; add python: "module:function", or http: "https://..."',
        (
            "p.yaml:15:34: job 'f': http: it is neither a URL nor a mapping; "
            'write http: "https://example.com/health", or http: {url: "https://example.com/health", expect: 200}'
        ),
    ]


def test_networks_and_the_number_of_requests_are_set_in_the_file_the_environment_or_by_argument(load, tmp_path):
    load("http: {allow_networks: [10.0.0.0/8, 'fd00::/8'], per_target: 9}")
    config = load_config("p.yaml", environ={})
    assert (config.http_allow_networks, config.http_per_target) == ("10.0.0.0/8, fd00::/8", 9)
    app = Pollux.from_config(config)
    assert [str(network) for network in app._built_in.http.allow_networks] == ["10.0.0.0/8", "fd00::/8"]
    assert app._built_in.http.per_target == 9
    environ = {"POLLUX_HTTP_ALLOW_NETWORKS": "192.168.0.0/16,10.0.0.0/8"}
    assert load_config("p.yaml", environ=environ).http_allow_networks == "192.168.0.0/16, 10.0.0.0/8"
    assert load_config(None, environ={}, arguments={"http_per_target": 2}).http_per_target == 2


def test_what_is_no_network_is_told_at_its_place(load):
    [problem] = problems(load, "http: {allow_networks: [10.0.0.1/8]}")
    assert problem.startswith("p.yaml:1:24: http.allow_networks: '10.0.0.1/8' is no network")


def test_the_page_tells_every_option_and_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    told = re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)
    assert told == list(OPTION_NAMES)
    names = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PolluxError)]
    assert [name for name in names if name not in {"Permanent", "Transient"} and f"`{name}`" not in page] == []
