"""What in a value is the secret?  All of it; but of a whole URL only its password: people must see which server it is.

Whoever is in doubt hides all: a URL is taken apart only if nothing in it can be read in two ways.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, unquote_plus

from pollux.secrets.hidden import HIDE_CHARS_MIN, looks_secret

_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://"
    r"(?:[^\s/?#:@]*(?::(?P<password>[^\s/?#@]*))?@)?"
    r"[^\s/?#@]*(?:/[^\s?#@]*)?(?:\?(?P<options>[^\s?#@]*))?",
    re.IGNORECASE,
)


def whole(value: str) -> list[str]:
    return [value]


def secrets_in_url(value: str) -> list[str]:
    """The password of a URL, and options that announce one, each as it is written and as it is meant.

    All of the value if it is no URL, or holds a secret that is too short to be found again by itself.
    """
    found = _URL.fullmatch(value)
    if found is None:
        return [value]
    options = [part.partition("=") for part in (found["options"] or "").split("&")]
    said = [found["password"] or "", *(text for name, _, text in options if _announces(unquote(name)))]
    forms = {form for text in said for form in (text, unquote(text), unquote_plus(text)) if form}
    return [value] if any(len(form) < HIDE_CHARS_MIN for form in forms) else sorted(forms)


def _announces(name: str) -> bool:
    """Also `sslpassword`, which is one word."""
    return looks_secret(name) or "pass" in name.lower() or "pwd" in name.lower()
