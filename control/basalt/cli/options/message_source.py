"""Where `basalt publish` gets its messages from: arguments, a file as one message, or the lines of a file."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from basalt.cli.output.failures import Failure, Usage

MESSAGE_BYTES_MAX = 10 * 1024 * 1024  # the server's default limit of a body; a longer line is surely not a message
BATCH_BYTES_MAX = 4 * 1024 * 1024  # a request well below that limit, and a progress bar that moves


def messages(given: Sequence[bytes], file: str | None, *, lines: bool) -> Iterator[bytes]:
    """The messages in order. `file` is a path or "-" for standard input; with `lines` each of its lines is a message."""
    if given and file is not None:
        raise Usage("messages are given both as arguments and with --file", hint="leave one of them out")
    if lines and file is None:
        raise Usage("--lines needs --file", hint="add --file PATH, or --file - for standard input")
    if not given and file is None:
        raise Usage("there is no message to publish", hint="give messages as arguments, or --file PATH or --file -")
    if file is None:
        return iter(given)
    return _lines(file) if lines else iter([_whole(file)])


def batches(source: Iterable[bytes], messages_max: int) -> Iterator[list[bytes]]:
    """The messages in lists of at most `messages_max` and about `BATCH_BYTES_MAX`; none is empty."""
    batch: list[bytes] = []
    batch_bytes = 0
    for message in source:
        if batch and (len(batch) >= messages_max or batch_bytes + len(message) > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(message)
        batch_bytes += len(message)
    if batch:
        yield batch


def size_bytes(file: str | None) -> int | None:
    """How much there is to read, when a file can tell."""
    if file is None or file == "-":
        return None
    try:
        return Path(file).stat().st_size or None
    except OSError:
        return None


@contextmanager
def _reading(file: str) -> Iterator[BinaryIO]:
    try:
        if file == "-":
            yield sys.stdin.buffer
        else:
            with Path(file).open("rb") as source:
                yield source
    except OSError as error:
        if error.filename is None and error.errno != errno.EIO:
            raise  # not the file's fault: the messages read so far are sent while it is open
        raise Failure(f"cannot read {file}: {os.strerror(error.errno or 0)}") from None


def _whole(file: str) -> bytes:
    with _reading(file) as source:
        content = source.read(MESSAGE_BYTES_MAX + 1)
    if len(content) > MESSAGE_BYTES_MAX:
        raise Failure(
            f"{file} is longer than a message may be, {MESSAGE_BYTES_MAX} bytes", hint="did you mean --lines?"
        )
    return content


def _lines(file: str) -> Iterator[bytes]:
    number = 0
    with _reading(file) as source:
        while line := source.readline(MESSAGE_BYTES_MAX + 2):
            number += 1
            message = line.removesuffix(b"\n")
            if len(message) > MESSAGE_BYTES_MAX:
                raise Failure(f"line {number} of {file} is longer than a message may be, {MESSAGE_BYTES_MAX} bytes")
            yield message
