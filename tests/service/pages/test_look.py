"""The look: colors that can be read in both themes, files that are ours or named."""

from __future__ import annotations

import re
from importlib.resources import files

STATIC = files("feinsum.service.pages").joinpath("static")
SHEET = STATIC.joinpath("pages.css").read_text()
COLORS = re.findall(r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)", SHEET)
LIGHT = {name: light for name, light, _ in COLORS}
DARK = {name: dark for name, _, dark in COLORS}

ON_PAPER = ["ink", "quiet", "accent", "mark", "roof", "warning"]
PAIRS = [
    *((text, ground) for text in ON_PAPER for ground in ("paper", "raised")),
    ("on-accent", "accent"),
    *(("ink", kind) for kind in ("row", "times", "array", "use", "axis", "index")),
    ("ink", "size-param"),
]


def luminance(color: str) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    parts = [int(color[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    r, g, b = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_text_can_be_read():
    """The contrast of text and of marks is 4.5 at least."""
    for text, ground in PAIRS:
        for theme in (LIGHT, DARK):
            low, high = sorted((luminance(theme[text]), luminance(theme[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5


def test_every_color_is_of_a_theme():
    """No rule has a color of its own, so that both themes are complete."""
    rules = SHEET.partition("}")[2]
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b", rules) == []
    assert set(re.findall(r"var\(--([\w-]+)\)", rules)) <= {*LIGHT, "mono"}


def test_what_scrolls_has_a_shade():
    """At both edges, and hidden where there is no more behind them."""
    (rule,) = re.findall(r"^\.scroll \{(.*?)^\}", SHEET, re.MULTILINE | re.DOTALL)
    assert "overflow-x: auto" in rule
    for side in ("left", "right"):
        (shade,) = re.findall(rf"gradient\(to {side}, var\(--shade\).*", rule)
        (cover,) = re.findall(rf"gradient\(to {side}, var\(--paper\).*", rule)
        assert shade.rstrip(";,").endswith("scroll")
        assert cover.rstrip(";,").endswith("local")


def test_the_sheet_loads_nothing():
    """No font and no picture comes from anywhere."""
    assert "url(" not in SHEET
    assert "@import" not in SHEET


def test_the_library_is_vendored_with_its_licence():
    """The library is one file of a release, with the licence that it has."""
    assert "4.0.1" in STATIC.joinpath("htmx.min.js").read_text()
    assert "Zero-Clause BSD" in STATIC.joinpath("htmx.LICENSE.txt").read_text()
