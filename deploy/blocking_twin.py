"""Generates the blocking client from the async one: `make format`, or `python -m deploy.blocking_twin` (`--check` only compares).

The two differ in the words of async and in a few names, so `basalt.client.asynchronous` is written and `basalt.client.blocking` is not, file by file. Where
blocking code must do something else, the comment `# blocking: CODE` says what: at the end of a line CODE replaces it, alone on a line CODE is added.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "control" / "basalt" / "client" / "asynchronous"
TWINS = SOURCES.with_name("blocking")

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
    (r"\bbasalt\.client\.asynchronous\b", "basalt.client.blocking"),
    (r"\baiohttp_transport\b", "http_transport"),
    (r"\bAiohttpTransport\b", "HttpTransport"),
    (r"\b(_?)Async([A-Z])", r"\1\2"),
)


def twin_of(source: str, name: str) -> str:
    """Return the blocking twin of the text of the async module of this file name, formatted."""
    text = source
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    origin = f"basalt/client/{SOURCES.name}/{name}"
    text = f"# Generated from {origin} by deploy/blocking_twin.py: edit that one, then run `make format`.\n{text}"
    # Names that only the async module needs (unused imports) go, and imports are put in order.
    tidied = _ruff(text, name, "check", "--fix-only", "--select", "F401,I", "--quiet")
    return _ruff(tidied, name, "format", "--quiet")


def main(arguments: list[str]) -> int:
    """Write the twins; with `--check` say how they differ from what is there, and return 1 if they do."""
    wanted = {path.name: twin_of(path.read_text(), path.name) for path in sorted(SOURCES.glob("*.py"))}
    present = {path.name: path.read_text() for path in sorted(TWINS.glob("*.py"))}
    if arguments != ["--check"]:
        for name, text in wanted.items():
            (TWINS / name).write_text(text)
        for name in present.keys() - wanted.keys():
            (TWINS / name).unlink()
    elif wanted != present:
        for name in sorted(present.keys() | wanted.keys()):
            lines = (present.get(name, "").splitlines(), wanted.get(name, "").splitlines())
            print("\n".join(difflib.unified_diff(*lines, f"{name} as it is", f"{name} as generated", lineterm="")))
        print("basalt/client/blocking differs from what is generated: run `make format`.", file=sys.stderr)
        return 1
    return 0


def _ruff(text: str, name: str, command: str, *options: str) -> str:
    ruff = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(TWINS / name), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
