"""Routes of the HTTP API: one module for each subject, listed in the order of the documentation."""

from pollux.server.routes import dead_letters, events, health, jobs, openapi, pauses, rpc, runs, scheduler, tokens

EVERY = (
    jobs.routes,
    runs.routes,
    dead_letters.routes,
    scheduler.routes,
    health.routes,
    pauses.routes,
    health.nodes,
    events.routes,
    tokens.routes,
    health.probes,
    openapi.routes,
    rpc.routes,
)
OPEN_PATHS = frozenset(each.path for group in EVERY for each in group.operations if each.role is None)

__all__ = [
    "EVERY",
    "OPEN_PATHS",
    "dead_letters",
    "events",
    "health",
    "jobs",
    "openapi",
    "pauses",
    "rpc",
    "runs",
    "scheduler",
    "tokens",
]
