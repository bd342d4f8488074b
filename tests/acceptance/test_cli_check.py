"""`pollux check`: every mistake at once, and what a start would change."""

import pytest

from tests.acceptance.terminal import Terminal, eventually, stopped

RIGHT = """\
store: sqlite:///p.db
jobs:
  - {id: a, python: "work:fine", interval: 1h}
  - {id: b, python: "work:fine", cron: "0 5 * * *", tz: Europe/Berlin}
"""
FIVE = """\
defaults: {timout: 30s}
jobs:
  - {id: a, python: "work:fine", interval: 30x}
  - {id: b, python: "work:fine", cron: "61 * * * *"}
  - {id: a, python: "work:fine"}
  - {id: c, python: nowhere, interval: 30s}
"""


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def test_a_right_config_is_right(pollux):
    pollux.write("p.yaml", RIGHT)
    assert pollux.ok("check", "-c", "p.yaml").out == "p.yaml: valid; 2 jobs\n"
    assert not (pollux.folder / "p.db").exists()


def test_a_config_that_lies_here_is_found(pollux):
    pollux.write("pollux.yaml", RIGHT)
    assert pollux.ok("check").out == "pollux.yaml: valid; 2 jobs\n"


def test_the_file_can_be_an_argument(pollux):
    pollux.write("p.yaml", RIGHT)
    assert pollux.ok("check", "p.yaml").out == "p.yaml: valid; 2 jobs\n"
    assert pollux.ok("check", "p.yaml", environ={"POLLUX_CONFIG": "other.yaml"}).out == "p.yaml: valid; 2 jobs\n"
    answer = pollux("check", "p.yaml", "-c", "p.yaml")
    assert answer.code == 2
    assert "named twice" in answer.err


def test_nothing_to_check_says_so(pollux):
    answer = pollux("check")
    assert (answer.code, answer.out) == (2, "")
    assert "name a file: pollux check FILE" in answer.err


def test_a_file_of_python_is_answered_with_the_option_for_apps(pollux):
    pollux.write("shop.py", "app = None\n")
    answer = pollux("check", "shop.py")
    assert (answer.code, answer.out) == (2, "")
    assert "pollux check --app shop:app" in answer.err


def test_five_planted_errors_give_five_messages(pollux):
    pollux.write("p.yaml", FIVE)
    answer = pollux("check", "-c", "p.yaml")
    assert (answer.code, answer.out) == (2, "")
    lines = answer.err.removeprefix("pollux: ").splitlines()
    assert [line.split(":")[1] for line in lines[:-1]] == ["1", "3", "4", "5", "6"]
    assert all(line.startswith("p.yaml:") and "; " in line for line in lines[:-1])
    assert lines[-1] == "5 problems"


def test_mistakes_of_the_file_and_of_the_code_are_told_together(pollux):
    """Nobody has to mend a word of the file first to learn that a function is missing."""
    pollux.write(
        "p.yaml",
        "jobs:\n"
        '  - {id: c, python: "work:tock", interval: 5s, retries: 3}\n'
        '  - {id: d, python: "wrok:fine", interval: 5s}\n'
        '  - {id: e, python: "work:needs", interval: 5s, retries: 3}\n'
        "  - {id: f, exec: [ls], interval: 5s}\n",
    )
    pollux.write("work.py", "def fine(ctx): ...\n\n\ndef needs(ctx, path): ...\n")
    answer = pollux("check", "p.yaml")
    assert answer.code == 2
    assert answer.err.count("unknown key 'retries'") == 2
    assert "'work' has no 'tock'" in answer.err
    assert "importing 'wrok' raised ModuleNotFoundError" in answer.err
    assert "job 'e'" in answer.err.replace("job 'e': unknown key", "")
    assert "allow_exec" in answer.err
    assert answer.err.splitlines()[-1] == "6 problems"
    assert len(pollux("check", "p.yaml", "--json").json["problems"]) == 6


def test_problems_can_be_had_as_json(pollux):
    pollux.write("p.yaml", FIVE)
    answer = pollux("check", "-c", "p.yaml", "--json")
    assert answer.code == 2
    assert len(answer.json["problems"]) == 5
    assert all(set(problem) == {"where", "what", "cure"} and problem["cure"] for problem in answer.json["problems"])


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"a: [1", "p.yaml:2:1: no YAML"),
        (b"\xff\xfe\x00\x01", "p.yaml:1:1: the file is not text in UTF-8"),
        (b"[" * 100_000, "p.yaml:1:33: more than 32 levels"),
        (b"# " + b"x" * 20_000_000, "p.yaml: the file is bigger than 16 MiB"),
        (b"- a\n- b\n", "p.yaml:1:1: the file is a list, not a mapping"),
    ],
    ids=["syntax", "binary", "depth bomb", "20 MB", "no mapping"],
)
def test_a_file_that_is_no_config_is_one_message(pollux, raw, what):
    (pollux.folder / "p.yaml").write_bytes(raw)
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code == 2
    assert answer.err.startswith(f"pollux: {what}")
    assert answer.err.splitlines()[-1] == "1 problem"


NEVER = """\
store: sqlite:///p.db
jobs:
  - {id: a, http: "http://169.254.169.254/latest/", interval: 1h}
  - {id: b, http: {url: "http://[fe80::5efe:808:808]/"}, interval: 1h}
  - {id: c, http: "http://metadata.google.internal/", interval: 1h}
  - {id: d, http: "http://127.0.0.1:8000/", interval: 1h}
"""


def test_an_address_that_is_never_reached_is_a_problem_with_a_line(pollux):
    pollux.write("p.yaml", NEVER)
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code == 2
    lines = answer.err.removeprefix("pollux: ").splitlines()
    assert [line.split(":")[1] for line in lines[:-1]] == ["3", "4", "5"]
    assert "169.254.169.254 is never reached" in lines[0]
    assert "is never asked; name another host" in lines[2]


def test_a_token_in_plain_text_is_told_with_what_to_write_in_its_place(pollux):
    """`auth` is refused, a header is a doubt; neither is quoted."""
    job = '  - {{id: {}, http: {{url: "http://example.com/", {}}}, interval: 1h}}\n'
    auth = job.format("a", "auth: {bearer: swordfish-9000}")
    header = job.format("b", 'headers: {Authorization: "Bearer swordfish-9000"}')
    pollux.write("p.yaml", f"jobs:\n{auth}")
    refused = pollux("check", "-c", "p.yaml")
    assert refused.code == 2
    assert (
        "http.auth.bearer: the secret is written here in plain text; write ${env:NAME} or ${file:PATH}" in refused.err
    )
    pollux.write("p.yaml", f"store: sqlite:///p.db\njobs:\n{header}")
    doubt = pollux.ok("check", "-c", "p.yaml")
    assert "headers.Authorization: a secret is written out; write ${env:NAME} or ${file:PATH} in its place" in doubt.err
    assert "swordfish" not in refused.err + doubt.err


def test_whoever_starts_or_asks_the_doctor_hears_of_it_too(pollux):
    """In the file and in the code; where it is and what to do, and not the token."""
    header = 'headers: {Authorization: "Bearer swordfish-9000"}'
    job = f'{{id: b, http: {{url: "http://127.0.0.1:1/", {header}}}, cron: "0 0 1 1 *"}}'
    pollux.write("p.yaml", f'store: sqlite:///p.db\napp: "monitor:app"\njobs:\n  - {job}\n')
    pollux.write(
        "monitor.py", f'{APP}app.add("look", every("1h"), id="x", params={{"depth": {{"password": "oops"}}}})\n'
    )
    with pollux.started("serve", "-c", "p.yaml", "--no-watch") as process:
        eventually(lambda: "look" in pollux("jobs", "-c", "p.yaml").out, "it has its jobs", process)
        served = stopped(process)
    cure = "write ${env:NAME} or ${file:PATH} in its place"
    assert f"p.yaml:4:5: job 'b': params.headers.Authorization: a secret is written out; {cure}" in served.err
    assert f"monitor:app: job 'x': params.depth.password: a secret is written out; {cure}" in served.err
    told = pollux("doctor", "-c", "p.yaml")
    assert "a secret is written out (p.yaml:4:5: job 'b': params.headers.Authorization)\n" in told.out
    assert f"cure: {cure}" in told.out
    assert "monitor:app: job 'x': params.depth.password: a secret is written out" in told.out
    assert "swordfish" not in served.err + told.out
    assert "oops" not in served.err + told.out


def test_a_start_tells_of_a_few_secrets_and_how_many_more_there_are(pollux):
    jobs = [
        f'  - {{id: j{n}, python: "work:fine", params: {{word: {{token: swordfish}}}}, cron: "0 0 1 1 *"}}\n'
        for n in range(9)
    ]
    pollux.write("p.yaml", f"store: sqlite:///p.db\njobs:\n{''.join(jobs)}")
    with pollux.started("serve", "-c", "p.yaml", "--no-watch") as process:
        eventually(lambda: "j8" in pollux("jobs", "-c", "p.yaml").out, "it has its jobs", process)
        served = stopped(process)
    assert served.err.count("a secret is written out") == 5
    assert "4 more like these; `pollux check` lists all" in served.err


def test_code_that_is_not_there_is_a_problem_with_a_line(pollux):
    pollux.write("p.yaml", 'jobs:\n  - {id: a, python: "work:fien"}\n')
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code == 2
    assert "p.yaml:2:21" in answer.err
    assert "'work' has no 'fien'" in answer.err


def test_a_function_that_does_not_tell_its_params_is_a_problem_with_a_line(pollux):
    pollux.write("p.yaml", 'jobs:\n  - {id: a, python: "time:time", interval: 1h}\n')
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code == 2
    assert (
        "p.yaml:2:21: handler 'time:time' has no signature, so its params are unknown; wrap it in a function"
        in answer.err
    )


def test_params_that_do_not_fit_are_a_problem_with_a_line(pollux):
    pollux.write("p.yaml", 'jobs:\n  - {id: a, python: "work:fine", interval: 1h, params: {wrd: x}}\n')
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code == 2
    assert "p.yaml:2" in answer.err
    assert "unknown wrd" in answer.err


def test_a_diff_shows_what_a_start_would_change(pollux):
    pollux.write("p.yaml", RIGHT)
    assert pollux.ok("check", "-c", "p.yaml", "--diff").out.splitlines()[1:] == [
        "+ job a  every 1h",
        "+ job b  cron 0 5 * * * Europe/Berlin",
    ]
    assert not (pollux.folder / "p.db").exists(), "looking created the store"

    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        look = ("jobs", "-c", "p.yaml", "--json")
        eventually(lambda: pollux(*look).code == 0 and pollux.ok(*look).json["jobs"], "the jobs are there", process)
        stopped(process)
    assert pollux.ok("check", "-c", "p.yaml", "--diff").out.splitlines()[1:] == ["a start would change nothing"]

    pollux.write("p.yaml", RIGHT.replace("1h", "2h").replace("id: b", "id: c"))
    answer = pollux.ok("check", "-c", "p.yaml", "--diff")
    assert [line[:7] for line in answer.out.splitlines()[1:]] == ["+ job c", "~ job a", "- job b"]
    as_json = pollux.ok("check", "-c", "p.yaml", "--diff", "--json").json
    assert [diff["source"] for diff in as_json["diff"]] == ["file:p.yaml"]
    assert [job["id"] for job in pollux.ok("jobs", "-c", "p.yaml", "--json").json["jobs"]] == ["a", "b"]


APP = """\
from pollux import Pollux, cron, every

app = Pollux("sqlite:///own.db", name="monitor")


@app.job(every("30s"), params={"depth": 3})
async def look(ctx, depth): ...


@app.job(cron("0 5 * * *"))
def report(): ...

"""
WRONG = {
    "params": ('app.add("look", every("1h"), id="x", params={"deep": 1})', "the params do not fit handler 'look'"),
    "handler": ('app.add("nowhere", every("1h"), id="x")', "no handler is called 'nowhere'"),
    "schedule": ('app.add("look", cron("61 * * * *"), id="x", params={"depth": 1})', "61"),
    "address": ('app.add("http", every("1h"), id="x", params={"url": "http://169.254.169.254/"})', "169.254.169.254"),
    "isolation": ("def make():\n    def inner(): ...\n    return inner\n\napp.job(isolate='process')(make())", "inner"),
    "secret": ('app.add("look", every("1h"), id="x", params={"depth": "${env:NO_SUCH}"})', "NO_SUCH"),
}


def test_an_app_is_checked_without_a_file(pollux):
    pollux.write("monitor.py", APP)
    assert pollux.ok("check", "--app", "monitor:app").out == "monitor:app: valid; 2 jobs\n"
    assert pollux.ok("check", environ={"POLLUX_APP": "monitor:app"}).out == "monitor:app: valid; 2 jobs\n"
    told = pollux.ok("check", "--app", "monitor:app", "--json").json
    assert told == {"config": None, "app": "monitor:app", "problems": [], "warnings": [], "jobs": 2, "diff": None}
    diff = pollux.ok("check", "--app", "monitor:app", "--diff").out.splitlines()
    assert diff[1:] == ["+ job look  every 30s", "+ job report  cron 0 5 * * *"]
    assert not list(pollux.folder.glob("*.db")), "looking creates no store"


def test_the_difference_of_an_app_is_to_its_own_store(pollux):
    pollux.write("monitor.py", APP)
    with pollux.started("serve", "--app", "monitor:app", "--no-server", "--no-watch") as process:
        eventually(lambda: "look" in pollux("jobs", "--app", "monitor:app").out, "it has its jobs", process)
        assert stopped(process).code == 0
    assert "would change nothing" in pollux.ok("check", "--app", "monitor:app", "--diff").out
    pollux.write("monitor.py", APP.replace("30s", "45s"))
    assert "~ job look  every 30s -> 45s" in pollux.ok("check", "--app", "monitor:app", "--diff").out


def test_a_file_and_an_app_are_checked_together(pollux):
    pollux.write("monitor.py", APP)
    pollux.write("p.yaml", RIGHT)
    assert pollux.ok("check", "p.yaml", "--app", "monitor:app").out == "p.yaml and monitor:app: valid; 4 jobs\n"


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_wrong_with_an_app_is_told_as_of_a_file(pollux, wrong):
    line, words = WRONG[wrong]
    pollux.write("monitor.py", f"{APP}{line}\n")
    answer = pollux("check", "--app", "monitor:app")
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert "Traceback" not in answer.err
    told = pollux("check", "--app", "monitor:app", "--json").json
    assert [bool(problem["what"]) for problem in told["problems"]] == [True]


def test_an_app_that_is_not_there_is_told(pollux):
    for name in ("nowhere:app", "monitor:other", "monitor:look"):
        pollux.write("monitor.py", APP)
        answer = pollux("check", "--app", name)
        assert (answer.code, answer.out) == (2, ""), name


def test_a_secret_in_the_params_of_an_app_is_a_warning(pollux):
    pollux.write(
        "monitor.py", f'{APP}app.add("look", every("1h"), id="x", params={{"depth": {{"password": "oops"}}}})\n'
    )
    answer = pollux.ok("check", "--app", "monitor:app")
    assert "monitor:app: job 'x': params.depth.password: a secret is written out" in answer.err


def test_plan_and_simulate_look_at_an_app_too(pollux):
    """`--app` is promised everywhere."""
    pollux.write("monitor.py", APP)
    planned = pollux.ok("plan", "--app", "monitor:app", "--for", "1h", "--json").json
    assert {firing["job_id"] for firing in planned["firings"]} >= {"look"}
    assert "monitor:app, started then on an empty store" in pollux.ok("plan", "--app", "monitor:app", "--for", "1m").out
    played = pollux.ok("simulate", "--app", "monitor:app", "--from", "2030-01-01T12:00", "--for", "10m", "--json").json
    assert played["config"] == "monitor:app"
    assert [(job["id"], job["fired"]) for job in played["forecast"]["jobs"]] == [("look", 20), ("report", 0)]
    assert not list(pollux.folder.glob("*.db"))
