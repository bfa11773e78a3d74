"""A window whose time stands still, and goes on where a test lets it: what pages do after a while is done at once, and never by chance."""

from __future__ import annotations

import re
import time

from playwright.sync_api import TimeoutError as NoAnswerError

from tests.browser.visitor import Visitor

REFRESH_MS = 5_000
TABS_MAX = 60  # until a page's element has the focus
PANELS = "panel="
TRIES_MAX, ANSWER_MS_MAX = 12, 10_000  # of a renewal: bounds for a hang


class Window:
    """A window whose time stands still."""

    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self.page = visitor.page
        self.renewals: list[str] = []
        self._stands_still = False
        self.page.on("request", lambda request: self._note(request.url))

    def _note(self, url: str) -> None:
        if PANELS in url:
            self.renewals.append(url)

    def go(self, target: str) -> None:
        if not self._stands_still:
            now_s = time.time()
            self.page.clock.install(time=now_s)
            self.page.clock.pause_at(now_s + 1)
            self._stands_still = True
        self.visitor.go(target)

    def let_pass(self, ms: float) -> None:
        self.page.clock.run_for(ms)

    def renew(self) -> None:
        """Let time pass until the page has asked again. One that still takes in the last answer waits only from then on."""
        for tries_left in reversed(range(TRIES_MAX)):
            try:
                with self.page.expect_response(re.compile(PANELS), timeout=ANSWER_MS_MAX):
                    self.let_pass(REFRESH_MS)
                return
            except NoAnswerError:
                if not tries_left:
                    raise

    def focused(self) -> str:
        """The link or name of what has the focus."""
        return str(self.page.evaluate("(document.activeElement.getAttribute('href') || document.activeElement.id)"))

    def text(self) -> str:
        """The text of the page, its lines joined."""
        return " ".join(self.page.inner_text("main").split())

    def said(self) -> str:
        return str(self.page.text_content("#said"))

    def press(self, *keys: str) -> None:
        self.visitor.press(*keys)

    def tab_to(self, selector: str) -> None:
        """Press Tab until this has the focus."""
        for _ in range(TABS_MAX):
            if self.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
            self.press("Tab")
        raise AssertionError(f"{selector} is not reached by Tab")
