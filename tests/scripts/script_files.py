"""Script files: blocks of commands, a line `---`, and what they answer. Text in, text out; nothing runs here.

    # A comment, anywhere before the `---` of a block.
    publish orders one two
    ---
    @0/0 to @0/1

Blocks are parted by empty lines. The last block may be comments alone.
"""

from __future__ import annotations

from typing import NamedTuple

DIVIDER = "---"


class Block(NamedTuple):
    """Some commands, with the comments between them, and what they answered."""

    commands: list[str]
    output: list[str]

    def text(self) -> str:
        """The block as it stands in a file."""
        divided = [DIVIDER, *self.output] if any(map(is_command, self.commands)) else []
        return "\n".join([*self.commands, *divided]) + "\n"


def is_command(line: str) -> bool:
    """Whether the line is to be run."""
    return bool(line.strip()) and not line.startswith("#")


def parse(text: str) -> list[Block]:
    """The blocks of a file. A block without a divider has no output yet."""
    blocks = []
    for part in text.split("\n\n"):
        lines = part.strip("\n").split("\n")
        if lines == [""]:
            continue
        divider = lines.index(DIVIDER) if DIVIDER in lines else len(lines)
        blocks.append(Block(lines[:divider], lines[divider + 1 :]))
    return blocks


def write(blocks: list[Block]) -> str:
    """The file that these blocks make."""
    return "\n".join(block.text() for block in blocks)
