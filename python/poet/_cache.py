"""A folder of small files that later runs start from: damaged entries are dropped, never used."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poet._errors import ArgumentError, CacheWarning
from poet._warn import warn

# Note [Entries of the cache]
# One file an entry: a line with the format's version and the SHA-256 of the rest, then the rest,
# which is zlib over JSON with the entry's whole key and its payload. The file's name is a hash of
# the key. Files are written under another name and renamed, so a reader sees all of an entry or
# nothing, and two processes may share a folder without locks: the last writer wins, and both wrote
# something that holds. The hash finds damage, not malice: who reads a payload checks it as if a
# stranger had written it.
_VERSION = 1
_MAGIC = b"poet-cache"
_KINDS = ("trace", "plan", "store", "profile")
_NAME = re.compile(rf"(?:{'|'.join(_KINDS)})-[0-9a-f]{{40}}\.poet")
_TEMPORARY = re.compile(r"\.new-[0-9a-f]{16}\.poet")
_HEADER_BYTES = 128
_MAX_FILE_BYTES = 1 << 26
_MAX_JSON_BYTES = 1 << 29
_MAX_FOLDER_BYTES = 1 << 28
_ABANDONED_SECONDS = 3600.0


class _DamagedError(Exception):
    """Why an entry cannot be used."""


def default_cache_dir() -> Path:
    """$POET_CACHE_DIR, $XDG_CACHE_HOME/poet or ~/.cache/poet."""
    own = os.environ.get("POET_CACHE_DIR")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "poet"


def open_cache(cache_dir: object) -> Cache | None:
    """The cache that the argument `cache_dir` of poet's functions asks for.

    Args:
        cache_dir: a folder (made when the first entry is written), True for the user's cache
            folder, None or False for no cache.

    Returns:
        The cache; None for none, and for True where POET_CACHE_DIR is set and empty.

    Raises:
        ArgumentError: it is something else, or names a file.
    """
    if cache_dir is None or cache_dir is False:
        return None
    if cache_dir is True:
        if os.environ.get("POET_CACHE_DIR") == "":
            return None
        try:
            return Cache(default_cache_dir())
        except RuntimeError:  # a user without a home
            return None
    if not isinstance(cache_dir, str | os.PathLike) or not os.fspath(cache_dir):
        raise ArgumentError(
            "cache_dir: expected a folder, True for the user's cache folder, or None for no "
            f"cache; got {cache_dir!r}."
        )
    try:
        if b"\0" in os.fsencode(cache_dir):
            raise ValueError("a zero byte")
        folder = Path(os.fsdecode(cache_dir)).expanduser()
        is_other = folder.exists() and not folder.is_dir()
    except (RuntimeError, ValueError, OSError) as error:  # no such home, a zero byte, too long
        raise ArgumentError(f"cache_dir: expected a folder, got {cache_dir!r}: {error}") from error
    if is_other:
        raise ArgumentError(
            f"cache_dir: expected a folder; {folder} is a file. Name a folder, which may be new."
        )
    return Cache(folder)


class Cache:
    """Entries in one folder. Thread-safe; processes may share the folder."""

    def __init__(self, folder: Path, *, max_bytes: int = _MAX_FOLDER_BYTES) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def get(self, kind: str, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """The payload that was put under this key; None where there is none that can be used."""
        path = self._path(kind, key)
        try:
            payload = _decode(_read(path), key)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except (OSError, MemoryError) as error:
            why = getattr(error, "strerror", None) or "memory is short"
            self._warn(str(path), f"{path} cannot be read ({why}); going on without it.")
            return None
        except _DamagedError as damage:
            self.drop(kind, key, str(damage))
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # what is used lives longest
        return payload

    def put(self, kind: str, key: Mapping[str, Any], payload: Mapping[str, Any]) -> bool:
        """Keeps the payload under this key. False, and a warning once, where that cannot be."""
        try:
            data = _encode(key, payload)
            if len(data) > min(_MAX_FILE_BYTES, self._max_bytes):
                return False
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(self._path(kind, key), data)
            self._trim()
        except (OSError, MemoryError) as error:
            why = getattr(error, "strerror", None) or str(error) or "memory is short"
            self._warn(
                "unwritable",
                f"nothing can be kept in {self.folder} ({why}); going on "
                "without. Name another folder with cache_dir=, or pass cache_dir=None.",
            )
            return False
        return True

    def drop(self, kind: str, key: Mapping[str, Any], why: str) -> None:
        """Removes an entry that cannot be used, and says so."""
        path = self._path(kind, key)
        with contextlib.suppress(OSError):
            path.unlink()
        self._warn(f"{path}: {why}", f"the entry {path} is dropped, since {why}.")

    def size(self) -> tuple[int, int]:
        """Number of entries and their bytes."""
        sizes = [size for _, size, _ in self._entries()]
        return len(sizes), sum(sizes)

    def _path(self, kind: str, key: Mapping[str, Any]) -> Path:
        if kind not in _KINDS:
            raise ValueError(f"kind: expected one of {_KINDS}; got {kind!r}")
        return self.folder / f"{kind}-{digest(key)[:40]}.poet"

    def _write(self, path: Path, data: bytes) -> None:
        temporary = self.folder / f".new-{os.urandom(8).hex()}.poet"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _entries(self) -> list[tuple[float, int, Path]]:
        """Time of last use, bytes and path of each entry; nothing else in the folder is touched."""
        found = []
        try:
            listing = list(os.scandir(self.folder))
        except OSError:
            return []
        for item in listing:
            if not _NAME.fullmatch(item.name):
                continue
            with contextlib.suppress(OSError):  # another process removed it meanwhile
                status = item.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime, status.st_size, Path(item.path)))
        return found

    def _trim(self) -> None:
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size
        with contextlib.suppress(OSError):
            for item in os.scandir(self.folder):
                if _TEMPORARY.fullmatch(item.name):
                    with contextlib.suppress(OSError):
                        if item.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                            os.unlink(item.path)

    def _warn(self, what: str, text: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        warn(f"poet's cache: {text}", CacheWarning)


def digest(thing: object) -> str:
    """SHA-256 of something that JSON can write, in hexadecimal digits."""
    return hashlib.sha256(_canonical(thing)).hexdigest()


def _canonical(thing: object) -> bytes:
    text = json.dumps(thing, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _encode(key: Mapping[str, Any], payload: Mapping[str, Any]) -> bytes:
    body = zlib.compress(_canonical({"key": dict(key), "payload": dict(payload)}), 6)
    header = b"%s %d %s\n" % (_MAGIC, _VERSION, hashlib.sha256(body).hexdigest().encode())
    return header + body


def _read(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if path.is_symlink():
            raise _DamagedError("it is a link") from error
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _DamagedError("it is not a file")
        if status.st_size > _MAX_FILE_BYTES:
            raise _DamagedError(f"it has {status.st_size} bytes, more than any entry")
        # What is read must not be limited by what might be: memory may be short.
        return file.read(status.st_size + 1)


def _decode(data: bytes, key: Mapping[str, Any]) -> dict[str, Any]:
    header, newline, body = data[:_HEADER_BYTES].partition(b"\n")
    words = header.split(b" ")
    if not newline or len(words) != 3 or words[0] != _MAGIC:
        raise _DamagedError("it does not begin as entries do")
    if words[1] != b"%d" % _VERSION:
        raise _DamagedError(f"its format has version {words[1].decode('ascii', 'replace')[:20]}")
    body = data[len(header) + 1 :]
    if hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise _DamagedError("its bytes are not those that were written")
    content = _parse(body)
    if not isinstance(content, dict) or content.get("key") != json.loads(_canonical(dict(key))):
        raise _DamagedError("it holds something else than its name says")
    payload = content.get("payload")
    if not isinstance(payload, dict):
        raise _DamagedError("it holds no payload")
    return payload


def _parse(body: bytes) -> object:
    unpack = zlib.decompressobj()
    try:
        text = unpack.decompress(body, _MAX_JSON_BYTES)
        if not unpack.eof:
            raise _DamagedError("it unpacks to more than any entry holds, or ends too soon")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError, MemoryError) as error:
        raise _DamagedError(f"it cannot be unpacked ({type(error).__name__})") from error


__all__ = ["Cache", "default_cache_dir", "digest", "open_cache"]
