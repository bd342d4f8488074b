"""Client of a node: `Remote` has the verbs of the app, over the HTTP API."""

from pollux.client.address import NodeAddress, address_of, is_address, socket_url
from pollux.client.remote import Remote

__all__ = ["NodeAddress", "Remote", "address_of", "is_address", "socket_url"]
