"""How is a URL polled?  `http: {url: ...}`: in bounded time and space, compared with the last time, told in words."""

from pollux.handlers.http.handler import Http, register_http

__all__ = ["Http", "register_http"]
