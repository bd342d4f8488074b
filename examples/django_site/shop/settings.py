"""The least that Django needs here; `SHOP_FOLDER` is where the two database files are."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("SHOP_FOLDER", "."))
SECRET_KEY = "only for this example"  # noqa: S105
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "shop.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
POLLUX_STORE = f"sqlite:///{FOLDER / 'pollux.db'}"
