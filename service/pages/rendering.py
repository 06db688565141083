"""Render templates: HTML that loads nothing but the files of this package.

The context of a template is computed in plain functions; templates only lay it out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response
from starlette.types import Scope

from feinsum.service.pages.words import FILTERS

PACKAGE = "feinsum.service.pages"

HEADERS = {
    "Cache-Control": "no-cache",
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

PROBLEM_HEADERS = ("allow", "cache-control", "connection", "retry-after")
"""Headers that a problem document and its page share."""

BASIC = 'Basic realm="feinsum", charset="UTF-8"'
"""Makes a browser prompt for a key, which it sends as a password."""


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
def get_asset(name: str) -> Asset | None:
    """Return the file of that name, if it is one of :data:`MEDIA_TYPES`."""
    # a list, not a folder: no path leads out of it
    if name not in MEDIA_TYPES:
        return None
    content = files(PACKAGE).joinpath("static", name).read_bytes()
    return Asset(content, MEDIA_TYPES[name], hashlib.sha256(content).hexdigest()[:16])


def render_template(
    template: str,
    context: Mapping[str, Any],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Render a page as a response; everything in its context is escaped."""
    text = _load_templates().get_template(template).render(context)
    return Response(text, status, {**HEADERS, **(headers or {})}, "text/html")


def render_problem(scope: Scope, problem: Response) -> Response:
    """Return a problem document, or a page with the same content for a browser.

    Under ``/v1`` it is always the document.
    """
    if not does_prefer_html(scope):
        return problem
    headers = {
        name.title(): problem.headers[name]
        for name in PROBLEM_HEADERS
        if name in problem.headers
    }
    if problem.status_code == 401:
        headers["WWW-Authenticate"] = BASIC
    context = {"problem": json.loads(bytes(problem.body)), "here": ""}
    return render_template("problem.html", context, problem.status_code, headers)


def does_prefer_html(scope: Scope) -> bool:
    """Return whether ``Accept`` names HTML before JSON, as browsers do.

    >>> chromium = (b"accept", b"text/html,application/xml;q=0.9,*/*;q=0.8")
    >>> does_prefer_html({"path": "/devices", "headers": [chromium]})
    True
    >>> does_prefer_html({"path": "/v1/devices", "headers": [chromium]})
    False
    >>> does_prefer_html({"path": "/devices", "headers": [(b"accept", b"*/*")]})
    False
    """
    if scope["path"].startswith("/v1/"):
        return False
    accepted = dict(scope["headers"]).get(b"accept", b"").lower()
    position = accepted.find(b"text/html")
    return position >= 0 and b"json" not in accepted[:position]


@cache
def _load_templates() -> Environment:
    templates = Environment(
        loader=PackageLoader(PACKAGE),
        # facts are written by others
        autoescape=True,
        # a misspelt name fails a test instead of showing nothing
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(FILTERS)
    templates.globals.update(asset_url=_make_asset_url, version=version("feinsum"))
    return templates


def _make_asset_url(name: str) -> str:
    """Return the URL of a file, which changes with its content: browsers keep it."""
    file = get_asset(name)
    assert file is not None
    return f"/static/{name}?v={file.tag}"
