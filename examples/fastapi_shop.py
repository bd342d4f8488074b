"""A FastAPI app that plans and runs jobs in its own process: `uvicorn fastapi_shop:api`."""

from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from pollux import Pollux, every
from pollux.errors import NotFound

jobs = Pollux("sqlite:///shop.db", name="shop")


@jobs.job(every("30s"), timeout="5s")
async def stock(ctx):
    return {"apples": 3}


@jobs.job(retry={"attempts": 3, "base": "2s"})
async def confirm(ctx, order: int):
    return {"mailed": order}  # ctx.run.id is the key to pass on: an attempt may come twice


@asynccontextmanager
async def lifespan(api):
    async with jobs:  # starts with the server; at its end running handlers have the grace to finish
        yield


api = FastAPI(lifespan=lifespan)


@api.post("/orders/{order}", status_code=202)
async def place(order: int):
    run = await jobs.enqueue(confirm, {"order": order}, id=f"confirm-{order}")  # asked twice, it is one run
    return {"run": run.id}


@api.get("/runs/{run_id}")
async def look(run_id: str):
    try:
        run = await jobs.get_run(run_id)
    except NotFound as error:
        raise HTTPException(404, str(error)) from error
    return {"state": run.state, "result": run.result}
