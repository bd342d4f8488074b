"""What can be asked over HTTP?  A file for each subject, all of them listed in `every`."""

from pollux.server.routes.all_routes import EVERY

__all__ = ["EVERY"]
