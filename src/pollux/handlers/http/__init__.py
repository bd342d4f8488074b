"""Handler `http`: polls a URL in bounded time and space and detects changes."""

from pollux.handlers.http.handler import Http, register_http

__all__ = ["Http", "register_http"]
