"""The entry point of `basalt`: runs a command and turns whatever happens into an exit code and at most one line."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from basalt.cli.failures import EXIT_CLOSED_PIPE, EXIT_FAILURE, EXIT_INTERRUPTED, exit_code, one_line
from basalt.cli.root import root
from basalt.errors import BasaltError, not_installed

PROGRAM = "basalt"
COMPLETION_VARIABLE = "_BASALT_COMPLETE"  # set by the script that `basalt completion` prints


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (`sys.argv` by default) and return its exit code; never raises, never shows a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding cannot show is shown as an escape instead of ending the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    asked = os.environ.get(COMPLETION_VARIABLE)
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(root, {}, PROGRAM, COMPLETION_VARIABLE, asked)
    code = _guarded(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _silenced(sys.stdout, EXIT_CLOSED_PIPE)
    except OSError as error:
        code = _silenced(sys.stdout, _report(_output_failure(error), EXIT_FAILURE))
    return code


def _guarded(arguments: Sequence[str]) -> int:
    try:
        # Not click's own main(): it turns a closed pipe into exit code 1 before anybody else sees it.
        with root.make_context(PROGRAM, list(arguments)) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except (click.ClickException, BasaltError) as error:
        return _report(one_line(error), exit_code(error))
    except ModuleNotFoundError as error:
        wanted = not_installed(error)
        if not isinstance(wanted, BasaltError):
            raise
        return _report(one_line(wanted), exit_code(wanted))
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _silenced(sys.stdout, EXIT_CLOSED_PIPE)
    except OSError as error:
        return _silenced(sys.stdout, _report(_output_failure(error), EXIT_FAILURE))
    return result if isinstance(result, int) else 0


def _output_failure(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return f"{error.filename}: {reason}" if error.filename else f"cannot write the output: {reason}"


def _report(line: str, code: int) -> int:
    try:
        click.echo(f"basalt: {line}", err=True)
    except OSError:
        _silenced(sys.stderr, code)
    return code


def _silenced(stream: TextIO, code: int) -> int:
    """Send what is still buffered nowhere, or the interpreter tries it again at exit and complains."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return code


if __name__ == "__main__":
    sys.exit(main())
