"""A web process that asks for runs before any node has ever started: real programs, one file of code."""

import subprocess
import sys

import pytest

from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, eventually, stopped

SHOP = """
from pollux import Pollux, every

app = Pollux("sqlite:///shop.db")


@app.job
async def mail(ctx, to: str):
    return f"mailed {to}"


@app.job(every("1h"))
async def stock(ctx):
    return 42
"""
ASYNC = """
import asyncio
from shop import app, mail

async def main():
    await app.open()
    run = await app.enqueue(mail, {"to": "ann"}, id="first")
    print(run.id)
    await app.close()

asyncio.run(main())
"""
SYNC = """
from shop import app, mail

print(app.blocking.enqueue(mail, {"to": "ann"}, id="first").id)
app.blocking.close()
"""


@pytest.mark.parametrize("program", [ASYNC, SYNC], ids=["async", "blocking"])
def test_what_a_producer_asked_for_first_runs_once_a_node_starts(tmp_path, program):
    pollux = SameProcess(tmp_path)
    pollux.write("shop.py", SHOP)
    pollux.write("order.py", program)
    for _ in range(2):  # the second program finds the job, and the run
        asked = subprocess.run(
            [sys.executable, "order.py"],
            cwd=tmp_path,
            env=pollux.environ(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert (asked.returncode, asked.stdout) == (0, "first\n"), asked.stderr
    where = ("--store", "sqlite:///shop.db")
    assert [job["id"] for job in pollux.ok("jobs", "--json", *where).json["jobs"]] == ["mail"]

    with pollux.started("serve", "--app", "shop:app", "--no-watch") as serving:

        def done():
            run = pollux.ok("runs", "show", "first", "--json", *where).json["run"]
            return run if run["state"] == "done" else None

        run = eventually(done, "the run ended", serving)
        assert run["result"] == "mailed ann"
        assert stopped(serving).code == 0
    jobs = pollux.ok("jobs", "--json", *where).json["jobs"]
    assert sorted(job["id"] for job in jobs) == ["mail", "stock"]
