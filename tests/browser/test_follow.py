"""Following a topic that gets 5,000 messages a second, and charts, as Chromium draws them."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.browser.conftest import ASKS, BOOTSTRAP, Shop, ask_as
from tests.browser.visitor import Visitor

EVENTS = "/v1/namespaces/shop/topics/flood"
PER_S = 5_000
BATCHES_PER_S = 10
ROWS_MAX = 200  # that a page keeps
HEAP_BYTES_MAX = 3 << 20  # by which a page may have grown over thousands of messages
STREAM = "/console/live/"
CONTRAST_MIN = 3  # of what is drawn to what is behind it, as WCAG 1.4.11 has it
LEFT_OUT = 10_000  # messages, behind which a page is looked at


@pytest.fixture(scope="module")
def flooded(servers: Any, stored: Any) -> Shop:
    data, installation = stored
    shop = Shop(servers("flooded", *ASKS, data=data), installation)
    ask_as(shop.server, BOOTSTRAP)("PUT", EVENTS)
    return shop


@contextmanager
def flood(ask: Callable[..., Any]) -> Iterator[list[int]]:
    """Publish as fast as asked for, until the end; the number of messages that were sent so far."""
    stop, sent = threading.Event(), [0]
    batch = {"messages": [f"message {number} {'x' * 80}" for number in range(PER_S // BATCHES_PER_S)]}

    def publish() -> None:
        due_s = time.monotonic()
        while not stop.is_set():
            sent[0] += len(batch["messages"])  # before a page may have them
            ask("POST", f"{EVENTS}/publish", batch)
            due_s += 1 / BATCHES_PER_S
            stop.wait(max(0.0, due_s - time.monotonic()))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


# The color of the first line, as the browser has it.
_LINE = (
    "() => getComputedStyle(document.querySelector('svg.chart .line')).stroke.match(/\\d+/g).slice(0, 3).map(Number)"
)

# The colors of the pixels of a picture, the commonest first. It is drawn on a page without a policy.
_PIXELS = """async (picture) => {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  const counts = new Map();
  for (let at = 0; at < data.length; at += 4) {
    const color = data.slice(at, at + 3).join();
    counts.set(color, (counts.get(color) || 0) + 1);
  }
  return [...counts].sort((one, other) => other[1] - one[1]).map(([color]) => color.split(",").map(Number));
}"""


def pixels(visitor: Visitor, picture: bytes) -> list[list[int]]:
    """The colors of a picture's pixels, the commonest first."""
    blank = visitor.page.context.new_page()
    try:
        return list(blank.evaluate(_PIXELS, b64encode(picture).decode()))
    finally:
        blank.close()


def near(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two colors look the same."""
    return all(abs(a - b) <= 8 for a, b in zip(one, other, strict=True))


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """The contrast of two colors, as WCAG counts it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: Sequence[int]) -> float:
    parts = [each / 255 for each in color]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def left_out(visitor: Visitor) -> int:
    """How many messages the page says that it does not show."""
    told = visitor.page.inner_text("#follow-left")
    return int(told.split(" shown, ")[1].split()[0].replace(",", "")) if "not shown" in told else 0


def until_left_out(visitor: Visitor, more: int) -> None:
    """Wait until the page has counted so many more messages that it does not show."""
    wanted = left_out(visitor) + more
    visitor.page.wait_for_function(
        "(wanted) => { const found = /shown, ([\\d,]+) not/.exec(document.getElementById('follow-left').textContent);"
        " return found && Number(found[1].replaceAll(',', '')) >= wanted; }",
        arg=wanted,
    )  # fmt: skip


def heap(visitor: Visitor) -> int:
    """The bytes of the page's heap, without garbage."""
    session = visitor.page.context.new_cdp_session(visitor.page)
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def test_a_page_that_follows_a_flood_can_be_used_counts_what_it_leaves_out_and_does_not_grow(
    chromium: Any, flooded: Shop
):
    with (
        Visitor.at(chromium, flooded.server.url, flooded.root) as visitor,
        flood(ask_as(flooded.server, BOOTSTRAP)) as sent,
    ):
        visitor.go("/console/ns/shop/topics/flood/messages?follow=true")
        visitor.page.wait_for_selector("#follow-rows tr")
        until_left_out(visitor, LEFT_OUT)
        before = heap(visitor)
        visitor.press("?")
        visitor.page.wait_for_selector("#help:visible")  # a page that is buried in rows never answers a key
        visitor.press("Escape")
        until_left_out(visitor, 2 * LEFT_OUT)
        assert visitor.page.locator("#follow-rows tr").count() <= ROWS_MAX
        assert heap(visitor) - before < HEAP_BYTES_MAX
        assert left_out(visitor) <= sent[0]
        assert visitor.faults == visitor.refused() == []


def test_a_pause_ends_the_stream_and_the_page_goes_on_behind_what_it_has(chromium: Any, flooded: Shop):
    ask = ask_as(flooded.server, BOOTSTRAP)
    with Visitor.at(chromium, flooded.server.url, flooded.root) as visitor:
        visitor.go("/console/ns/shop/topics/flood/messages?follow=true")
        visitor.page.wait_for_function("() => document.getElementById('follow-state').textContent === 'Following.'")
        ask("POST", f"{EVENTS}/publish", {"messages": ["before"]})
        visitor.page.wait_for_selector("#follow-rows tr")
        with visitor.page.expect_event("requestfailed", lambda request: STREAM in request.url):
            visitor.page.click("[data-act=pause]")
        ask("POST", f"{EVENTS}/publish", {"messages": ["meanwhile"]})
        with visitor.page.expect_request(lambda request: STREAM in request.url and "after=" in request.url):
            visitor.page.click("[data-act=pause]")
        visitor.page.wait_for_selector("#follow-rows tr:nth-child(2)")
        rows = visitor.page.locator("#follow-rows tr").all_inner_texts()
        assert [word in row for word, row in zip(("meanwhile", "before"), rows, strict=True)] == [True, True]
        assert visitor.page.inner_text("#follow-left") == "2 shown."


def test_lines_of_a_chart_are_seen_in_both_schemes(chromium: Any, flooded: Shop):
    with Visitor.at(chromium, flooded.server.url, flooded.root) as visitor:
        for scheme in ("light", "dark"):
            visitor.page.emulate_media(color_scheme=scheme)
            visitor.go("/console/transactions")
            line = visitor.page.evaluate(_LINE)
            colors = pixels(visitor, visitor.page.locator("svg.chart").first.screenshot())
            assert contrast(line, colors[0]) >= CONTRAST_MIN, (scheme, line, colors[0])
            assert any(near(line, each) for each in colors), (scheme, line, "no pixel has the line's color")
