"""Small files that are there whole or not at all, whoever dies while they are written.

Every file is written aside, synced, and only then given its name; the folder is synced last. A crash
leaves at most a file whose name begins with a dot.
"""

from __future__ import annotations

import os
from pathlib import Path


def create(path: Path, data: bytes) -> bool:
    """Make the file, unless one of that name is there; return whether it is ours.

    Of any number of processes on any number of hosts exactly one gets True.
    """
    aside = _write_aside(path, data)
    try:
        path.hardlink_to(aside)
        ours = True
    except FileExistsError:
        # NFS may do it, lose the answer and try again: then the number of links tells (open(2)).
        ours = aside.stat().st_nlink == 2
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return ours


def replace(path: Path, data: bytes) -> None:
    """Make the file, in place of one that may be there."""
    aside = _write_aside(path, data)
    try:
        aside.rename(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which names the folder has."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_aside(path: Path, data: bytes) -> Path:
    aside = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    return aside
