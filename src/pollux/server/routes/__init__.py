"""What can be asked over HTTP?  A file for each subject, all of them listed in `every`."""

from pollux.server.routes.every import EVERY

__all__ = ["EVERY"]
