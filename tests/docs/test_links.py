"""Links between pages lead somewhere, and every page can be reached from README."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SOURCE_MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")
MODULE_MENTION = re.compile(r"`(basalt(?:_engine|_spark)?(?:\.\w+)+)`")
LOGGER = re.compile(r'getLogger\("([\w.]+)"\)')
PACKAGES = {"basalt": "control", "basalt_engine": "engine", "basalt_spark": "pipeline"}


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get: lower case, spaces as hyphens, other signs dropped."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(text)}


def links(page: Path, text: str) -> list[tuple[str, Path, str]]:
    """(as written, file it leads to, anchor or "") of every link into the tree."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inside = [target for target in LINK.findall(text) if not re.match(r"[a-z]+:", target)]
    parts = [(target, *target.partition("#")) for target in inside]
    return [(target, (page.parent / path).resolve() if path else page, anchor) for target, path, _, anchor in parts]


def test_every_link_leads_to_a_file(root: Path, pages: dict[Path, str]):
    broken = [
        f"{page.relative_to(root)}: {written}"
        for page, text in pages.items()
        for written, target, _ in links(page, text)
        if not target.exists()
    ]
    assert broken == []


def test_every_anchor_is_a_heading_of_its_page(root: Path, pages: dict[Path, str]):
    broken = [
        f"{page.relative_to(root)}: {written}"
        for page, text in pages.items()
        for written, target, anchor in links(page, text)
        if anchor and target in pages and anchor not in anchors(pages[target])
    ]
    assert broken == []


def test_every_page_of_the_docs_can_be_reached_from_the_readme(root: Path, pages: dict[Path, str]):
    reached: set[Path] = set()
    ahead = [root / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page not in pages:
            continue
        reached.add(page)
        ahead += [target for _, target, _ in links(page, pages[page])]
    assert [
        str(page.relative_to(root)) for page in pages if root / "docs" in page.parents and page not in reached
    ] == []


def test_every_page_that_source_mentions_exists(root: Path, files: list[Path]):
    missing = {
        f"{path.relative_to(root)}: {mention}"
        for path in files
        if path.suffix in {".py", ".java"}
        for mention in SOURCE_MENTION.findall(path.read_text())
        if not (root / mention).exists()
    }
    assert sorted(missing) == []


def is_there(root: Path, name: str) -> bool:
    """Tell whether it names a module, or something in one; also where it is no name of a module, as that of a property is not."""
    parts = name.split(".")
    folder = root / PACKAGES[parts[0]]
    for count in range(len(parts), 1, -1):
        place = folder.joinpath(*parts[:count])
        module = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
        if module.exists():
            return parts[count:] == [] or re.search(rf"\b{parts[count]}\b", module.read_text()) is not None
    return True


def test_every_module_that_a_page_or_a_docstring_names_is_there(root: Path, files: list[Path]):
    texts = {path: path.read_text() for path in files if path.suffix in {".py", ".md"}}
    loggers = {name for text in texts.values() for name in LOGGER.findall(text)}
    named = {
        (str(path.relative_to(root)), name)
        for path, text in texts.items()
        if root / "docs" / "decisions" not in path.parents  # which tell of their time
        for name in MODULE_MENTION.findall(text)
    }
    assert len(named) > 50
    assert sorted(each for each in named if each[1] not in loggers and not is_there(root, each[1])) == []


def test_every_decision_is_in_the_list_once_and_in_order(root: Path):
    listed = re.findall(
        r"^(\d+)\. \[.+\]\(decisions/(\d{4}-.+\.md)\)$", (root / "docs" / "README.md").read_text(), re.M
    )
    assert [name for _, name in listed] == sorted(path.name for path in (root / "docs" / "decisions").glob("*.md"))
    assert [int(number) for number, _ in listed] == [int(name[:4]) for _, name in listed]
