"""HTTP API of a node."""

from pollux.server.options import ServerOptions, nearby_options, server_options
from pollux.server.server import ApiServer, served

__all__ = ["ApiServer", "ServerOptions", "nearby_options", "served", "server_options"]
