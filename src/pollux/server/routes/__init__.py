"""What can be asked over HTTP?  A file for each subject, all of them listed here."""

from pollux.server.routes import nodes, probes, tokens, verbs

EVERY = (probes.routes, nodes.routes, tokens.routes, verbs.routes)

__all__ = ["EVERY"]
