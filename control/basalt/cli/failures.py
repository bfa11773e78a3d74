"""Exit codes, and how a failure is told: one line on standard error, what, which, what to do next."""

from __future__ import annotations

import click

from basalt.cli.output import printable
from basalt.errors import BasaltError, ConflictError, InvalidSettingError, NotFoundError, RetryError
from basalt.redaction import without_passwords

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_AUTH = 5
EXIT_UNAVAILABLE = 6
EXIT_FOUND = 7
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE: the reader of the output has gone

_BY_CLASS: tuple[tuple[type[BasaltError], int], ...] = (
    (NotFoundError, EXIT_NOT_FOUND),
    (ConflictError, EXIT_CONFLICT),
    (InvalidSettingError, EXIT_USAGE),
    (RetryError, EXIT_UNAVAILABLE),
)
_AUTH_CODES = frozenset({"unauthenticated", "forbidden"})
_LINE_CHARS_MAX = 2_000  # an error quotes what was wrong; a server's answer could quote without end


class CommandFailure(click.ClickException):
    """A command's own failure, with its exit code and a hint."""

    def __init__(self, message: str, *, hint: str | None = None, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = exit_code


class Usage(click.UsageError):
    """Arguments that do not make sense together, with a hint."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def exit_code(error: BasaltError | click.ClickException) -> int:
    """The exit code of an error, by its class."""
    if isinstance(error, CommandFailure):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    if error.code in _AUTH_CODES:
        return EXIT_AUTH
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), EXIT_FAILURE)


def one_line(error: BasaltError | click.ClickException) -> str:
    """The error and its hint as one printable line."""
    if isinstance(error, BasaltError):
        message, hint = error.message, error.hint
    else:
        message, hint = _click_message(error)
    notes: list[str] = getattr(error, "__notes__", [])
    message = " ".join([message.strip().rstrip("."), *(f"({note})" for note in notes)])
    # Arguments are quoted, and one of them may be a URL with a password: what is cut later must be without it already.
    line = printable(without_passwords(f"{message}; {_continued(hint)}" if hint else message))
    return line if len(line) <= _LINE_CHARS_MAX else line[:_LINE_CHARS_MAX] + "…"


def _continued(hint: str) -> str:
    """A hint as the second half of a sentence."""
    return uncapitalized(hint.strip().rstrip("."))


def uncapitalized(text: str) -> str:
    """A sentence as part of another one; names such as URL keep their capitals."""
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _click_message(error: click.ClickException) -> tuple[str, str | None]:
    hint: str | None = getattr(error, "hint", None)
    if isinstance(error, click.NoSuchOption):
        nearest = sorted(error.possibilities or [])
        if nearest:
            return f"no such option {error.option_name}", f"did you mean {' or '.join(nearest)}?"
        return f"no such option {error.option_name}", _help_hint(error)
    message = uncapitalized(error.format_message())
    if isinstance(error, click.UsageError) and hint is None:
        hint = _help_hint(error)
    return message, hint


def _help_hint(error: click.UsageError) -> str | None:
    return f"see `{error.ctx.command_path} --help`" if error.ctx is not None else None
