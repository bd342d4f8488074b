"""List of all routes, in the order of the documentation."""

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
