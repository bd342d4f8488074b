"""Secrets: written as references, resolved where the job runs, redacted everywhere."""

import asyncio
import base64
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from pollux import Pollux
from pollux.config import load_config
from pollux.config.lint import config_warnings
from pollux.errors import InvalidConfig, InvalidInput
from pollux.job_builder import check_job, job_of
from pollux.model import Job
from pollux.secrets import (
    HIDDEN,
    MASK,
    Secrets,
    check_payload,
    check_references,
    has_reference,
    hide,
    looks_secret,
    references_of,
)
from pollux.secrets.redaction import HIDDEN_MAX, LOOK_CHARS_MAX, Redaction
from pollux.secrets.references import FILE_BYTES_MAX

VALUE = 'hüb"ner+Katze/42&x'


@pytest.fixture(autouse=True)
def forget():
    HIDDEN.clear()
    yield
    HIDDEN.clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that nobody is kept out of: pytest closes its own, which would excuse an open file."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def secret_file(path: Path, text: str = "open sesame\n", mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def file_job(params: dict, *, revision: int = 1, source: str = "file:p.yaml") -> Job:
    return Job(id="a", handler="h", params=params, source=source, revision=revision)


# what is written


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${env:TOKEN}", ["${env:TOKEN}"]),
        ("Bearer ${env:TOKEN}", ["${env:TOKEN}"]),
        ("${env:USER}:${file:/run/secrets/db pass}", ["${env:USER}", "${file:/run/secrets/db pass}"]),
        ("$${env:TOKEN}", []),
        ("${HOME} ${x:-1} $env:X {env:X} ${ENV:X}", []),
        ("", []),
    ],
)
def test_a_reference_stands_alone_or_inside_a_text_and_can_be_escaped(text, found):
    assert [str(reference) for reference in references_of(text)] == found
    assert has_reference(text) is bool(found)


@pytest.mark.parametrize(
    "text", ["${env:}", "${env:A B}", "${env:1A}", "${file:}", "${file: }", "${env:A", "x ${file:/a"]
)
def test_a_reference_that_names_nothing_is_refused_with_its_cure(text):
    with pytest.raises(InvalidInput, match="write \\$\\{env:NAME\\}"):
        references_of(text)


@pytest.mark.parametrize("source", ["file:p.yaml", "code:app"])
def test_a_file_and_code_may_hold_references(source):
    job = job_of(id="a", handler="h", params={"headers": {"Authorization": "Bearer ${env:T}"}}, source=source)
    assert job.params == {"headers": {"Authorization": "Bearer ${env:T}"}}
    assert check_job(job) is job


def test_a_job_of_the_api_may_not_read_the_environment_of_a_worker():
    params = {"headers": {"a": ["x", "${env:AWS_SECRET}"]}}
    with pytest.raises(InvalidInput, match=r"headers\.a\[1\].*only a config file or code may hold; declare the job"):
        check_references(params, "api")
    with pytest.raises(InvalidInput):
        check_job(Job(id="a", handler="h", params=params))
    with pytest.raises(InvalidInput):
        job_of(id="a", handler="h", params=params)


def test_the_data_of_a_run_hold_no_reference_and_no_value():
    with pytest.raises(InvalidInput, match=r"deep\[0\]\.x: references .* job's own params"):
        check_payload({"deep": [{"x": "${env:T}"}]})
    assert check_payload({"x": "$${env:T} $$", "n": [1, None]}) == {"x": "${env:T} $$", "n": [1, None]}
    HIDDEN.add("open sesame")
    with pytest.raises(InvalidInput, match="x: the value of a secret would be stored") as refused:
        check_payload({"x": "say open sesame"})
    assert "sesame" not in str(refused.value)


# what is meant


def test_references_become_values_and_escapes_the_text_itself(folder):
    secret_file(folder / "pw")
    secrets = Secrets(environ={"TOKEN": "t0ken-value"}, folder=folder)
    params = {"a": "Bearer ${env:TOKEN}", "b": ["${file:pw}", 3], "c": "$${env:TOKEN}", "${env:TOKEN}": None}
    assert secrets.params_of(file_job(params)) == {
        "a": "Bearer t0ken-value",
        "b": ["open sesame", 3],
        "c": "${env:TOKEN}",
        "${env:TOKEN}": None,
    }
    assert params["a"] == "Bearer ${env:TOKEN}", "the job keeps its reference"


def test_a_job_of_the_api_is_never_resolved_even_if_one_got_into_the_store():
    secrets = Secrets(environ={"TOKEN": "t0ken-value"})
    job = file_job({"a": "${env:TOKEN}"}, source="api")
    assert secrets.params_of(job) is job.params


def test_whether_a_job_holds_references_is_decided_once_per_revision():
    secrets = Secrets(environ={"T": "t0ken-value"})
    plain = file_job({"a": "x"})
    assert secrets.params_of(plain) is plain.params
    assert secrets.params_of(file_job({"a": "${env:T}"}, revision=2)) == {"a": "t0ken-value"}
    assert secrets.params_of(file_job({"a": "${env:T}"}, source="file:q", revision=2)) == {"a": "t0ken-value"}


def test_a_rotated_file_is_seen_without_a_restart(folder):
    secret_file(folder / "pw")
    secrets = Secrets(folder=folder)
    job = file_job({"pw": "${file:pw}"})
    assert secrets.params_of(job) == {"pw": "open sesame"}
    secret_file(folder / "new", "close sesame\r\n")
    (folder / "new").replace(folder / "pw")
    assert secrets.params_of(job) == {"pw": "close sesame"}
    assert hide("open sesame, close sesame") == f"{MASK}, {MASK}", "the old one is still secret"


def test_a_file_is_read_again_only_if_it_changed(folder, monkeypatch):
    secret_file(folder / "pw")
    secrets = Secrets(folder=folder)
    assert secrets.resolve("${file:pw}") == "open sesame"
    monkeypatch.setattr("pollux.secrets.references._read", lambda path: pytest.fail("read again"))
    assert secrets.resolve("${file:pw}") == "open sesame"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${env:NOT_THERE}", "the variable is not set; set it where the job runs"),
        ("${env:EMPTY}", "the variable is empty"),
        ("${env:BYTES}", "not text in UTF-8"),
        ("${file:nowhere}", "the file cannot be read: No such file"),
        ("${file:.}", "no ordinary file"),
        ("${file:pipe}", "no ordinary file"),
        ("${file:empty}", "the file is empty"),
        ("${file:big}", "too big for a secret"),
        ("${file:open}", "can be read by every user of this machine (mode 0644); chmod 640"),
        ("${file:writable}", "can be read by every user of this machine (mode 0602); chmod 640"),
    ],
)
def test_what_cannot_be_had_is_named_with_its_cure(open_folder, reference, words):
    folder = open_folder
    secret_file(folder / "empty", "\n")
    secret_file(folder / "big", "x" * (FILE_BYTES_MAX + 1))
    secret_file(folder / "open", mode=0o644)
    secret_file(folder / "writable", mode=0o602)
    os.mkfifo(folder / "pipe", 0o600)
    secrets = Secrets(environ={"EMPTY": "", "BYTES": "\udcff" * 8}, folder=folder)
    with pytest.raises(InvalidInput) as refused:
        secrets.resolve(f"Bearer {reference}")
    assert reference in str(refused.value)
    assert words in str(refused.value)


def test_an_open_file_in_a_closed_folder_is_fine(folder):
    (folder / "closed").mkdir(mode=0o700)
    secret_file(folder / "closed" / "pw", mode=0o644)
    assert Secrets(folder=folder).resolve("${file:closed/pw}") == "open sesame"


def test_an_open_file_among_the_secrets_of_a_container_is_fine(folder, monkeypatch):
    monkeypatch.setattr("pollux.secrets.references.OPEN_FOLDERS", (f"{folder}/",))
    secret_file(folder / "pw", mode=0o444)
    assert Secrets().resolve(f"${{file:{folder}/pw}}") == "open sesame"


# what is hidden


@pytest.mark.parametrize("before", ["", "a", "ab", "abc", "user:"])
@pytest.mark.parametrize("after", ["", "@", "and more"])
def test_a_secret_is_hidden_in_base64_wherever_it_begins(before, after):
    HIDDEN.add("swordfish-9000")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        coded = encode(f"{before}swordfish-9000{after}".encode()).decode()
        shown = hide(f"Basic {coded} x")
        assert MASK in shown
        assert len(shown) < len(coded)


@pytest.mark.parametrize(
    "form",
    [
        str,
        repr,
        ascii,
        lambda text: repr(text.encode()),
        json.dumps,
        quote,
        quote_plus,
        lambda text: quote(text, safe=""),
        lambda text: json.dumps(text, ensure_ascii=False),
        lambda text: f"https://x.example/?q={quote(text)}&n=1",
        lambda text: text.encode("unicode_escape").decode(),
    ],
)
def test_a_secret_is_hidden_in_every_form_in_which_it_is_written(form):
    HIDDEN.add(VALUE)
    shown = hide(f"before {form(VALUE)} after")
    assert MASK in shown
    assert "Katze" not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")


def test_each_line_of_a_key_is_hidden():
    HIDDEN.add("-----BEGIN-----\nMIIEpAIBAAKCAQEA\nq1w2e3r4t5z6\n-----END-----\n")
    assert hide("bad key MIIEpAIBAAKCAQEA, q1w2e3r4t5z6") == f"bad key {MASK}, {MASK}"


def test_the_longest_secret_wins_and_short_ones_stay():
    for value in ("secret-1", "secret-1-and-more", "abc"):
        HIDDEN.add(value)
    assert hide("a secret-1-and-more b secret-1 c abc") == f"a {MASK} b {MASK} c abc"


def test_what_is_known_is_bounded():
    hidden = Redaction()
    for number in range(HIDDEN_MAX + 1):
        hidden.add(f"value-{number:06d}")
    assert len(hidden.values()) == HIDDEN_MAX
    assert hidden.hide("value-000000") == "value-000000"
    assert hidden.hide("value-000001") == MASK
    assert len(hidden.hide("x" * (3 * LOOK_CHARS_MAX))) < LOOK_CHARS_MAX + 10


def test_what_is_used_is_not_forgotten_before_what_is_not():
    hidden = Redaction()
    for number in range(HIDDEN_MAX + 500):
        hidden.add("swordfish-9000")
        hidden.add(f"value-{number:06d}")
    assert hidden.hide("swordfish-9000") == MASK
    assert hidden.hide("value-000000") == "value-000000"


def test_thousands_of_secrets_in_use_cost_each_run_next_to_nothing():
    hidden = Redaction()
    values = [f"{number:06d}-of-many" for number in range(2_000)]
    for value in values:
        hidden.add(value)
    began = time.process_time()
    for value in values:  # as their runs do, in turn
        hidden.add(value)
        assert hidden.hide_in({"said": value}) == {"said": MASK}
    assert time.process_time() - began < 2  # it was 400 ms for each


@pytest.mark.parametrize(
    "key",
    ["password", "db_password", "X-Api-Key", "accessToken", "AUTHORIZATION", "apiKey", "pwd", "client_secret",
     "Set-Cookie", "community", "private_key", "HTTPAuthToken"],
)  # fmt: skip
def test_a_name_that_announces_a_secret_is_known_by_its_words(key):
    assert looks_secret(key)


@pytest.mark.parametrize("key", ["author", "authority", "key", "keys", "passenger", "compass", "tokenize", "secretary",
                                 "bypass", "url", ""])  # fmt: skip
def test_a_name_that_only_sounds_alike_is_none(key):
    assert not looks_secret(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:pa/ss@db/x", "postgresql://ann:pa/ss@db/x"),  # no URL: the password must be encoded
        ("postgresql://ann:pa%2Fss@db/x?y", "postgresql://ann:***@db/x?y"),
        ("redis://:geheim@h:1 and http://h/p", "redis://:***@h:1 and http://h/p"),
        ("postgresql://ann:${env:PW}@db/x", "postgresql://ann:${env:PW}@db/x"),
        ("GET http://h/?api_key=abc&page=2", "GET http://h/?api_key=***&page=2"),
        ("password='a b' user=ann", "password=*** user=ann"),
        ("{'token': 'abc', 'n': 1}", "{'token': '***', 'n': 1}"),
        ('{"client_secret": "a\\"b", "x": ""}', '{"client_secret": "***", "x": ""}'),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("invalid token: unexpected end", "invalid token: unexpected end"),
        ("author=ann key=7", "author=ann key=7"),
    ],
)
def test_what_a_text_calls_a_secret_is_hidden(text, shown):
    assert hide(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token: abcdef", "token: ***"),
        ("    - db_password: geheim", "    - db_password: ***"),
        ("spring.datasource.password: hunter22", "spring.datasource.password: ***"),
        ('conf = yaml.safe_load("{token: abcdef123456}")', 'conf = yaml.safe_load("{token: ***}")'),
        ('load("{user: ann, token: abcdef, n: 1}")', 'load("{user: ann, token: ***, n: 1}")'),
        ('load("token: abcdef")', 'load("token: ***")'),
        (r'load("user: ann\ntoken: abcdef\nport: 80\n")', r'load("user: ann\ntoken: ***\nport: 80\n")'),
        ("user: ann\ntoken: abcdef\nport: 80", "user: ann\ntoken: ***\nport: 80"),
        ("{token: 'ab cd'}", "{token: ***}"),
        ('api_key: "abc"  # of the shop', "api_key: ***  # of the shop"),
        ('fail("bad token: 7f3a9c00 refused")', 'fail("bad token: *** refused")'),
        ('{"password": 12345678}', '{"password": ***}'),
        (r'send("{\"token\": \"abc\", \"user\": \"ann\"}")', r'send("{\"token\": \"***\", \"user\": \"ann\"}")'),
    ],
)
def test_a_secret_behind_a_colon_is_hidden(text, shown):
    assert hide(text) == shown
    assert hide(shown) == shown, "what is hidden already stays as it is"


@pytest.mark.parametrize(
    "line",
    [
        "key: int = 5",
        "for token in tokens:",
        "if token: return token",
        "if secret: secrets.append(secret)",
        "def login(user: str, password: str, token: Optional[str] = None) -> None:",
        "tokens: list[str] = []",
        "auth: Callable[[str], bool]",
        "token: Secret = Secret()",
        "by_name = {token: parse(token) for token in tokens}",
        '{"token": token, "password": settings.password}',
        'logger.info(f"token: {token}")',
        'print("token: %s" % token)',
        "lambda token: token.upper()",
        "token: ${env:TOKEN}",
        "password: '${env:PASSWORD}'",
        "login failed: bad token: expired",
        "auth: the server refused it",
        "jobs.shop.http.auth: write it as a reference",
        "prompt_tokens: 128000",
    ],
)
def test_an_ordinary_line_that_speaks_of_secrets_stays_readable(line):
    assert hide(line) == line


def test_plain_data_are_hidden_by_name_and_by_value():
    HIDDEN.add("swordfish")
    data = {"token": "abc", "tokens": 7, "user": "ann", "deep": [{"password": ["x", None]}], "text": "a swordfish",
            "swordfish": 1, "pw": {"password": "${env:PW}"}, "url": "http://u:p@h/"}  # fmt: skip
    assert HIDDEN.hide_in(data) == {
        "token": MASK, "tokens": 7, "user": "ann", "deep": [{"password": [MASK, None]}], "text": f"a {MASK}",
        MASK: 1, "pw": {"password": "${env:PW}"}, "url": "http://u:***@h/",
    }  # fmt: skip


# in a config


def load(folder: Path, text: str, environ: dict[str, str]):
    (folder / "p.yaml").write_text(text)
    return load_config(str(folder / "p.yaml"), environ=environ)


def test_settings_are_resolved_when_the_config_is_loaded(folder):
    secret_file(folder / "dir", "there/it/is")
    text = 'store: "sqlite:///${file:dir}/${env:NAME}.db"\npool: {seats: "${env:SEATS}"}\n'
    config = load(folder, text, {"NAME": "pollux-one", "SEATS": "7"})
    assert config.store == "sqlite:///there/it/is/pollux-one.db"
    assert config.seats == 7
    assert config.written == {"store": "sqlite:///${file:dir}/${env:NAME}.db", "pool.seats": "${env:SEATS}"}
    assert hide(config.store) == f"sqlite:///{MASK}/{MASK}.db"


def test_what_a_setting_needs_and_cannot_have_is_told_with_its_place(folder):
    with pytest.raises(InvalidConfig) as refused:
        load(folder, 'store: "${env:STORE}"\npool: {seats: "${env:SEATS}"}\n', {"SEATS": "geheimnis"})
    told = [str(problem) for problem in refused.value.problems]
    assert told[0].startswith(f"{folder}/p.yaml:1:8: store: ${{env:STORE}}: the variable is not set")
    assert told[1].startswith(f"{folder}/p.yaml:2:15: pool.seats: '***' cannot be used")


def test_a_reference_that_is_none_is_told_where_it_stands(folder):
    with pytest.raises(InvalidConfig) as refused:
        load(folder, 'jobs:\n  - {id: a, python: "m:f", params: {x: "${env:}"}}\n', {})
    [problem] = refused.value.problems
    assert f"{folder}/p.yaml:2:" in problem.where
    assert "params.x: the reference '${env:}' names nothing" in problem.what


def test_secrets_that_are_written_out_are_doubted_and_not_quoted(folder):
    secret_file(folder / "pw", "short", 0o660)
    text = """
store: postgresql://ann:geheim1@db/x
defaults: {params: {api_key: geheim2}}
jobs:
  - {id: a, python: "m:f", params: {headers: {Authorization: "geheim3"}, url: "http://u:geheim4@h/", user: ann}}
  - {id: b, python: "m:f", params: {password: "${file:pw}", api_key: "${env:KEY}"}}
"""
    config = load(folder, text, {"KEY": "long enough"})
    told = [str(doubt) for doubt in config_warnings(config, {"KEY": "long enough"})]
    assert [line.partition("params.")[2].partition(":")[0] for line in told[1:]] == [
        "api_key", "headers.Authorization", "url", "password", "password",
    ]  # fmt: skip
    assert "store: a password is written out; write ${env:NAME}" in told[0]
    told_of = [str(doubt) for doubt in config_warnings(load(folder, "", {"POLLUX_STORE": "redis://:geheim@h/0"}), {})]
    assert "any user who can see the environment of the process can read it: write ${file:/path}" in told_of[0]
    assert "5 characters, too few to be hidden" in told[4]
    assert "its group may change it" in told[5]
    assert "geheim" not in "".join(told)


# in an app


def app_with(params: dict) -> Pollux:
    app = Pollux("memory://", name="t")

    @app.job(params=params)
    async def home(ctx, token="", user=""):
        return {"length": len(token)}

    return app


async def ended(app: Pollux, run_id: str):
    async with asyncio.timeout(30):
        while not (run := await app.get_run(run_id)).is_finished:  # noqa: ASYNC110  no event is told of it
            await asyncio.sleep(0.01)
    return run


async def test_a_start_names_everything_that_is_missing(monkeypatch):
    monkeypatch.delenv("NO_A", raising=False)
    app = app_with({"token": "${env:NO_A}", "user": "${file:/nowhere/b}"})
    with pytest.raises(InvalidConfig) as refused:
        await app.start()
    told = [str(problem) for problem in refused.value.problems]
    assert told[0].startswith("job 'home': params.token: ${env:NO_A}: the variable is not set; ")
    assert told[1].startswith("job 'home': params.user: ${file:/nowhere/b}: the file cannot be read: No such file")


async def test_the_handler_gets_the_value_and_a_secret_that_vanished_is_a_permanent_fault(monkeypatch):
    monkeypatch.setenv("A_TOKEN", "open-sesame-42")
    async with app_with({"token": "Bearer ${env:A_TOKEN}"}) as app:
        done = await ended(app, (await app.run_now("home")).id)
        assert done.result == {"length": len("Bearer open-sesame-42")}
        assert (await app.operations.jobs.get_job("home")).params == {"token": "Bearer ${env:A_TOKEN}"}
        monkeypatch.delenv("A_TOKEN")
        dead = await ended(app, (await app.run_now("home")).id)
    assert dead.state == "dead"
    assert "${env:A_TOKEN}: the variable is not set; set it where the job runs" in dead.error
    assert dead.attempt == 0, "it was not tried again"


async def test_data_hold_no_references_wherever_they_come_in():
    async with app_with({}) as app:
        for ask in (app.enqueue, app.run_now):
            with pytest.raises(
                InvalidInput, match="token: references to secrets are not resolved in the data of a run"
            ):
                await ask("home", {"token": "${env:HOME}"})
        with pytest.raises(InvalidInput, match="references to secrets"):
            await app.enqueue_many("home", [{"token": "x"}, {"token": "${file:/etc/passwd}"}])
        with pytest.raises(InvalidInput, match="only a config file or code may hold"):
            await app.put_jobs([Job(id="b", handler="home", params={"token": "${env:HOME}"})])
        assert not (await app.operations.runs.list_runs()).runs


async def test_what_people_say_is_kept_without_secrets():
    HIDDEN.add("open-sesame-42")
    async with app_with({}) as app:
        await app.pause("home", reason="until open-sesame-42 is rotated")
        [line] = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "pause"]
        assert line.detail == "until *** is rotated"
        [stop] = await app.operations.pauses.stops()
        assert stop.value["reason"] == "until *** is rotated"
