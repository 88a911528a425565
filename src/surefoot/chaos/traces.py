"""What a training script wrote about itself, and whether two runs of it wrote the same.

A line is a word, a step, a rank, and what is told of them: losses as hex, samples, a hash. A turn that
was done again has several lines; the last one counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Key = tuple[str, int, int]
"""Word, step, rank."""

STEP, WEIGHTS = "step", "weights"


class Tail:
    """Reads what has been appended to a file since the last time, in whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[str]:
        """Return the new lines; none if there is no file yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                read = file.read()
        except FileNotFoundError:
            return []
        whole = read[: read.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


def parse(line: str) -> tuple[Key, str]:
    """Return the key of a line and what it tells."""
    word, step, rank, told = line.split(" ", 3)
    return (word, int(step), int(rank)), told


def read(path: Path) -> dict[Key, list[str]]:
    """Return everything a trace tells of each key, oldest first; nothing if there is none."""
    trace: dict[Key, list[str]] = {}
    for line in Tail(path).lines():
        key, told = parse(line)
        trace.setdefault(key, []).append(told)
    return trace


def first_difference(expected: Mapping[Key, list[str]], got: Mapping[Key, list[str]]) -> str | None:
    """Return where two traces part, with what each of them tells; None if they are equal."""
    for key in sorted(expected.keys() | got.keys(), key=lambda key: (key[1], key[2])):
        theirs, ours = expected.get(key, ["nothing"])[-1], got.get(key, ["nothing"])[-1]
        if theirs != ours:
            word, step, rank = key
            where = f"{word} {step}, rank {rank}"
            return f"{where}: the undisturbed run wrote\n  {theirs}\nthe disturbed one\n  {ours}"
    return None
