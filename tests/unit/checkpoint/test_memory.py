"""How much memory is to be had, on machines made of files."""

from __future__ import annotations

from pathlib import Path

from surefoot.checkpoint.memory import available_bytes

GIB = 1 << 30


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    meminfo = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB\nHugePages_Total: 0\n"
    for name, text in {"proc/meminfo": meminfo, "proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_machine_without_groups(tmp_path: Path) -> None:
    """Without a limit it is what the kernel says is available."""
    assert available_bytes(machine(tmp_path, "0::/\n", {})) == 32 * GIB


def test_the_narrowest_group_decides(tmp_path: Path) -> None:
    """Every group around the process counts, the caches in it as free."""
    top = "sys/fs/cgroup/job"
    files = {
        f"{top}/memory.max": str(8 * GIB),
        f"{top}/memory.current": str(6 * GIB),
        f"{top}/memory.stat": f"anon {5 * GIB}\ninactive_file {GIB}\n",
        f"{top}/task/memory.max": "max\n",
        f"{top}/task/memory.current": "1",
    }
    assert available_bytes(machine(tmp_path, "0::/job/task\n", files)) == 3 * GIB


def test_the_first_version_of_groups(tmp_path: Path) -> None:
    """Version 1 is read too; a group that isn't to be seen here is passed over."""
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
        "sys/fs/cgroup/memory/memory.usage_in_bytes": str(5 * GIB),
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0\n",
    }
    assert available_bytes(machine(tmp_path, "9:cpu:/x\n4:memory:/elsewhere\n0::/\n", files)) == 0


def test_this_machine_has_some() -> None:
    """The machine the tests run on is read without an error."""
    assert available_bytes() > 0
