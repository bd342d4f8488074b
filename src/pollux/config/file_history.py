"""History of a config file: the texts that were applied, and going back to an earlier one.

The last few are kept as they were, each in a file that only its owner reads (0600), in a folder that only its owner
enters (0700): next to the store if that is a file, else next to the config:

    pollux.db.versions/pollux.yaml/1790000000000-3f2a9c0d11ab77e5.yaml        when, and the digest of the text

They hold references to secrets, and a secret only if the config does.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

from msgspec import Struct

from pollux.config.load import digest_of
from pollux.errors import Conflict, InvalidInput, NotFound

KEPT_MAX = 10
REPLACED = "replaced.yaml"  # the latest text that a rollback replaced before it was applied
DIGEST_CHARS_MIN = 4  # a prefix of at least so many names a version, if it is unique
_NAME = re.compile(r"(\d{1,16})-([0-9a-f]{16})\.yaml\Z")


class SavedText(Struct, frozen=True):
    """One text that was applied."""

    digest: str
    at_ms: int
    path: str

    def read(self) -> bytes:
        raw = Path(self.path).read_bytes()
        if digest_of(raw) != self.digest:
            raise Conflict(f"{self.path} is not what was saved; remove it, or choose another version")
        return raw


class FileHistory:
    """The texts of one file that were applied, oldest first."""

    def __init__(self, config: str | os.PathLike[str], *, store_file: str | os.PathLike[str] | None = None) -> None:
        self.config = Path(config)
        if store_file is None:
            self.folder = self.config.parent / f".{self.config.name}.versions"
            self._folders: tuple[Path, ...] = (self.folder,)
        else:
            above = Path(f"{store_file}.versions")
            self.folder = above / self.config.name
            self._folders = (above, self.folder)

    def all(self) -> list[SavedText]:
        with contextlib.suppress(OSError):
            found = ((_NAME.match(path.name), path) for path in self.folder.iterdir())
            kept = [SavedText(name[2], int(name[1]), str(path)) for name, path in found if name is not None]
            return sorted(kept, key=lambda each: (each.at_ms, each.path))
        return []

    def keep(self, raw: bytes, now_ms: int) -> None:
        """Record that this text was applied; the same text twice in a row is one version.  Raises `OSError`."""
        self._make_folder()
        kept = self.all()
        digest = digest_of(raw)
        if kept and kept[-1].digest == digest:
            return
        at_ms = max(now_ms, kept[-1].at_ms + 1 if kept else 0)  # a clock that jumped back does not reorder them
        _write(self.folder / f"{at_ms}-{digest}.yaml", raw, mode=0o600)
        for old in kept[: max(0, len(kept) + 1 - KEPT_MAX)]:
            with contextlib.suppress(FileNotFoundError):  # another node was quicker
                Path(old.path).unlink()

    def before(self, current: str, to: str | None = None) -> SavedText:
        """Return the version to go back to: the one of that digest, else the latest that is not the current text."""
        kept = self.all()
        if to is not None:
            found = {each.digest: each for each in kept if len(to) >= DIGEST_CHARS_MIN and each.digest.startswith(to)}
            if len(found) != 1:
                raise NotFound("version", to, cure="`pollux reload --versions` lists them")
            return next(iter(found.values()))
        for each in reversed(kept):
            if each.digest != current:
                return each
        what = f"no other text of {self.config} was applied yet: there is none in {self.folder}"
        raise Conflict(what, cure="change the file itself, it is read again by itself; from then on this one is kept")

    def refuse_unwritable(self) -> None:
        """Raise `InvalidInput` where the file may not be written."""
        if self.config.is_symlink():
            raise InvalidInput(
                f"{self.config} is a link to {self.config.readlink()}, and a link is not written through",
                cure="roll back what it is deployed by (a ConfigMap, a release); it is read again by itself",
            )
        if not os.access(self.config.parent, os.W_OK) or self._is_read_only():
            raise InvalidInput(
                f"{self.config} cannot be written by this user",
                cure="do it as its owner, or copy the text by hand: `pollux reload --versions` shows where it is",
            )

    def _is_read_only(self) -> bool:
        """Whether its mode has no write bit; such a file is not written by root, either."""
        if not self.config.exists():
            return False
        return not self.config.stat().st_mode & 0o222 or not os.access(self.config, os.W_OK)

    def keep_replaced(self, raw: bytes) -> str:
        """Keep a text that is about to be replaced and was never applied; return where (empty: it was applied)."""
        if any(each.digest == digest_of(raw) for each in self.all()):
            return ""
        self._make_folder()
        place = self.folder / REPLACED
        _write(place, raw, mode=0o600)
        return str(place)

    def _make_folder(self) -> None:
        """Create the folder for its owner alone, and remove the rights of others, as far as it is ours."""
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _shut(folder, 0o700)
        for path in self.folder.glob("*.yaml"):
            _shut(path, 0o600)

    def put_back(self, raw: bytes) -> None:
        """Replace the file's text atomically; its mode and owner stay."""
        self.refuse_unwritable()
        there = self.config.stat() if self.config.exists() else None
        owner = None if there is None else (there.st_uid, there.st_gid)
        _write(self.config, raw, mode=0o600 if there is None else there.st_mode & 0o7777, owner=owner)


def last_texts(config: str | os.PathLike[str]) -> list[SavedText]:
    """Return the last applied texts of a file that is missing, one for each place where its history may be."""
    path, ending = Path(config), ".versions"
    places = [FileHistory(path)]
    with contextlib.suppress(OSError):
        stores = [folder.name.removesuffix(ending) for folder in sorted(path.absolute().parent.glob(f"*{ending}"))]
        places += [FileHistory(path, store_file=path.parent / store) for store in stores]
    return [kept[-1] for place in places if (kept := place.all())]


def _shut(path: Path, mode: int) -> None:
    with contextlib.suppress(PermissionError, FileNotFoundError):  # another user's, or removed meanwhile
        if path.stat().st_mode & 0o077:
            path.chmod(mode)


def _write(path: Path, raw: bytes, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            if owner is not None and owner != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):  # the group may still be one of ours
                    os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
