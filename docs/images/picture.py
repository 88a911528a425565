"""Runs the demo in a terminal of its own and keeps what it printed as demo.svg: the README's picture.

.venv/bin/python docs/images/picture.py [--seed N …]
"""  # noqa: INP001 - a script beside its picture, in no package

from __future__ import annotations

import io
import os
import pty
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 104


def main() -> int:
    """Run the demo with the arguments given; write the picture only if it held."""
    printed = bytearray()

    def keep(fd: int) -> bytes:
        data = os.read(fd, 4096)
        printed.extend(data)
        return data

    os.environ |= {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    status = os.waitstatus_to_exitcode(
        pty.spawn([str(Path(sys.executable).with_name("surefoot")), "demo", *sys.argv[1:]], keep)
    )
    if status == 0:
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        console.print(Text.from_ansi(printed.decode().replace("\r\n", "\n")))
        console.save_svg(str(Path(__file__).with_name("demo.svg")), title="surefoot demo")
    return status


if __name__ == "__main__":
    sys.exit(main())
