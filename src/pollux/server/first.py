"""How does the first person get in?  A store that never had a token gets an admin's, in a file for its owner alone."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from pollux.app import Pollux

log = logging.getLogger("pollux")


async def make_first_token(app: Pollux, file: Path) -> str:
    """The token, if this start is the first: written to the file, and told where it lies; else nothing."""
    if not await app.needs_first_token():
        return ""
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning(
            "the first token cannot be written to %s (%s): nobody has one yet; cure: name another place with "
            "server.token_file, or `pollux token create --role admin`",
            file,
            error.strerror,
        )
        return ""
    with os.fdopen(descriptor, "w") as paper:
        made = await app.acting_as("server").first_token()
        if made is not None:
            paper.write(f"{made.secret}\n")
    if made is None:
        with suppress(OSError):
            draft.unlink()
        return ""
    draft.replace(file)
    log.info("the first start: an admin's token was made and lies in %s", file)
    return made.secret
