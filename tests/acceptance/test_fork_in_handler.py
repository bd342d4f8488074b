"""Handlers that fork: their node goes on, and no copy of it does."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, multiprocessing, os, sys, time
import uvloop
from pollux import Pollux

app = Pollux("sqlite:///p.db", seats=8)
begun = asyncio.Event()


def note(word):
    with open("notes", "a") as file:
        file.write(f"{word}\\n")


def fork(word):
    pid = os.fork()
    note(f"{word} {'parent' if pid else 'child'}")
    return pid


@app.job(isolate=ISOLATE)
def plain(ctx):
    return {"child": fork("plain")}


@app.job(isolate=ISOLATE)
def leaves(ctx):
    pid = fork("leaves")
    if pid == 0:
        sys.exit(5)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


@app.job(isolate=ISOLATE)
async def loops(ctx):
    pid = fork("loops")
    await asyncio.sleep(0.01)
    note(f"loops {'parent' if pid else 'child'} went on")
    return {"child": pid}


@app.job(isolate=ISOLATE)
async def exits(ctx):
    pid = fork("exits")
    await asyncio.sleep(0)
    if pid == 0:
        sys.exit(5)
    return {"child": pid}


@app.job(isolate=ISOLATE)
def pooled(ctx):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


@app.job
async def bystander(ctx):
    begun.set()
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    note("bystander went on")


async def main():
    async with app:
        ids = [(await app.enqueue(bystander)).id]
        await begun.wait()
        for job in (plain, leaves, loops, exits, pooled):
            ids.append((await app.enqueue(job)).id)
        while not all([(await app.get_run(id)).is_finished for id in ids[1:]]):
            await asyncio.sleep(0.01)
        open("go", "w").close()
        while not (await app.get_run(ids[0])).is_finished:
            await asyncio.sleep(0.01)
        runs = [await app.get_run(id) for id in ids]
    print(json.dumps({run.job_id: [run.state, run.fence, run.result, run.error] for run in runs}), flush=True)
    while True:  # what the handlers forked ends by itself
        try:
            os.wait()
        except ChildProcessError:
            break
    print("no child is left", flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=LOOP) as runner:
        runner.run(main())
"""
LOOPS = ("asyncio.new_event_loop", "uvloop.new_event_loop")


@pytest.fixture
def played(tmp_path):
    """The program in a folder of its own; it is ended with all that it forked, whatever comes."""

    def play(isolate: str, loop: str = LOOPS[0]) -> tuple[dict, list[str], str]:
        (tmp_path / "forks.py").write_text(PROGRAM.replace("ISOLATE", repr(isolate)).replace("LOOP", loop))
        words = [sys.executable, "-W", "ignore::DeprecationWarning", "forks.py"]
        process = subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
        told, *rest = out.splitlines() or ["{}"]
        assert rest == ["no child is left"], (out, err)
        return json.loads(told), (tmp_path / "notes").read_text().splitlines(), err

    return play


@pytest.mark.parametrize("loop", LOOPS)
def test_a_fork_in_a_handler_leaves_one_node(played, loop):
    runs, notes, err = played("never", loop)
    assert {name: run[:2] for name, run in runs.items()} == {name: ["done", 1] for name in runs}
    assert runs["leaves"][2] == {"code": 5}
    assert runs["pooled"][2] == [1, 2], "whoever forks and does not come back is left alone"
    assert sorted(notes) == sorted(
        [
            *("plain parent", "plain child", "leaves parent", "leaves child", "loops parent", "loops child"),
            *("exits parent", "exits child", "loops parent went on", "bystander went on"),
        ]
    )
    assert err.count("a handler forked") == 3, err


def test_a_fork_in_an_isolated_handler_answers_once(played):
    runs, notes, _ = played("process")
    assert {name: run[:2] for name, run in runs.items()} == {name: ["done", 1] for name in runs}
    assert runs["pooled"][2] == [1, 2]
    assert runs["plain"][2]["child"] > 0, "the answer is the handler's own, not that of its copy"
    assert runs["loops"][2]["child"] > 0
    assert notes.count("bystander went on") == 1
