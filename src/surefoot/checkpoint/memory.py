"""How much memory is to be had before somebody is killed for it.

Asking for shared memory that isn't there is no error on Linux: the kernel grants pages until none is
left and then ends a process of its choice, seldom the one that asked. So look first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available_bytes(root: Path = Path("/")) -> int:
    """Return what the machine and every control group around this process leave, caches counted as free."""
    meminfo = _numbers(root / "proc/meminfo")
    return max(0, min(meminfo["MemAvailable:"] * 1024, *_left_by_groups(root)))


def _left_by_groups(root: Path) -> Iterator[int]:
    yield 1 << 62  # no group at all
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, cache = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        group = Path(path.lstrip("/"))
        for directory in (root / mount / each for each in (group, *group.parents)):
            try:
                most, used = (int((directory / file).read_text()) for file in (limit, usage))
                yield most - used + _numbers(directory / "memory.stat").get(cache, 0)
            except (OSError, ValueError):
                continue  # the root group, one outside of our namespace, or no limit ("max")


def _numbers(path: Path) -> dict[str, int]:
    """Return the lines `name number …` of a file of the kernel."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
