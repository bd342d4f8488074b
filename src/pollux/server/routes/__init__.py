"""Routes of the HTTP API: one module for each subject, listed in `all_routes`."""

from pollux.server.routes.all_routes import EVERY

__all__ = ["EVERY"]
