"""The command `surefoot`: parse, call a view, print.

Commands import what they need when they run, so that help comes at once.
"""

from __future__ import annotations

import click

import surefoot
from surefoot.cli.ckpt import ckpt
from surefoot.cli.demo import demo
from surefoot.cli.group import Commands
from surefoot.cli.logbook import logbook
from surefoot.cli.status import status
from surefoot.cli.steer import note, save, set_, stop

_EPILOG = """\b
Completion: eval "$(_SUREFOOT_COMPLETE=bash_source surefoot)"   in ~/.bashrc
            eval "$(_SUREFOOT_COMPLETE=zsh_source surefoot)"    in ~/.zshrc
            _SUREFOOT_COMPLETE=fish_source surefoot | source    in config.fish
"""


@click.group(cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(surefoot.__version__, prog_name="surefoot", message="%(prog)s %(version)s")
@click.option("--traceback", is_flag=True, expose_value=False, help="Show where a bug of ours comes from.")
def main() -> None:
    """Look after training runs: what they are doing, what happened, and what to do about it.

    RUN is the directory that the script gave to surefoot.Run.
    """


for _command in (status, logbook, ckpt, save, note, set_, stop, demo):
    main.add_command(_command)
