"""What can be asked over HTTP?  A file for each subject, all of them listed here."""

from pollux.server.routes import (
    dead_letters,
    docs,
    events,
    health,
    job_actions,
    jobs,
    nodes,
    probes,
    runs,
    scheduler,
    stops,
    tokens,
    verbs,
)

EVERY = (
    jobs.routes,
    job_actions.routes,
    runs.routes,
    dead_letters.routes,
    scheduler.routes,
    health.routes,
    stops.routes,
    nodes.routes,
    events.routes,
    tokens.routes,
    probes.routes,
    docs.routes,
    verbs.routes,
)

__all__ = ["EVERY"]
