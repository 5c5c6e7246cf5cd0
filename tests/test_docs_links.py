"""Every link between pages leads to a file that exists, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import ROOT, pages

from vtcore import errors
from vtcore.errors import VtcoreError

LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """A page without its blocks and inline code, which may show links that are none."""
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """What `#...` may name in a page: its headings, spelt as GitHub spells them, and explicit anchors."""
    found: set[str] = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\">", text))
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (name := slug if number == 0 else f"{slug}-{number}") in found:
            number += 1
        found.add(name)
    return found


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    broken = []
    for link in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def all_errors(root: type[VtcoreError] = VtcoreError) -> set[type[VtcoreError]]:
    below = {error for child in root.__subclasses__() for error in all_errors(child)}
    return {root} | {error for error in below if error.__module__ == errors.__name__}


@pytest.mark.parametrize("page", pages())
def test_every_link_of_the_page_leads_somewhere(page: str) -> None:
    assert broken_links(ROOT / page) == []


def test_pages_have_links_for_the_check_to_mean_something() -> None:
    links = [link for page in pages() for link in LINK.findall(prose((ROOT / page).read_text("utf-8")))]
    assert len(links) >= 20


@pytest.mark.parametrize("error", sorted(all_errors(), key=lambda error: error.code))
def test_the_page_that_an_error_names_has_its_anchor(error: type[VtcoreError]) -> None:
    path, _, anchor = error().doc.partition("#")
    assert anchor in anchors((ROOT / path).read_text(encoding="utf-8"))


def test_every_page_below_docs_is_linked_from_another() -> None:
    linked = {
        (ROOT / page).parent.joinpath(link.partition("#")[0]).resolve()
        for page in pages()
        for link in LINK.findall(prose((ROOT / page).read_text(encoding="utf-8")))
        if link.partition("#")[0] and ":" not in link
    }
    alone = [page for page in pages() if page.startswith("docs/") and (ROOT / page).resolve() not in linked]
    assert [page for page in alone if not page.startswith("docs/decisions/")] == []


@pytest.mark.parametrize(
    ("link", "is_broken"),
    [
        ("[a](other.md)", False),
        ("[a](other.md#a-second-part)", False),
        ("[a](#here-vt201)", False),
        ("[a](https://example.org/x#y)", False),
        ("`[a](nowhere.md)`", False),
        ("[a](nowhere.md)", True),
        ("[a](other.md#a-third-part)", True),
        ("[a](#there)", True),
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(tmp_path: Path, link: str, is_broken: bool) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## A `second` part\n\n```sh\n# A third part\n```\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here: [VT201](other.md)\n\n{link}\n")
    assert bool(broken_links(page)) is is_broken
