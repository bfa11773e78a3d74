"""Leaves out of lines that people read the user and the password of a URL.

Errors quote what was wrong, and a URL that was refused for the password in it must not be quoted with it. Every line of the
server's log and of the command line's errors comes through here, whatever wrote it.
"""

from __future__ import annotations

import re

HIDDEN = "***"

# From :// to the last @ of the word, for what is no proper URL may have / : or @ in its password. Not so where a host ends
# first, with or without a port: the @ is part of a path then.
_USER_OF_URL = re.compile(r'(?<=://)(?!(?:\[[^\]\s]*\]|[^\s/?#@:"]+)(?::\d{1,5})?(?:[/?#]|,https?://))[^\s"]*@')


def without_passwords(text: str) -> str:
    """The text with `***` for user and password of each URL in it."""
    return _USER_OF_URL.sub(f"{HIDDEN}@", text) if "@" in text else text


def address_without_password(text: str) -> str:
    """The same of a text that was given for one address: it may lack the scheme by which a line's URLs are found."""
    before, at, after = text.rpartition("@")
    return f"{HIDDEN}@{after}" if at and "://" not in before else without_passwords(text)
