"""Bearer keys, each with a scope, stored in a file as hashes.

A key is `hk_ID_SECRET`. The secret is long and random, so one round of SHA-256 is enough to protect it. The file does
not contain the keys themselves; a key is shown once, when it is created.

`read` may read, `write` may also send messages and stop, `approve` may also answer approvals: all in the sessions that
the same key has created. `admin` may use all sessions, and delete them. The key in `HALTER_KEY` is an admin key and is
never written anywhere. The file is read again when it changes: a revoked key is refused at once. What it had opened
before, event streams and WebSockets, is closed by the next heartbeat; a WebSocket takes no further command.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from halter.toolbox.files.atomic import locked_folder, write_whole
from halter.toolbox.files.workspace import Workspace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SCOPES", "Key", "KeyFile", "Keys", "Scope"]

Scope: TypeAlias = Literal["read", "write", "approve", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "approve", "admin")
_PREFIX: Final = "hk"
_ENVIRONMENT: Final = "environment"
_MAX_AUTO: Final = 10  # keys of the page, one from each start: browsers may still have the latest ones


class Key(msgspec.Struct, frozen=True):
    """A stored key. `auto` means that the gateway created it by itself, for the page."""

    id: str
    name: str
    scope: Scope
    digest: str
    created_at: float = 0.0
    auto: bool = False

    def allows(self, scope: Scope) -> bool:
        """Whether it includes *scope*: each scope includes those before it."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def may_use(self, owner: str) -> bool:
        """Whether it may use a session that the key with the id *owner* created; an unknown owner is empty."""
        return self.scope == "admin" or self.id == owner

    @property
    def title(self) -> str:
        """The name for records of who asked or answered."""
        return f"gateway key {self.name!r}"


class KeyFile:
    """A file of keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Key]:
        """All keys. Raises `OSError` or `ValueError` if the file cannot be read."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Key])
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            msg = f"{self.path} is damaged: {error}"
            raise ValueError(msg) from error

    def create(self, name: str, scope: Scope, *, auto: bool = False) -> str:
        """Create a key and return it; it cannot be read again. Of the *auto* ones only the latest stay valid."""
        key_id = secrets.token_hex(4)
        text = f"{_PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
        with locked_folder(self.path.parent):
            keys = [*self.read(), Key(key_id, name, scope, _digest(text), time.time(), auto)]
            old = [key.id for key in keys if key.auto][:-_MAX_AUTO]
            self._write([key for key in keys if key.id not in old])
        return text

    def revoke(self, key_id: str) -> bool:
        """Remove a key by its id or name; False if there is none."""
        with locked_folder(self.path.parent):
            keys = self.read()
            left = [key for key in keys if key_id not in (key.id, key.name)]
            if len(left) < len(keys):
                self._write(left)
        return len(left) < len(keys)

    def _write(self, keys: list[Key]) -> None:
        """Replace the file atomically."""
        with Workspace(self.path.parent).find(self.path.name) as place:
            write_whole(place, msgspec.json.format(msgspec.json.encode(keys)), 0o600)

    def stamp(self) -> tuple[int, int, int]:
        """A value that changes with the file."""
        try:
            found = self.path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_size, found.st_ino)


class Keys:
    """The valid keys: that of the environment, and those of the file."""

    def __init__(self, file: KeyFile | None = None, own: str | None = None) -> None:
        self._file = file
        self._own = Key(_ENVIRONMENT, _ENVIRONMENT, "admin", _digest(own)) if own else None
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Key] = {}

    @property
    def are_explicit(self) -> bool:
        """Whether a person has set or created one."""
        return self._own is not None or any(not key.auto for key in self._stored().values())

    def __bool__(self) -> bool:
        return self._own is not None or bool(self._stored())

    def find(self, text: str) -> Key | None:
        """The key with this text; None if it is unknown or was revoked."""
        digest = _digest(text)
        if self._own is not None and hmac.compare_digest(self._own.digest, digest):
            return self._own
        parts = text.split("_", 2)
        key = self._stored().get(parts[1]) if len(parts) > 2 else None  # noqa: PLR2004  (prefix, id, secret)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def valid(self) -> dict[str, Key]:
        """The valid keys by their ids. Looks whether the file has changed."""
        own = {} if self._own is None else {self._own.id: self._own}
        return {**self._stored(), **own}

    def is_valid(self, key: Key) -> bool:
        """Whether a key that `find()` has returned was not revoked since then."""
        return self.valid().get(key.id) == key

    def _stored(self) -> dict[str, Key]:
        if self._file is None:
            return {}
        stamp = self._file.stamp()
        if stamp != self._stamp:
            try:
                self._known = {key.id: key for key in self._file.read()}
                self._stamp = stamp
            except (OSError, ValueError):
                self._known = {}  # an unreadable file does not say which keys were revoked: refuse all
                self._stamp = None
        return self._known


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
