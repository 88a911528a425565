"""`RUN/run.json`: what makes a directory a run. Created once, exclusively; never rewritten."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from surefoot.errors import ForeignRun, JournalError
from surefoot.journal import atomic
from surefoot.journal.codec import FORMAT, from_json, seal, to_json, unseal

_FILE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """What `run.json` says."""

    run: str
    """32 hex digits, drawn when the run was created."""
    name: str
    format: int


def create(run_dir: Path, name: str) -> RunFile:
    """Make the directory a run.

    Where several try at once, one creates it and all get what that one wrote. Raises ForeignRun if
    something else is in the directory.
    """
    found = read(run_dir)
    if found is not None:
        return found
    # A link that leads nowhere yet (the run was moved aside) gets its directory where it points.
    real = Path(os.path.realpath(run_dir))
    real.mkdir(parents=True, exist_ok=True)
    atomic.sync_folder(real.parent)
    made = RunFile(run=os.urandom(16).hex(), name=name, format=FORMAT)
    if atomic.create(run_dir / _FILE, seal(to_json(made))):
        return made
    found = read(run_dir)
    assert found is not None
    return found


def read(run_dir: Path) -> RunFile | None:
    """Return the run of a directory; None if it is absent or empty.

    Raises ForeignRun if it holds anything else, or a run that this version can't read.
    """
    path = run_dir / _FILE
    try:
        # What create() leaves aside when it dies makes no directory foreign.
        names = sorted(p.name for p in run_dir.iterdir() if not p.name.startswith(f".{_FILE}."))
        if not names:
            return None
        if _FILE not in names:
            what = ", ".join(names[:3]) + (", …" if names[3:] else "")
            raise ForeignRun(
                f"{run_dir} is no run: it has {what}, but no {_FILE}. "
                "Expected a run, an empty directory or none; choose another"
            )
        found = from_json(RunFile, unseal(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (JournalError, NotADirectoryError) as error:
        raise ForeignRun(
            f"{path} can't be read: {error}. Expected what was written when the run was created; restore it "
            "from a copy, or start over with --fresh, which moves the directory aside"
        ) from error
    if found.format > FORMAT:
        raise ForeignRun(
            f"{path} is of format {found.format}. "
            f"Expected at most {FORMAT}; use the newer surefoot that wrote it"
        )
    return found


def move_aside(run_dir: Path) -> Path:
    """Rename the directory to RUN.old-DATE-TIME, deleting nothing, and return its new path."""
    real = Path(os.path.realpath(run_dir))
    old = f"{real.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (real.with_name(f"{old}-{n}" if n > 1 else old) for n in count(1))
    aside = next(path for path in names if not path.exists())
    real.rename(aside)
    atomic.sync_folder(real.parent)
    return aside
