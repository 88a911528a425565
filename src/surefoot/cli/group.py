"""Groups of commands that know what was meant, and turn every error into a message and an exit code.

Every error is one message on stderr: exit code 2 for a wrong call, 1 for what can't be done, 70 for a
bug of ours, 130 for Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from surefoot.cli import out
from surefoot.errors import ConfigError, SurefootError

WRONG_CALL, CANNOT, BUG, INTERRUPTED = 2, 1, 70, 130


class Commands(click.Group):
    """A group of commands; the outermost one is the program."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is an error with the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from surefoot.config import did_you_mean

            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run a command and exit."""
        extra["standalone_mode"] = False
        args = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(args, *rest, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = WRONG_CALL
        except click.UsageError as error:
            usage = f"\n{error.ctx.get_usage()}" if error.ctx is not None else ""
            out.complain(f"{error.format_message()}{usage}")
            code = WRONG_CALL
        except click.ClickException as error:
            out.complain(error.format_message())
            code = CANNOT
        except SurefootError as error:
            out.complain(str(error))
            code = WRONG_CALL if isinstance(error, ConfigError) else CANNOT
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except BrokenPipeError:
            # Whoever read has gone (`| head`); nothing more can be said there.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = CANNOT
        except OSError as error:
            out.complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
            code = CANNOT
        except Exception as error:  # noqa: BLE001 - what is left is a bug of ours, and is said so
            code = _bug(error, trace="--traceback" in args)
        sys.exit(code if isinstance(code, int) else 0)


def _bug(error: Exception, *, trace: bool) -> int:
    if trace:
        traceback.print_exception(error)
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        out.complain(
            f"a bug of ours, {type(error).__name__} at {where}: {error}\n"
            "Nothing was changed by it. See where it comes from: surefoot --traceback …, and report it, please."
        )
    return BUG
