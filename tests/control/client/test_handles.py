"""What the methods of handles show of themselves, to help() and to editors."""

from __future__ import annotations

import inspect

import pytest

import basalt
from basalt.client.handles import Handle
from tests.control.client.test_asynchronous_twin import PAIRS, methods


@pytest.mark.parametrize("each", [kind for pair in PAIRS for kind in pair if issubclass(kind, Handle)])
def test_a_method_shows_what_its_user_gives_and_gets(each):
    for name in methods(each):
        shown = inspect.signature(getattr(each, name))
        assert next(iter(shown.parameters)) == "self", name
        for inner in ("Steps[", "Cursor", "Scope", "OpenTransaction", "TableInUse"):
            assert inner not in str(shown), (name, str(shown))
    published = inspect.signature(basalt.Topic.publish)
    assert published.return_annotation == "PublishResponse | None"
    assert inspect.signature(basalt.AsyncTopic.read).return_annotation is basalt.AsyncReader
