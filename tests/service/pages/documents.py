"""Reading pages: as a strict parser does, and what is true of every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree.ElementTree import Element

import html5lib

__all__ = ["ACCEPT", "get", "is_sound_page", "links", "text_of"]

ACCEPT = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
"""What a browser sends."""

OWN = re.compile(r"(/(?!/)|#|\?)")

FOLDED = {"ranking", "narrow"}
"""Kinds of tables that fit on a phone; the others scroll, with a shade at the edge."""

SVG = "{http://www.w3.org/2000/svg}"


def get(client, path: str, status: int = 200, **headers: str) -> Element:
    """A page; it is valid, sound, and sent with the headers of all pages."""
    answer = client.get(path, headers=ACCEPT | headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in answer.headers
    builder = html5lib.treebuilders.getTreeBuilder("etree")
    parser = html5lib.HTMLParser(builder, strict=True, namespaceHTMLElements=False)
    tree = parser.parse(answer.text)
    assert is_sound_page(tree)
    return tree


def is_sound_page(page: Element) -> bool:
    """What holds for every page: landmarks, names of things, nothing inline."""
    assert page.get("lang") == "en"
    assert len(page.findall(".//h1")) == len(page.findall(".//main")) == 1
    assert text_of(page.find(".//title")).strip(" ·feinsum")
    ids = [e.get("id") for e in page.iter() if e.get("id") is not None]
    assert len(ids) == len(set(ids))
    for element in page.iter():
        for name, value in element.attrib.items():
            assert not str(name).startswith("on")
            assert name != "style"
            if name in ("href", "src", "action", "hx-get"):
                assert OWN.match(value), value
            if name in ("aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids)
    assert all(script.get("src") and not script.text for script in page.iter("script"))
    assert not list(page.iter("style"))
    regions = [e for e in page.iter("div") if e.get("class") == "scroll"]
    assert all(e.get("tabindex") == "0" and e.get("aria-label") for e in regions)
    scrolled = {table for region in regions for table in region.iter("table")}
    for table in page.iter("table"):
        assert text_of(table.find("caption"))
        assert table in scrolled or {*table.get("class").split()} & FOLDED
        assert all(
            th.get("scope") in ("col", "row", "rowgroup") for th in table.iter("th")
        )
    for figure in outermost(page, f"{SVG}svg"):
        assert figure.get("aria-hidden") == "true" or (
            figure.get("role") == "img"
            and (figure.get("aria-label") or figure.get("aria-labelledby"))
        )
    labelled = {label.get("for") for label in page.iter("label")}
    fields = [e for kind in ("input", "select") for e in page.iter(kind)]
    assert {field.get("id") for field in fields} <= labelled
    assert all(text_of(link).strip() for link in page.iter("a"))
    return True


def outermost(element: Element, tag: str) -> Iterator[Element]:
    """Elements of a kind that are in no other of it."""
    for child in element:
        if child.tag == tag:
            yield child
        else:
            yield from outermost(child, tag)


def text_of(element: Element | None) -> str:
    """All text in an element, with single spaces."""
    return "" if element is None else " ".join("".join(element.itertext()).split())


def links(page: Element, prefix: str) -> list[str]:
    """Where the links of a page lead that begin so, each once, in order."""
    found = [a.get("href", "") for a in page.iter("a")]
    return list(dict.fromkeys(href for href in found if href.startswith(prefix)))
