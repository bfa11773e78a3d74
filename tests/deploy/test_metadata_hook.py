"""The README apart from its source: what its links become."""

from __future__ import annotations

import pytest

from deploy.metadata_hook import absolute_links

SOURCE = "https://source.example/{version}/{path}"


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](page.md)", "[a](https://source.example/1.2/page.md)"),
        ("[a](page.md#b)", "[a](https://source.example/1.2/page.md#b)"),
        ("[a](LICENSE) [b](b)", "[a](https://source.example/1.2/LICENSE) [b](https://source.example/1.2/b)"),
        ("[a](#here)", "[a](#here)"),
        ("[a](https://other.example/x)", "[a](https://other.example/x)"),
        ("f(a)(b)", "f(a)(b)"),
    ],
)
def test_links_to_files_become_addresses_and_others_stay(link: str, becomes: str):
    assert absolute_links(link, SOURCE, "1.2") == becomes
