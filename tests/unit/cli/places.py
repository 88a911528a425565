"""Run directories on disk, told by a `Tale` and held by whom a test wants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.checkpoints import save, values_of
from tests.unit.views.tales import Tale

from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.store import DiskStore
from surefoot.cli.main import main
from surefoot.core.events import Ordered
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Write
from surefoot.journal import lease, rundir
from surefoot.journal.codec import encode
from surefoot.journal.files import Appender

NOBODY = 2**22 + 1
"""No process has such a pid: Linux counts up to 2**22."""


def put(path: Path, tale: Tale, *, pid: int | None = NOBODY, node: str | None = None) -> Path:
    """Make a run directory whose journal is the tale and whose one term a process holds; None is this one."""
    run = rundir.create(path, "gpt")
    here = lease.this_process()
    there = replace(here, pid=here.pid if pid is None else pid, node=here.node if node is None else node)
    assert lease.take(path, run.run, process=there) == 1
    appender = Appender(path, 1)
    appender.append(1, [encode(line) for line in tale.lines])
    appender.close()
    return path


def with_checkpoints(path: Path, *steps: int) -> Path:
    """Make a run at rest with checkpoints of these steps, both on record and on disk."""
    tale = Tale().term().attempt().turns(max(steps) + 5)
    for order, step in enumerate(steps, 2):
        tale.tell(Ordered(order=order, body=Write(snapshot=SnapshotId(step, 1)), reason="r")).commit(step)
    put(path, tale)
    run = rundir.read(path)
    assert run is not None
    boxes = [Box("model.w", "F32", (64, 32)), Box("model.b", "F32", (32,))]
    for order, step in enumerate(steps, 2):
        save(
            DiskStore(path / "checkpoints"), [boxes], [values_of(boxes, step)], run=run.run, step=step,
            branch=1, lineage=((1, 0),), attempt=1, term=1, order=order,
        )  # fmt: skip
    return path


def surefoot(*arguments: object) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def json_of(*arguments: object) -> Any:
    """Return the JSON that a command prints."""
    ran = surefoot(*arguments, "--json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)
