"""What several commands take. Light: `surefoot --help` loads it and nothing heavier."""

from __future__ import annotations

from pathlib import Path

import click

RUN = click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
"""A run's directory; what is wrong with it is said by `runs.run_file`."""

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
