"""A file with a secret in it: for its owner alone from the moment on in which it exists, and there whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

MODE = 0o600  # of which a umask takes away at most


class PrivateFile:
    """A file that is made when the block is entered, and filled in it: a folder that takes no file is told of before there is a secret to write.

    `FileExistsError` where the path is taken, unless what is there is to be replaced; then it stays until the new one is whole. A block that
    fills nothing leaves nothing.
    """

    def __init__(self, path: Path, *, replace: bool = False) -> None:
        self._path = path
        self._made = path.with_name(f".{path.name}.{secrets.token_hex(4)}") if replace else path
        self._descriptor = -1
        self._filled = False

    def __enter__(self) -> PrivateFile:
        self._descriptor = os.open(self._made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        return self

    def __exit__(self, *_raised: object) -> None:
        os.close(self._descriptor)
        if not self._filled:
            with suppress(OSError):
                self._made.unlink()

    def fill(self, text: str) -> None:
        """Write the text, and put the file in place."""
        left = text.encode()
        while left:
            left = left[os.write(self._descriptor, left) :]
        os.fsync(self._descriptor)
        if self._made != self._path:
            self._made.replace(self._path)
        self._filled = True
