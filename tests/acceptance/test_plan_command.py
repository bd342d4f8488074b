"""`pollux plan`: what comes, of a file, of a store, of a file on its store; and the picture of the herd."""

import asyncio
import re
import time

import pytest

from pollux import Pollux
from pollux.cli.output import now_ms
from pollux.model import Interval, Job, JobUpdate, Memory, Plan
from pollux.units import moment_ms
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

CONFIG = """\
store: sqlite:///p.db
jobs:
  - {id: home, python: "work:fine", interval: 30s, group: edge, tags: [fast]}
  - {id: dump, python: "work:fine", cron: "30 2 * * *", tz: Europe/Berlin, target: db-1}
  - {id: often, python: "nowhere:nothing", cron: "0 * * * *", tz: Europe/Berlin}
  - {id: off, python: "work:fine", interval: 1m, enabled: false}
  - {id: asked, python: "work:fine"}
"""
WHERE = ("-c", "p.yaml")
SPRING, AUTUMN = "2030-03-30T23:30:00Z", "2030-10-26T22:30:00Z"  # the nights in which Berlin's clocks jump


@pytest.fixture
def pollux(tmp_path):
    here = SameProcess(tmp_path)
    here.write("p.yaml", CONFIG)
    return here


def told(pollux, *arguments):
    return pollux.ok("plan", *arguments, "--json").json


def hours(text):
    """The lines of the picture, by where they begin."""
    return re.findall(r"^ *(?:\S+ )?(\d\d:\d\d:\d\d)  ", text.partition("firings per")[2], re.MULTILINE)


def test_a_file_is_planned_before_anything_is_started(pollux):
    """No store, no code: neither is needed, and none is made."""
    answer = told(pollux, *WHERE, "--at", SPRING, "--for", "6h")
    assert not (pollux.folder / "p.db").exists()
    assert (answer["jobs"], answer["firing_jobs"], answer["nodes"]) == (5, 3, 0)
    assert answer["firings"][0]["job_id"] == "home"
    assert answer["firings"][0]["at_ms"] == moment_ms(SPRING), "the first run of an interval is at once"
    assert sum(bucket["firings"] for bucket in answer["buckets"]) == answer["total"]
    assert answer["bucket_ms"] == 60_000
    assert {quiet["kind"]: quiet["count"] for quiet in answer["quiet"]} == {"disabled": 1, "asked": 1}


def test_the_file_and_a_start_of_it_agree(pollux):
    """The phases that the plan shows are those that the real leader gives."""
    apart = Terminal(pollux.folder)
    pollux.write("p.yaml", CONFIG.replace("nowhere:nothing", "work:fine"))
    before = told(pollux, *WHERE, "--limit", "100", "--for", "30m")
    with apart.started("serve", *WHERE) as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)

        def next_dues():
            jobs = apart("jobs", *WHERE, "--json")
            dues = {job["id"]: job["next_due_ms"] for job in jobs.json["jobs"]} if jobs.code == 0 else {}
            return dues if dues.get("home") and dues.get("dump") else None

        dues = eventually(next_dues, "all are planned", process)
        assert stopped(process).code == 0
    assert dues["home"] in {row["at_ms"] for row in before["firings"] if row["job_id"] == "home"}
    after = told(pollux, *WHERE, "--limit", "1000", "--for", "24h")
    assert "started now on sqlite:///p.db" in after["basis"]
    assert dues["dump"] in {row["at_ms"] for row in after["firings"] if row["job_id"] == "dump"} | {
        told(pollux, *WHERE, "--job", "dump", "--for", "24h")["firings"][0]["at_ms"]
    }


def test_a_file_is_laid_over_its_store_as_a_start_would(pollux):
    """What the file dropped is gone, what it changed is placed anew, what it kept keeps its due, others' jobs stay."""

    async def fill(*jobs: Job) -> int:
        app = Pollux(f"sqlite:///{pollux.folder}/p.db")
        await app.open()
        await app.put_jobs(jobs)
        term = await app._store.elect("n", ttl_ms=60_000)
        soon = now_ms() + 60_000
        updates = tuple(JobUpdate(job.id, 1, soon, Memory(), soon - 3_600_000) for job in jobs)
        await app._store.advance(term.number, Plan(updates=updates))
        await app.close()
        return soon

    hourly = {"handler": "work:fine", "schedule": Interval(3_600_000)}
    mine = [Job(id=name, source="file:p.yaml", **hourly) for name in ("kept", "changed", "dropped")]
    soon = asyncio.run(fill(*mine, Job(id="other", **hourly)))
    pollux.write(
        "p.yaml",
        "store: sqlite:///p.db\njobs:\n"
        '  - {id: kept, python: "work:fine", interval: 1h}\n'
        '  - {id: changed, python: "work:fine", interval: 30m}\n'
        '  - {id: added, python: "work:fine", interval: 1h}\n',
    )
    answer = told(pollux, *WHERE, "--for", "2h", "--limit", "100")
    first = {row["job_id"]: row["at_ms"] for row in reversed(answer["firings"])}
    assert set(first) == {"kept", "changed", "added", "other"}
    assert first["kept"] == first["other"] == soon
    assert first["changed"] != soon
    assert first["added"] <= now_ms(), "a new one comes at once"


@pytest.mark.parametrize(
    ("choice", "jobs"),
    [
        (("--job", "dump"), {"dump"}),
        (("--group", "edge"), {"home"}),
        (("--target", "db-1"), {"dump"}),
        (("--tag", "fast"), {"home"}),
        (("--group", "nobody"), set()),
    ],
)
def test_jobs_can_be_chosen(pollux, choice, jobs):
    answer = told(pollux, *WHERE, *choice, "--at", SPRING, "--for", "6h", "--limit", "10000")
    assert {row["job_id"] for row in answer["firings"]} == jobs


def test_the_night_in_which_the_clocks_go_forward_is_marked(pollux):
    """02:30 does not exist: dump runs at 03:00 local, and the picture has no line for two o'clock."""
    arguments = (*WHERE, "--at", SPRING, "--for", "5h", "--tz", "Europe/Berlin")
    text = pollux.ok("plan", *arguments).out
    assert "! the clocks of Europe/Berlin go forward by 1h at 2030-03-31T01:00:00Z" in text
    assert hours(text) == ["00:30:00", "01:00:00", "03:00:00", "04:00:00", "05:00:00", "06:00:00"]
    assert re.search(r"03:00:00 .*< the clocks jumped", text)
    [dump] = told(pollux, *arguments, "--job", "dump")["firings"]
    assert dump["at_ms"] == moment_ms("2030-03-31T03:00:00+02:00")


def test_the_night_in_which_an_hour_comes_twice_has_two_lines_for_it(pollux):
    text = pollux.ok("plan", *WHERE, "--at", AUTUMN, "--for", "4h", "--tz", "Europe/Berlin").out
    assert hours(text) == ["00:30:00", "01:00:00", "02:00:00", "02:00:00", "03:00:00"]
    assert "go back by 1h at 2030-10-27T01:00:00Z" in text


def test_people_see_local_and_utc_times_the_herd_and_its_peak(pollux):
    jobs = "".join(f'  - {{id: herd-{n}, python: "work:fine", cron: "0 4 * * *"}}\n' for n in range(40))
    pollux.write("p.yaml", f"store: memory://\njobs:\n{jobs}")
    arguments = (*WHERE, "--at", "2030-01-01T00:00:00Z", "--tz", "Asia/Kolkata", "--limit", "2")
    text = pollux.ok("plan", *arguments).out
    assert "40 of 40 jobs fire 40 times" in text
    assert re.search(r"^2030-01-01 09:30:00  2030-01-01T04:00:00Z  herd-0  cron 0 4 \* \* \*$", text, re.MULTILINE)
    assert "and 38 more in this window" in text
    assert re.search(r"09:00:00  \.{30}█\.+ +40  < peak 40", text)
    assert "peak at 2030-01-01 09:30:00: 40 firings in 1m" in text


def test_a_terminal_that_knows_no_blocks_gets_digits(pollux):
    pollux.write("p.yaml", CONFIG)
    apart = Terminal(pollux.folder)
    text = apart.ok("plan", *WHERE, "--at", SPRING, "--for", "1h", environ={"PYTHONIOENCODING": "ascii"}).out
    assert re.search(r"00:00:00  .*8", text)


def test_of_a_store_pauses_holds_and_overdue_jobs_are_told(pollux):
    async def fill() -> int:
        app = Pollux(f"sqlite:///{pollux.folder}/s.db")
        await app.open()
        await app.put_jobs([Job(id=name, handler="h", schedule=Interval(60_000), target="t") for name in "abc"])
        await app.enqueue("a")
        await app.pause("b", reason="moving house")
        await app.close()

    asyncio.run(fill())
    where = ("--store", f"sqlite:///{pollux.folder}/s.db")
    text = pollux.ok("plan", *where).out
    assert "1 paused: their due times are skipped (b)" in text
    assert "job b is paused: moving house" in text
    assert "held now, and coming besides: 1 run\n" in text
    assert "no node lives on this store" in text
    answer = told(pollux, *where)
    assert (answer["firing_jobs"], answer["held"], answer["nodes"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--for", "soon"), "is not a duration"),
        (("--for", "0s"), "a window of nothing"),
        (("--at", "tomorrow"), "is not a moment"),
        (("--tz", "Europe/Berlim"), "did you mean Europe/Berlin?"),
        (("--limit", "-1"), "--limit"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_cure(pollux, arguments, what):
    answer = pollux("plan", *WHERE, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert what in answer.err


def test_a_store_that_is_not_there_is_not_made(pollux):
    answer = pollux("plan", "--store", "sqlite:///none.db")
    assert answer.code == 3
    assert not (pollux.folder / "none.db").exists()


def test_the_past_of_a_store_is_not_its_plan(pollux):
    asyncio.run(opened_once(f"sqlite:///{pollux.folder}/s.db"))
    answer = pollux("plan", "--store", "sqlite:///s.db", "--at", "2020-01-01T00:00:00Z")
    assert answer.code == 2
    assert "is past" in answer.err


async def opened_once(url: str) -> None:
    app = Pollux(url)
    await app.open()
    await app.close()


def test_a_big_store_is_planned_in_a_moment(pollux):
    """Twenty thousand jobs, seven million firings: two seconds on any machine, and five for one that is busy."""

    async def fill() -> None:
        app = Pollux(f"sqlite:///{pollux.folder}/big.db")
        await app.open()
        for start in range(0, 20_000, 1_000):
            await app.put_jobs(
                [Job(id=f"job-{n}", handler="h", schedule=Interval(60_000)) for n in range(start, start + 1_000)]
            )
        await app.close()

    asyncio.run(fill())
    began = time.process_time()
    answer = told(pollux, "--store", "sqlite:///big.db", "--limit", "10")
    assert time.process_time() - began < 5
    assert (answer["firing_jobs"], len(answer["firings"])) == (20_000, 10)
    assert 7_180_000 <= answer["total"] <= 7_220_000
