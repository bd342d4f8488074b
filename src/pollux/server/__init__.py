"""How is it steered from outside?  The HTTP API of a node: one door for people, programs and the command line."""

from pollux.server.options import ServerOptions, nearby_options, server_options
from pollux.server.server import ApiServer, served

__all__ = ["ApiServer", "ServerOptions", "nearby_options", "served", "server_options"]
