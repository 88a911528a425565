"""`RUN/inbox/ID.json`: what people and other programs ask of a live run.

A request is written aside and renamed in, so that the brain never meets half of one. The brain
journals it as `asked` and removes it; until then it is safe where it lies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surefoot.errors import JournalError
from surefoot.journal import atomic
from surefoot.journal.codec import LINE_BYTES_MAX, seal, unseal


def leave(run_dir: Path, request: dict[str, Any]) -> str:
    """Leave a request and return its id; ids sort by the time they were left."""
    inbox = run_dir / "inbox"
    inbox.mkdir(exist_ok=True)
    id = f"{time.time_ns():019d}-{os.urandom(4).hex()}"
    atomic.replace(inbox / f"{id}.json", seal(request))
    return id


def collect(run_dir: Path, report: Callable[[str], None]) -> list[tuple[str, dict[str, Any]]]:
    """Return (id, request) of everything left and not removed, oldest first.

    What can't be read is renamed to ID.bad and told to `report`.
    """
    inbox = run_dir / "inbox"
    found = []
    for path in sorted(inbox.glob("[!.]*.json")):
        try:
            found.append((path.stem, _read(path)))
        except FileNotFoundError:
            continue  # another command took it back
        except JournalError as error:
            path.rename(path.with_suffix(".bad"))
            report(f"{path}: {error}. Expected a sealed request; set aside as {path.stem}.bad: ask again")
    return found


def remove(run_dir: Path, id: str) -> None:
    """Remove a request that is on record."""
    (run_dir / "inbox" / f"{id}.json").unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    if path.stat().st_size > LINE_BYTES_MAX:
        raise JournalError(f"larger than {LINE_BYTES_MAX:,} bytes")
    return unseal(path.read_bytes())
