"""Escapes control and bidirectional characters in names and payloads, so that no terminal acts on them.

A payload with an escape sequence in it could otherwise recolour, rewrite or retitle the terminal of whoever looks at it,
and one with a right-to-left override could show something other than it says.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u00ad\u061c\u180e"  # soft hyphen, Arabic letter mark, Mongolian vowel separator
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width, line separators, bidirectional controls
    "\ufeff\ufff9-\ufffb"  # byte order mark, interlinear annotations
    "\ud800-\udfff"  # surrogates: bytes of an argument or a file name that were not UTF-8
    "\U000e0000-\U000e0fff"  # tags
    "]"
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text on one line, with unsafe characters as \\n, \\x1b, \\u202e; backslashes stay as they are."""
    return _UNSAFE.sub(_escape, text)


def printable_bytes(payload: bytes) -> str:
    """A payload as text; bytes that are not UTF-8 as \\xff."""
    return printable(payload.decode("utf-8", errors="backslashreplace"))


def safe_json(text: str) -> str:
    """JSON with unsafe characters inside its strings as \\u escapes; line ends stay."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _json_escape(match[0]), text)


def safe_yaml(text: str) -> str:
    """YAML whose strings with unsafe characters are all in double quotes, with those escaped; line ends stay."""
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _escape(match), text)


def is_safe(text: str) -> bool:
    """True if `printable` would leave the text as it is."""
    return _UNSAFE.search(text) is None


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    code = ord(character)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
