"""Templates to answers: HTML that loads nothing but the files of this package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

from feinsum.service.pages.words import FILTERS

PACKAGE = "feinsum.service.pages"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every page: no scripts or styles but our own files, and no frames."""

MEDIA_TYPES = {
    "htmx.LICENSE.txt": "text/plain",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "pages.css": "text/css",
    "pages.js": "text/javascript",
}
"""The files that pages load, and no others."""


@dataclass(frozen=True)
class Asset:
    """A file of the package.

    Attributes:
        tag: changes exactly if the content does.
    """

    content: bytes
    media_type: str
    tag: str


@cache
def asset(name: str) -> Asset | None:
    """The file of that name, if it is one of :data:`MEDIA_TYPES`."""
    if name not in MEDIA_TYPES:
        return None
    content = files(PACKAGE).joinpath("static", name).read_bytes()
    return Asset(content, MEDIA_TYPES[name], hashlib.sha256(content).hexdigest()[:16])


def html(
    template: str,
    context: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A page as an answer."""
    sent = {**HEADERS, "Cache-Control": "no-cache", **(headers or {})}
    return Response(render(template, context), status, sent, "text/html")


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of a page; whatever is in the context is escaped."""
    return _templates().get_template(template).render(context)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    templates.globals.update(asset_url=_asset_url, version=version("feinsum"))
    return templates


def _asset_url(name: str) -> str:
    """Where a file is; another place once it has other content."""
    found = asset(name)
    assert found is not None
    return f"/static/{name}?v={found.tag}"
