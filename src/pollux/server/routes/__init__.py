"""What can be asked over HTTP?  A file for each subject, all of them listed here."""

from pollux.server.routes import nodes, probes

EVERY = (probes.routes, nodes.routes)

__all__ = ["EVERY"]
