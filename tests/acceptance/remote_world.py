"""A deployment on any store, asked three ways: the store itself, a node, and a node's socket."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.acceptance.terminal import PATIENCE_SECONDS, Answer, SameProcess, eventually
from tests.servers.ports import free_port

T = TypeVar("T")
AGREE_SECONDS = 60.0
WAYS = ("direct", "distant", "nearby")  # the store itself, a node by its address, a node by its socket
SQLITE = "sqlite:///p.db"
JOBS = """\
allow_exec: false
jobs:
  - {id: still, python: "own:keeps", interval: 6h, group: edge, target: db-1, params: {password: hunter2222}}
  - {id: corpse, python: "work:refuse"}
""" + "\n".join(
    f"""\
  - {{id: {way}-a, python: "work:fine", group: of-{way}}}
  - {{id: {way}-b, python: "work:fine", group: of-{way}}}
  - {{id: {way}-dead, python: "work:refuse"}}
  - {{id: {way}-drop, python: "work:refuse"}}
  - {{id: {way}-late, python: "work:fine"}}
  - {{id: {way}-slow, python: "work:slow", params: {{seconds: 600}}}}
"""
    for way in WAYS
)

# Commands that look: their words are the same, to the letter.  RUN and DEAD are ids.
LOOKS = (
    *(
        "jobs",
        "jobs ls --json",
        "jobs ls --group edge",
        "jobs ls --text nothing",
        "jobs ls --limit 2",
        "jobs show still",
    ),
    *("jobs show still --json", "jobs show nope", "runs", "runs ls --json", "runs ls --job still --failed"),
    *("runs show RUN", "runs show RUN --json", "runs show RUN --follow", "runs show nope", "dead", "dead ls --json"),
    *("dead show DEAD", "dead show RUN", "why still", "why RUN --json", "why nope", "nodes", "nodes --json", "audit"),
    *("audit ls --limit 2 --json", "audit verify", "compare 2 2", "compare 2 2 --json", "compare 1 7", "migrate"),
    *("migrate ls --json", "migrate finish --from 2", "set", "set --json", "token ls", "token ls --json"),
    *("store dump -", "jobs move still --to-version 3 --dry-run", "pause nope", "jobs run", "enqueue nope --json"),
    *(
        "enqueue still --at yesterday",
        "enqueue still password=${env:HOME}",
        "runs ls --after nonsense",
        "pause a --for x",
    ),
    *(
        "dead revive nope",
        "resume still",
        "jobs delete nope",
        "jobs delete still",
        "token revoke nope",
        "set pool.nonsense 3",
    ),
    *("reload --dry-run", "reload --versions --json"),
)
# Commands that change something, each way on jobs of its own; WAY is the name of the way.
CHANGES = (
    *(
        "enqueue WAY-a word=2 --wait",
        "enqueue WAY-a --delay 1h --id WAY-later",
        "runs cancel WAY-later --reason enough",
    ),
    *("jobs run WAY-a", "jobs run --group of-WAY --yes", "jobs run WAY-a --json", "pause WAY-a WAY-b --for 1h"),
    *("resume WAY-a WAY-b", "pause --group of-WAY --reason why", "resume --group of-WAY", "pause WAY-b --json"),
    *("resume WAY-b --json", "jobs cancel WAY-late", "jobs delete WAY-gone", "jobs move WAY-late --to-version 3"),
    *("jobs move WAY-late --to-version 2", "dead revive --job WAY-dead --yes", "dead drop --job WAY-drop --yes"),
    *("token create --role viewer --name WAY", "token rotate WAY", "set log.level warning"),
    *("set --unset log.level", "drain --reason WAY", "resume --workers", "trigger"),
)


class Deployment(NamedTuple):
    pollux: SameProcess
    process: subprocess.Popen[bytes]
    url: str
    token: str
    store: str

    def by(self, way: str, words: str, **environ: str) -> Answer:
        arguments = [part for part in words.split(" ") if part]
        if way == "direct":
            return self.pollux(*arguments, "--store", self.store, environ=environ)
        if way == "distant":
            return self.pollux(*arguments, environ={"POLLUX_URL": self.url, "POLLUX_TOKEN": self.token, **environ})
        return self.pollux(*arguments, environ=environ)


@contextmanager
def deployed(folder: Path, jobs: str = JOBS, *, store: str = SQLITE) -> Iterator[Deployment]:
    """A node that serves these jobs, with its API, its socket and its first token."""
    pollux, port = SameProcess(folder), free_port()
    pollux.write("pollux.yaml", f'store: "{store}"\n{jobs}')
    pollux.write("own.py", "async def keeps(ctx, password=''):\n    return len(password)\n")
    environ = {"POLLUX_SERVER": "true", "POLLUX_PORT": str(port), "POLLUX_SERVER_RATE": "0"}

    def first_token() -> str:
        files = [*folder.glob("*.token"), *(folder / "state" / "pollux").glob("*.token")]
        return files[0].read_text().strip() if files else ""

    with pollux.started("serve", "--no-watch", environ=environ, stdout=subprocess.DEVNULL) as process:
        token = eventually(first_token, "there is a token", process)
        url = f"http://127.0.0.1:{port}"
        asked = {"POLLUX_URL": url, "POLLUX_TOKEN": token}
        eventually(lambda: pollux("nodes", environ=asked).code == 0, "the node answers", process)
        yield Deployment(pollux, process, url, token, store)


@contextmanager
def inhabited(folder: Path, store: str = SQLITE) -> Iterator[Deployment]:
    """The same with a past: runs that are done, and dead ones."""
    with deployed(folder, store=store) as made:
        for way in WAYS:
            for name in ("dead", "drop"):
                assert made.by("direct", f"enqueue {way}-{name}").code == 0
            _add(made, {"id": f"{way}-gone", "url": "https://example.com"})
        made.by("direct", "enqueue still --id RUN --wait")
        made.by("direct", "enqueue corpse --id DEAD")
        made.by("direct", "audit")
        eventually(
            lambda: len(made.by("direct", "dead ls --json").json["dead"]) == 7, "the dead are there", made.process
        )
        yield made


def _add(house: Deployment, job: dict[str, str]) -> None:
    """A job that no file declares: it can be deleted."""
    request = urllib.request.Request(f"{house.url}/api/v2/jobs", json.dumps(job).encode())
    request.add_header("Authorization", f"Bearer {house.token}")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        assert answer.status == 201


# the same words


def alike(look: Callable[[], list[T]]) -> list[T]:
    """Answers to one question, asked again until they agree; the last ones if they never do.

    A beat or a reading of the feed may fall between two of them, and a busy machine takes long for each.
    """
    deadline = time.monotonic() + AGREE_SECONDS
    while True:
        answers = look()
        if all(answer == answers[0] for answer in answers) or time.monotonic() > deadline:
            return answers


def check_look(house: Deployment, words: str) -> None:
    """To the letter, but for ages."""
    answers = alike(lambda: [ageless(house.by(way, words)) for way in WAYS])
    assert answers[0] == answers[1], f"{words}: the node"
    assert answers[0] == answers[2], f"{words}: its socket"
    assert answers[0].out or answers[0].err, words


def check_changes(house: Deployment) -> None:
    """Each begins when what the one before it started is over, so that what it finds is the same."""

    def changed(way: str, words: str) -> tuple[int, str, str]:
        answer = plain(house.by(way, words.replace("WAY", way)), way)
        eventually(lambda: not live_runs(house), f"all is quiet after {words}", house.process)
        return answer

    said = {way: [changed(way, words) for words in CHANGES] for way in WAYS}
    for words, *answers in zip(CHANGES, *said.values(), strict=True):
        assert answers[0] == answers[1], f"{words}: the node"
        assert answers[0] == answers[2], f"{words}: its socket"
        assert answers[0][0] == 0, (words, answers)


def check_live_screen(house: Deployment) -> None:
    """But for what the time changes."""

    def looked() -> list[Any]:
        answers = [house.by(way, "top --json").json for way in WAYS]
        for answer in answers:
            answer["now_ms"] = answer["waits_ms"] = answer["overdue_ms"] = 0
            for node in answer["nodes"]:
                node["beat_ms"] = node["busy"] = 0
        return answers

    answers = alike(looked)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["counts"]["jobs"] > 15


def check_forecast(house: Deployment) -> None:
    """Of what is stored, and of the file laid over it."""

    def told(way: str, words: str) -> dict[str, Any]:
        answer = house.by(way, f"plan --json --for 24h {words}")
        assert answer.code == 0, answer
        return {k: v for k, v in answer.json.items() if k not in ("from_ms", "to_ms", "bucket_ms", "buckets", "peak")}

    assert told("direct", "") == told("distant", "")
    over_file = [told(way, "-c pollux.yaml") for way in WAYS]
    assert over_file[0] == over_file[1] == over_file[2]
    assert house.store.partition(":")[0] in over_file[1]["basis"]


def check_simulation(house: Deployment) -> None:
    words = "simulate -c pollux.yaml --for 12h --from 2030-01-01T00:00 --json"
    by_node = house.pollux(*words.split(), "--url", house.url, "--token", house.token)
    assert house.by("direct", words).json == by_node.json
    assert by_node.code == 0


SPAN = r"(?:\d+(?:ms|[smhd]))+"


def ageless(answer: Answer) -> Answer:
    """How old something is, and how far ahead, is another number each time, and as wide as it is."""
    out = re.sub(r'"(age_ms|score|since_ms)": [0-9.]+', r'"\1": 0', answer.out)
    out = re.sub(rf"\b{SPAN} ago|\bin {SPAN}\b|\d+% \({SPAN} old|(?<=term \d, ){SPAN}", "AGE", out)
    return answer._replace(out=re.sub(r" +", " ", out))


def plain(answer: Answer, way: str) -> tuple[int, str, str]:
    """Without what differs from one run to the next: ids, moments, durations, who and which."""
    said = []
    for told in (answer.out, answer.err):
        text = told.replace(way, "WAY")
        for pattern, word in (
            (r"pf_\w+_[\w-]+", "TOKEN"),
            (r"\b01[0-9a-f]{26}\b", "ID"),
            (r"\bid [0-9a-f]{8}\b", "id ID"),
            (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MOMENT"),
            (r"\b\d{13}\b", "MS"),
            (r"\((on time|\d+m?s late)\)", "(LATE)"),
            (r"\bin (\d+[smhd])+\b", "IN"),
            (r"\b(\d+(ms|[smhd]))+\b( ago)?|\bnow\b", "SPAN"),
            (r"MOMENT  (ready|runs on .*|held.*)\n", ""),
            (r"changed +(yes|no)", "changed"),
            (r" +", " "),
        ):
            text = re.sub(pattern, word, text)
        said.append(text)
    return answer.code, said[0], said[1]


def live_runs(house: Deployment) -> list[str]:
    """Those that go on by themselves."""
    found = house.by("direct", "runs ls --state held --state ready --state leased --json").json["runs"]
    return [run["id"] for run in found if not run["id"].endswith("-later")]
