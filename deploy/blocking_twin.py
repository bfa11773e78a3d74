"""Generates the blocking client from the async one: `make format`, or `python -m deploy.blocking_twin` (`--check` only compares).

The two differ in the words of async and in a few names, so `basalt.client.asynchronous` is written and `basalt.client.blocking` is
not. Where blocking code must do something else, the comment `# blocking: CODE` says what: at the end of a line CODE replaces it, alone on a line CODE is added.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "control" / "basalt" / "client" / "asynchronous.py"
TWIN = SOURCE.with_name("blocking.py")

# In this order, over the whole text: code, comments and docstrings.
WORDS = (
    (r"^( *).*# blocking: (.*)$", r"\1\2"),
    (r"Any number of tasks of one event loop may", "Any number of threads may"),
    (r"\b(Coroutine\[Any, Any, |Awaitable\[)(\w+)\]", r"\2"),
    (r"\b(async|await) ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\b__anext__\b", "__next__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\bawaiting\b", "blocking"),
    (r"\basked_aside\b", "asked_here"),
    (r"\baiohttp_transport\b", "http_transport"),
    (r"\bAiohttpTransport\b", "HttpTransport"),
    (r"\b(_?)Async([A-Z])", r"\1\2"),
)


def twin_of(source: str) -> str:
    """Return the blocking twin of the async module's text, formatted."""
    text = source
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    origin = f"basalt/client/{SOURCE.name}"
    text = f"# Generated from {origin} by deploy/blocking_twin.py: edit that one, then run `make format`.\n{text}"
    # Names that only the async module needs (unused imports) go, and imports are put in order.
    tidied = _ruff(text, "check", "--fix-only", "--select", "F401,I", "--quiet")
    return _ruff(tidied, "format", "--quiet")


def main(arguments: list[str]) -> int:
    """Write the twin; with `--check` say how it differs from what is there, and return 1 if it does."""
    wanted, present = twin_of(SOURCE.read_text()), TWIN.read_text() if TWIN.exists() else ""
    if arguments != ["--check"]:
        TWIN.write_text(wanted)
    elif wanted != present:
        lines = (present.splitlines(), wanted.splitlines())
        print(
            "\n".join(difflib.unified_diff(*lines, f"{TWIN.name} as it is", f"{TWIN.name} as generated", lineterm=""))
        )
        print("basalt/client/blocking.py differs from what is generated: run `make format`.", file=sys.stderr)
        return 1
    return 0


def _ruff(text: str, command: str, *options: str) -> str:
    ruff = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(TWIN), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
