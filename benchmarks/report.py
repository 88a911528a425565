"""What every benchmark prints and keeps: a table, and the same as JSON (`--json FILE`).

A figure never stands alone: `against` names the rival or the limit that was measured in the same run,
`ratio` is the figure over it, and `reach` is the bar. One that does not hold says so and is no error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    against: str
    ratio: float
    reach: str
    holds: bool


def report(measures: Mapping[str, Callable[[], Figure]]) -> None:
    """Take the figures that the command line asks for, all of them by default; print and keep them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures here")
    parser.add_argument("--only", choices=measures, action="append", help="take this one; may be repeated")
    asked = parser.parse_args()
    figures = [measures[name]() for name in asked.only or measures]
    machine = f"{os.cpu_count()} {platform.machine().replace('_', '-')} cores, CPU"
    table = Table(title=machine)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("against")
    table.add_column("ratio", justify="right")
    table.add_column("reach")
    table.add_column("holds")
    for figure in figures:
        value, ratio = f"{figure.value:,.4g} {figure.unit}", f"{figure.ratio:,.3g}"
        table.add_row(figure.name, value, figure.against, ratio, figure.reach, "yes" if figure.holds else "NO")
    Console().print(table)
    if asked.json is not None:
        content = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine,
            "figures": [asdict(figure) for figure in figures],
        }
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(content, indent=2) + "\n")
