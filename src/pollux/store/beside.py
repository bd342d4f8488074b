"""Where do the small files of a store lie: the first token, and the socket of the node that serves it?

sqlite:////var/lib/shop.db     /var/lib/shop.db.token    /var/lib/shop.db.sock
redis://..., postgresql://...  in a folder of the user's own, ~/.local/state/pollux (or XDG_STATE_HOME), under a name
                               that is made of the URL without its password, and without what is asked of the store
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

from pollux.store.open import place_of, sqlite_file

TOKEN, SOCKET = ".token", ".sock"
OFF = "off"
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")


def beside(url: str, ending: str) -> Path:
    """The file that belongs to the store of this URL; `ending` says which."""
    file = sqlite_file(url)
    if file is not None:
        return Path(f"{Path(file).absolute()}{ending}")
    kind, _, _ = url.partition(":")
    mark = sha256(_PASSWORD.sub(r"\1@", place_of(url)).encode()).hexdigest()[:12]
    return state_folder() / f"{kind}-{mark}{ending}"


def socket_path(said: str, url: str) -> Path | None:
    """The socket of whoever serves this store: as the option `server.socket` says, else beside the store."""
    if said == OFF:
        return None
    return Path(said).absolute() if said else beside(url, SOCKET)


def state_folder() -> Path:
    """The folder of this user where programs keep what they need again; it is made by whoever writes there."""
    said = os.environ.get("XDG_STATE_HOME", "")
    return (Path(said) if Path(said).is_absolute() else Path.home() / ".local" / "state") / "pollux"
