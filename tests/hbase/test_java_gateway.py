"""What is left of a Java process that has ended."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

from tests.hbase.java_gateway import TWINS_HEAP_MIB_MAX, java_process

pytestmark = pytest.mark.jvm


def test_an_object_that_is_collected_after_its_process_has_ended_is_no_error(
    java_class_path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Py4J would log it with a traceback: in Python 3.11 that parses, and a collection while a module is parsed would fail there."""
    with caplog.at_level(logging.DEBUG, "py4j"):
        with java_process(java_class_path, tmp_path / "java.log", TWINS_HEAP_MIB_MAX) as gateway:
            twins = gateway.twins()
            del gateway
        caplog.clear()
        del twins
        gc.collect()
    assert caplog.records == []
