"""TLS certificate of the API, reloaded without a restart."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from pollux.errors import InvalidInput

LOOK_S = 10.0  # between two checks of the files, while clients connect
HANDSHAKE_S = 10.0

log = logging.getLogger("pollux")


class Certificate:
    """A certificate and its key, in files that may be replaced while it runs."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._files = (cert, key)
        self._looked = time.monotonic()
        self._mark = _mark(self._files)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        try:
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InvalidInput(
                f"the certificate {cert} with the key {key} cannot be used: {reason}",
                where="server.tls",
                cure="name a certificate (with its chain) and its key, both in PEM, the key without a passphrase",
            ) from error

    def look(self) -> None:
        """Load new files; invalid ones change nothing and are logged once."""
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        mark = _mark(self._files)
        if mark in (self._mark, None):
            return
        self._mark = mark
        try:
            self._load(
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            )  # a certificate without its key must not reach the real context
            self._load(self.context)
        except (OSError, ssl.SSLError) as error:
            log.warning("the new certificate %s cannot be used (%s): the old one stays", self._files[0], error)
        else:
            log.info("the certificate %s was renewed", self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        cert, key = self._files
        context.load_cert_chain(cert, key, password=lambda: "")  # never prompts on a terminal


def _mark(files: tuple[Path, ...]) -> tuple[int, ...] | None:
    try:
        seen = [file.stat() for file in files]
    except OSError:
        return None  # being replaced
    return tuple(number for each in seen for number in (each.st_mtime_ns, each.st_ino, each.st_size))
