"""Somebody with a browser: a window at a server, and all that went wrong in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# WCAG 2.2 AA, and what axe thinks good beside it.
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
COLORS = ("color-contrast", "link-in-text-block")  # the rules that depend on the color scheme
_ALL = {"runOnly": {"type": "tag", "values": list(TAGS)}}
_ALL_BUT_COLORS = {**_ALL, "rules": {rule: {"enabled": False} for rule in COLORS}}
_COLORS_ALONE = {"runOnly": {"type": "rule", "values": list(COLORS)}}
DOWNLOADED = "Download is starting"  # Playwright's word for a target that is a file
HANG_MS = (
    180_000  # for whatever is waited for: a page takes a tenth of a second, and much longer while all cores are busy
)
NARROW = {"width": 320, "height": 640}
ZOOMED = {"width": 640, "height": 450}  # what a page has of 1280 x 900 at 200 %
USUAL = {"width": 1280, "height": 900}

_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`));
"""

# The page's text but for what a script may change: times have their zone, ages go on, there is a button for help,
# and new messages are followed.
_FACTS = """() => {
  for (const each of document.querySelectorAll("details")) each.open = true;
  for (const time of document.querySelectorAll("time")) time.textContent = time.dateTime;
  for (const each of document.querySelectorAll("[data-zone]")) each.textContent = "UTC";
  for (const each of document.querySelectorAll("[data-script], #follow")) each.hidden = true;
  return document.body.innerText.replace(/\\s+/g, " ").trim();
}"""

# What makes a page, or a part of it that scrolls, wider than it is; a table may, and a block of code.
_SIDEWAYS = """() => {
  const wide = [];
  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) wide.push(`the page: ${root.scrollWidth} > ${root.clientWidth}`);
  const tables = document.querySelectorAll("table");
  for (const table of tables) table.style.display = "none";
  for (const each of document.querySelectorAll("body *")) {
    if (each.checkVisibility() && each.scrollWidth > each.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(each).overflowX))
      wide.push(`${each.tagName} ${each.id} ${each.className}: ${each.scrollWidth} > ${each.clientWidth}`);
  }
  for (const table of tables) table.style.display = "";
  return wide;
}"""


# What moves by itself, or takes time to change.
_MOTION = """() => [...document.querySelectorAll("body, body *")].filter((each) => {
  const style = getComputedStyle(each);
  return style.animationName !== "none" || style.transitionDuration !== "0s" || style.scrollBehavior === "smooth";
}).map((each) => `${each.tagName} ${each.id} ${each.className}`)"""

# What axe's rules of colors look at, of each text or field: its own style, its parent's color, and all that is painted below it.
# With some looks, those that have them are marked, and nothing else is.
_NEW = "data-new-look"
_LOOKS = """(marked) => {
  const below = new Map();
  const paintedBelow = (each) => {
    if (each === null) return "";
    if (!below.has(each)) {
      const style = getComputedStyle(each);
      const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter].join(" ");
      const around = paintedBelow(each.parentElement);
      below.set(each, own === "rgba(0, 0, 0, 0) none 1 none" ? around : `${around} | ${own}`);
    }
    return below.get(each);
  };
  const looks = new Set();
  for (const each of document.querySelectorAll("body, body *")) {
    const isText = [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!(isText || each.matches("input, select, textarea")) || !each.checkVisibility()) continue;
    const style = getComputedStyle(each);
    const look = [
      each.tagName, each.matches(":disabled"), style.color, style.fontSize, style.fontWeight, style.fontStyle, style.textDecorationLine, style.textShadow,
      style.borderBottom, getComputedStyle(each.parentElement).color, paintedBelow(each),
    ].join("; ");
    looks.add(look);
    each.toggleAttribute("data-new-look", marked !== null && marked.includes(look));
  }
  return [...looks];
}"""

# Where a node is, which axe would search a short selector for, its HTML tells.
_RUN_AXE = """([within, options]) => axe.run(within, {...options, resultTypes: ["violations"], selectors: false}).then(({violations}) =>
  violations.flatMap(({id, nodes}) => nodes.slice(0, 3).map(({html}) => `${id}: ${html.slice(0, 200)}`)))"""


class Visitor:
    """A window. `faults` are errors in its console, what the policy refused, and requests to anybody else."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))
        page.context.on("request", lambda request: self._asked(request.url))

    @classmethod
    @contextmanager
    def at(cls, chromium: Browser, url: str, token: str | None = None, **options: Any) -> Iterator[Visitor]:
        """A window of its own at a server."""
        context = chromium.new_context(**{"viewport": USUAL, "color_scheme": "light", **options})
        try:
            if token is not None:
                context.add_cookies([{"name": "basalt", "value": token, "url": url, "httpOnly": True}])
            context.set_default_timeout(HANG_MS)
            context.add_init_script(_WATCH)
            yield cls(context.new_page(), url)
        finally:
            context.close()

    def go(self, target: str) -> Any:
        """Go to a page of the server; the answer, or None where the target is a file."""
        from playwright.sync_api import Error

        try:
            return self.page.goto(self.url + target)
        except Error as error:
            if DOWNLOADED not in error.message:
                raise
            return None

    def open_all(self) -> None:
        """Open all that is folded up."""
        self.page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

    def press(self, *keys: str) -> None:
        """Press these keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    def violations(self, *, tags: bool = True, dark: bool = True, seen: set[str] | None = None) -> list[str]:
        """What axe finds on the page, in both color schemes or the light one; without `tags` only what has to do with colors.

        Colors take axe longer than all else. With `seen`, the looks of texts on pages before this one, it judges those of texts that look as none did.
        """
        found = []
        for scheme in ("light", "dark") if dark else ("light",):
            self.page.emulate_media(color_scheme=scheme)
            judged: list[str] = []
            if seen is None:
                judged = self._axe(_ALL if tags and scheme == "light" else _COLORS_ALONE)
            else:
                if self._mark_new(seen, scheme):
                    judged = self._axe(_COLORS_ALONE, f"[{_NEW}]")
                if tags and scheme == "light":
                    judged += self._axe(_ALL_BUT_COLORS)
            found += [f"{scheme}: {each}" for each in judged]
        self.page.emulate_media(color_scheme="light")
        return found

    def _mark_new(self, seen: set[str], scheme: str) -> bool:
        """Mark texts that look as none of those that were seen, and remember their looks; tell whether there are any."""
        new = {look for look in self.page.evaluate(_LOOKS, None) if f"{scheme} {look}" not in seen}
        seen |= {f"{scheme} {look}" for look in new}
        if new:
            self.page.evaluate(_LOOKS, list(new))
        return bool(new)

    def refused(self) -> list[str]:
        """What the page's policy refused."""
        return list(self.page.evaluate("window.violations"))

    def sideways(self) -> list[str]:
        """What has to be scrolled sideways on a narrow screen, and at twice the size."""
        found = []
        for name, size in (("320 px", NARROW), ("200 %", ZOOMED)):
            self.page.set_viewport_size(size)
            found += [f"{name}: {each}" for each in self.page.evaluate(_SIDEWAYS)]
        self.page.set_viewport_size(USUAL)
        return found

    def motion(self) -> list[str]:
        """What moves."""
        return list(self.page.evaluate(_MOTION))

    def facts(self) -> str:
        """The text of the page, but for what a script may change. Changes the page."""
        return str(self.page.evaluate(_FACTS))

    def _axe(self, options: dict[str, Any], within: str = "html") -> list[str]:
        if not self.page.evaluate("'axe' in window"):  # half a megabyte, which the page keeps
            self.page.evaluate(_axe_script())
        return list(self.page.evaluate(_RUN_AXE, [within, options]))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:")):
            self.faults.append(f"asked {url}")


@cache
def _axe_script() -> str:
    from axe_playwright_python.sync_playwright import Axe

    return str(Axe().axe_script)
