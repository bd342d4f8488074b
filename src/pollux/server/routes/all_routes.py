"""Which subjects are there?  Every one has a file of its own, listed here in the order in which they are told."""

from pollux.server.routes import (
    dead_letters,
    docs,
    events,
    health,
    job_actions,
    jobs,
    nodes,
    pauses,
    probes,
    rpc,
    runs,
    scheduler,
    tokens,
)

EVERY = (
    jobs.routes,
    job_actions.routes,
    runs.routes,
    dead_letters.routes,
    scheduler.routes,
    health.routes,
    pauses.routes,
    nodes.routes,
    events.routes,
    tokens.routes,
    probes.routes,
    docs.routes,
    rpc.routes,
)
