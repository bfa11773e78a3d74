"""Completes what the package says of itself by that which depends on where its source is published: addresses, and the README with absolute links.

A registry shows the README apart from the source, where a link to docs/ leads nowhere. The addresses are two lines of pyproject.toml.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# `[text](target)`, where the target is neither a URL nor a place in the same page.
_LINK = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<place>#[^)\s]*)?\)")


class CustomMetadataHook(MetadataHookInterface):
    """Hatch finds it by this name."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add `urls` and `readme`."""
        version, source = metadata["version"], self.config["source"]
        text = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute_links(text, source, version)}
        metadata["urls"] = {
            "Source": self.config["repository"],
            "Documentation": address(source, version, "docs/README.md"),
            "Changelog": address(source, version, "CHANGELOG.md"),
        }


def address(source: str, version: str, path: str) -> str:
    """The address at which a file of this version is published."""
    return source.format(version=version, path=path)


def absolute_links(markdown: str, source: str, version: str) -> str:
    """The text, its links to files of the source as addresses of this version of them."""
    return _LINK.sub(lambda link: f"]({address(source, version, link['path'])}{link['place'] or ''})", markdown)
