"""A config file that is reloaded, the code that it names, and an app that has loaded it."""

from pollux import Pollux
from pollux.config import load_config
from tests.runtime.test_app import until

WORK = """
async def one(ctx): return 1
async def two(ctx): return 2
"""


FIRST = """
pool: {seats: 3}
jobs:
  - {id: a, python: "reload_work:one", interval: 1h}
  - {id: b, python: "reload_work:one", interval: 1h}
"""


SECOND = """
pool: {seats: 5}
jobs:
  - {id: a, python: "reload_work:one", interval: 1h}
  - {id: b, python: "reload_work:two", interval: 2h}
  - {id: c, python: "reload_work:two", interval: 1h}
"""


def an_app(store="memory://", path="p.yaml", *, plans=True, **arguments):
    config = load_config(path, environ={}, arguments={"store": store} | arguments)
    return Pollux.from_config(config, plans=plans)


async def truly(look, what):
    async def looked():
        return look()

    return await until(looked, what)


async def all_jobs(app):
    return {job.id: job for job in (await app.operations.jobs.list_jobs(limit=1_000)).jobs}


async def planned(app, *ids):
    """The jobs, once they have fired for the first time and rest until the next."""

    async def look():
        jobs = await all_jobs(app)
        return jobs if all(job_id in jobs and jobs[job_id].memory.ended for job_id in ids) else None

    return await until(look, f"{ids} are planned")
