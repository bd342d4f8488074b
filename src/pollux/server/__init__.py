"""How is it steered from outside?  The HTTP API of a node: one door for people, programs and the command line."""

from pollux.server.life import Server, served
from pollux.server.options import ServerOptions, nearby_options, server_options

__all__ = ["Server", "ServerOptions", "nearby_options", "served", "server_options"]
