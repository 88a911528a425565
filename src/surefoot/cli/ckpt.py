"""`surefoot ckpt`: what is on the disk, whether it is what was written, and what is in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from surefoot.cli import out
from surefoot.cli.group import Commands
from surefoot.cli.params import JSON, RUN

if TYPE_CHECKING:
    from surefoot.checkpoint.store import DiskStore
    from surefoot.views.checkpoints import Inspection, Row, Verified


@click.group(cls=Commands)
def ckpt() -> None:
    """Look at the checkpoints of a run: list, verify, inspect."""


def _names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a checkpoint."""
    folder = Path(ctx.params["run"]) / "checkpoints"
    return sorted(path.name for path in folder.glob(f"{incomplete}*") if path.is_dir())


@ckpt.command("ls", short_help="List them, and which one a start would begin with.")
@RUN
@JSON
def ls(run: Path, *, as_json: bool) -> None:
    """List the checkpoints; → marks the one that a start from disk would begin with."""
    rows = _listed(run)
    if as_json:
        out.as_json(rows)
        return
    if not rows:
        out.say(f"{run} has no checkpoint yet")
        return
    from rich.table import Table
    from rich.text import Text

    from surefoot.views.words import local, size

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("checkpoint", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("saved", no_wrap=True)
    table.add_column("state", overflow="fold")
    for row in rows:
        table.add_row(
            "→" if row.resumes else "",
            row.name or "(gone)",
            f"{row.step:,}" if row.step is not None else "",
            size(row.bytes) if row.bytes else "",
            f"{local(row.at_ns):%m-%d %H:%M:%S}" if row.at_ns is not None else "",
            Text(_state(row), "red" if row.why_not or row.mark == "suspect" else ""),
        )
    out.show(table)


def _state(row: Row) -> str:
    if row.why_not:
        return row.why_not
    parts = [
        row.mark,
        "pinned" if row.pinned else "",
        "" if row.on_lineage else f"of branch {row.branch}, left behind",
    ]
    return ", ".join(filter(None, parts))


def _listed(run: Path) -> tuple[Row, ...]:
    from surefoot.checkpoint.commit import discover
    from surefoot.cli.runs import run_file
    from surefoot.journal import cache
    from surefoot.views.checkpoints import checkpoints

    file = run_file(run)
    before, found, state = cache.fold(run), discover(_store(run)), cache.fold(run)
    # What was committed after the disk was looked at is not missing there.
    seen = {snapshot.id for snapshot in before.catalogue}
    seen |= {each.manifest.snapshot for each in found if each.manifest is not None}
    state = replace(state, catalogue=tuple(s for s in state.catalogue if s.id in seen))
    return checkpoints(state, file.run, found)


def _store(run: Path, watch: Callable[[int, str], None] | None = None) -> DiskStore:
    from surefoot.checkpoint.store import DiskStore

    return DiskStore(run / "checkpoints", watch)


@ckpt.command(short_help="Read every byte and compare it with what was written.")
@RUN
@click.argument("names", metavar="[NAME]…", nargs=-1, shell_complete=_names)
@JSON
def verify(run: Path, names: tuple[str, ...], *, as_json: bool) -> None:
    """Read every byte of the checkpoints and compare it with what was written.

    NAME is a directory's or a step; without one, all. Exits with 1 if anything is wrong.
    """
    from surefoot.checkpoint.commit import verify as read_all
    from surefoot.views.checkpoints import Verified

    rows = _listed(run)
    if names:
        chosen, results, unfinished = [_resolve(run, rows, name) for name in names], [], []
    else:
        chosen = [row.name for row in rows if row.name and row.step is not None]
        results = [_gone(row) for row in rows if not row.name]
        unfinished = [row for row in rows if row.step is None]
    with _progress(run, chosen) as watch:
        store = _store(run, watch)
        for name in chosen:
            problems = tuple(read_all(store, name))
            row = next(row for row in rows if row.name == name)
            if problems and not names and _is_deleted(run, row):
                continue
            results.append(Verified(name=name, bytes=row.bytes, problems=problems))
    if as_json:
        out.as_json(results)
    else:
        _tell(run, results, unfinished)
    sys.exit(1 if any(result.problems for result in results) else 0)


def _is_deleted(run: Path, row: Row) -> bool:
    """Tell whether a checkpoint was pruned while it was read."""
    from surefoot.core.numbers import SnapshotId
    from surefoot.journal import cache
    from surefoot.views.checkpoints import leaving

    assert row.step is not None
    assert row.branch is not None
    # In this order: a deletion that is over has left no directory, one that isn't is on record.
    return SnapshotId(row.step, row.branch) in leaving(cache.fold(run)) or not _store(run).is_dir(row.name)


def _gone(row: Row) -> Verified:
    from surefoot.checkpoint.commit import Problem
    from surefoot.views.checkpoints import Verified

    name = f"step {row.step:,} (branch {row.branch})"
    return Verified(name=name, bytes=row.bytes, problems=(Problem(name, row.why_not),))


def _tell(run: Path, results: list[Verified], unfinished: list[Row]) -> None:
    from surefoot.views.words import many, size

    for result in results:
        if not result.problems:
            out.say(f"{result.name}  {click.style('whole', fg='green')}  {size(result.bytes)}")
            continue
        out.say(f"{result.name}  {click.style(many(len(result.problems), 'problem'), fg='red')}")
        for problem in result.problems:
            chunk = f" (chunk {problem.chunk})" if problem.chunk is not None else ""
            differs = f": {problem.got}, expected {problem.expected}" if problem.expected else ""
            out.say(f"  {problem.file}{chunk}: {problem.what}{differs}")
    for row in unfinished:
        out.say(f"{row.name}  not a checkpoint: {row.why_not}")
    if not results and not unfinished:
        out.say(f"{run} has no checkpoint yet")


@contextmanager
def _progress(run: Path, names: list[str]) -> Iterator[Callable[[int, str], None] | None]:
    """Show how far the reading is, to a person at a terminal; yield what to call before each operation."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    from surefoot.checkpoint.reader import Checkpoint
    from surefoot.errors import CheckpointError

    chunks = 0
    for name in names:
        try:
            chunks += sum(len(seal.chunks) for seal in Checkpoint.open(_store(run), name).files.values())
        except CheckpointError:
            pass  # it is told when it is verified
    with Progress(console=out.console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=max(1, chunks))

        def watch(_: int, operation: str) -> None:
            if operation.startswith("read ") and operation.endswith(".safetensors"):
                progress.advance(task)

        yield watch


@ckpt.command(short_help="Show the tensors and plain values in one.")
@RUN
@click.argument("name", metavar="NAME", shell_complete=_names)
@JSON
def inspect(run: Path, name: str, *, as_json: bool) -> None:
    """Show what is in a checkpoint: its manifest, its tensors, its plain values.

    NAME is a directory's or a step.
    """
    from surefoot.checkpoint.reader import Checkpoint
    from surefoot.journal.codec import to_json
    from surefoot.views.checkpoints import inspect as view

    checkpoint = Checkpoint.open(_store(run), _resolve(run, _listed(run), name))
    manifest = checkpoint.manifest
    inside = view(checkpoint.name, manifest, to_json(manifest), checkpoint.index)
    if as_json:
        out.as_json(inside)
    else:
        _print(inside)


def _print(inside: Inspection) -> None:
    from rich.table import Table
    from rich.text import Text

    from surefoot.views.words import local, many, size

    about = inside.manifest
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    way = " → ".join(f"{branch} from step {step:,}" for branch, step in about["lineage"])
    facts.add_row("  step", f"{about['step']:,} of branch {about['branch']} ({way})")
    facts.add_row(
        "  saved",
        f"{local(about['at_ns']):%Y-%m-%d %H:%M:%S}, attempt {about['attempt']}, term {about['term']}",
    )
    place = f", sample {about['sample']:,}" if about["unit"] == "sample" else ""
    facts.add_row("  next", f"batch {about['batch']:,}{place}")
    facts.add_row(
        "  size",
        f"{size(about['bytes'])} from {many(about['world']['size'], 'rank')}, layout {about['layout']}",
    )
    facts.add_row("  made by", ", ".join(f"{name} {version}" for name, version in about["versions"].items()))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("tensor", overflow="fold")
    table.add_column("dtype", no_wrap=True)
    table.add_column("shape", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("parts", justify="right", no_wrap=True)
    for tensor in inside.tensors:
        shape = " × ".join(f"{n:,}" for n in tensor.shape) or "scalar"
        table.add_row(tensor.name, tensor.dtype, shape, size(tensor.bytes), str(tensor.parts))
    values = Table(box=None, pad_edge=False, header_style="dim")
    values.add_column("plain value (rank 0)", overflow="fold")
    values.add_column("", overflow="fold")
    for path, value in inside.plain.items():
        values.add_row(path, value)
    out.show(Text(inside.name, "bold"), facts, table, values)


def _resolve(run: Path, rows: tuple[Row, ...], name: str) -> str:
    """Return the directory that a name or a step means. Raises ConfigError with the nearest where none does."""
    from surefoot.config import did_you_mean
    from surefoot.errors import ConfigError

    names = [row.name for row in rows if row.name]
    if name in names:
        return name
    step = name.replace(",", "")
    found = [row.name for row in rows if row.name and step.isdigit() and row.step == int(step)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{run} has several checkpoints of step {name}: {', '.join(found)}; name one")
    raise ConfigError(
        f"{run} has no checkpoint {name!r}{did_you_mean(name, names)}; list them: surefoot ckpt ls {run}"
    )
