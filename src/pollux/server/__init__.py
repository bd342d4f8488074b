"""HTTP API of a node."""

from pollux.server.server import ApiServer, ServerOptions, nearby_options, served, server_options

__all__ = ["ApiServer", "ServerOptions", "nearby_options", "served", "server_options"]
