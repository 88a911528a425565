"""Every file operation of the checkpoints, in one place, so that a test can fail or kill the n-th.

A file gets its name only when all its bytes are on the disk: it is written under a temporary name,
fsynced, renamed. Names are relative to the root, of one or two parts, and never lead out of it; links
that point elsewhere are not followed. Any refusal of the file system is a `StoreUnavailable` that
keeps the errno and names file and operation.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from surefoot.errors import CorruptCheckpoint, StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

Fault = Callable[[int, str], None]
"""Called before every operation with its number, from 1, and "operation name"."""


class NewFile:
    """A file being written; it has no name yet that a reader looks for."""

    def __init__(self, store: DiskStore, name: str, fd: int) -> None:
        self._store, self._name, self._fd = store, name, fd
        self._synced = False

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        self._synced = False
        left = memoryview(data)
        while left:
            written = self._store.do("write", self._name, os.pwrite, self._fd, left, offset)
            left, offset = left[written:], offset + written

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        if not self._synced:
            self._store.do("fsync", self._name, os.fsync, self._fd)
            self._synced = True


class OldFile:
    """A file being read."""

    def __init__(self, store: DiskStore, name: str, fd: int) -> None:
        self._store, self._name, self._fd = store, name, fd

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill a buffer of bytes from `offset` on; raises `CorruptCheckpoint` where the file ends before."""
        while buffer:
            got = self._store.do("read", self._name, os.preadv, self._fd, [buffer], offset)
            if got == 0:
                raise CorruptCheckpoint(
                    f"{self._name} ends at byte {offset:,}, {len(buffer):,} more were expected: "
                    "it was cut after it had been written; use another checkpoint"
                )
            buffer, offset = buffer[got:], offset + got


class DiskStore:
    """The checkpoints of a run in a directory, RUN/checkpoints."""

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root = root
        self.calls = 0
        """Operations so far."""
        self._fault = fault

    def do(self, operation: str, name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Carry out one operation: count it, let it fail or be killed by a test, say what went wrong."""
        self.calls += 1
        try:
            if self._fault is not None:
                self._fault(self.calls, f"{operation} {name}")
            return call(*args, **kwargs)
        except OSError as error:
            raise self._refused(operation, name, error) from error

    def make_dir(self, name: str) -> None:
        """Make a directory and its name durable, the root too; fine if it is there."""
        for path in (self.root, self._at(name)):
            self.do("mkdir", name, path.mkdir, exist_ok=True)
            self._sync_dir(path.parent, name)

    @contextmanager
    def create(self, name: str) -> Iterator[NewFile]:
        """Write a new file: under its name and synced when the block is left, gone if by an exception.

        The directory still needs `sync_dir`, once for all files written to it.
        """
        path = self._at(name)
        # Every writer has a temporary name of its own: one that hung and was replaced may wake up.
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self.do("create", name, os.open, temporary, flags, 0o666)
        try:
            try:
                file = NewFile(self, name, fd)
                yield file
                file.sync()
            finally:
                self.do("close", name, os.close, fd)
            self.do("rename", name, temporary.rename, path)
        except BaseException:
            try:
                temporary.unlink(missing_ok=True)
            except OSError:
                pass  # what went wrong first is what matters; the directory goes as a whole later
            raise

    def put(self, name: str, data: bytes) -> None:
        """Write a small file whole and durable, name included."""
        with self.create(name) as file:
            file.write(data, 0)
        self.sync_dir(str(Path(name).parent))

    def link(self, name: str, to: str) -> None:
        """Give a file a second name."""
        self.do("link", to, self._at(to).hardlink_to, self._at(name))

    @contextmanager
    def open(self, name: str) -> Iterator[OldFile]:
        """Read a file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self.do("open", name, os.open, self._at(name), flags)
        try:
            yield OldFile(self, name, fd)
        finally:
            os.close(fd)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return a small file; raises `CorruptCheckpoint` if it is absent or larger than `bytes_max`."""
        size = self.size(name)
        if size is None or size > bytes_max:
            found = "is not there" if size is None else f"has {size:,} bytes"
            raise CorruptCheckpoint(f"{name} {found}: expected a file of at most {bytes_max:,} bytes")
        data = bytearray(size)
        with self.open(name) as file:
            file.read_into(0, memoryview(data))
        return bytes(data)

    def size(self, name: str) -> int | None:
        """Return a file's bytes, or None where there is none; raises `CorruptCheckpoint` if it is no file."""
        found = self._stat(name)
        if found is None:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise CorruptCheckpoint(
                f"{name} is no regular file: a checkpoint holds neither links that point elsewhere nor "
                "devices; use another checkpoint"
            )
        return found.st_size

    def is_dir(self, name: str) -> bool:
        """Tell whether that is a directory itself, not a link to one."""
        found = self._stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def names(self, name: str = ".") -> list[str]:
        """Return what is in a directory, sorted; nothing where there is none."""
        return sorted(self.do("list", name, _listed, self._at(name)))

    def remove(self, name: str) -> None:
        """Take a file's name away; fine if it is gone."""
        self.do("remove", name, self._at(name).unlink, missing_ok=True)

    def remove_dir(self, name: str) -> None:
        """Remove an empty directory."""
        self.do("rmdir", name, self._at(name).rmdir)

    def sync_dir(self, name: str = ".") -> None:
        """Wait until the names in a directory are on the disk."""
        self._sync_dir(self._at(name), name)

    def _sync_dir(self, path: Path, name: str) -> None:
        fd = self.do("open", name, os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.do("fsync dir", name, os.fsync, fd)
        finally:
            os.close(fd)

    def _stat(self, name: str) -> os.stat_result | None:
        return self.do("stat", name, _stat, self._at(name))

    def _at(self, name: str) -> Path:
        parts = name.split("/")
        if name != "." and (any(part in {"", ".", ".."} or "\0" in part for part in parts)):
            raise CorruptCheckpoint(
                f"the name {name!r} leads out of {self.root}: expected one inside; do not use it"
            )
        return self.root / name

    def _refused(self, operation: str, name: str, error: OSError) -> StoreUnavailable:
        refused = StoreUnavailable(
            f"cannot {operation} {self.root / name}: {error.strerror or error}; expected the file system to do "
            "it; check that it is mounted, writable and has room, then try again"
        )
        refused.errno = error.errno
        return refused


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _listed(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.iterdir()]
    except FileNotFoundError:
        return []
