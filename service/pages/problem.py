"""Problems as pages, for browsers."""

from __future__ import annotations

import json

from starlette.responses import Response
from starlette.types import Scope

from feinsum.service.pages.rendering import HEADERS, html

KEPT = ("allow", "cache-control", "connection", "retry-after")
"""Headers of a problem document that its page has too."""

BASIC = 'Basic realm="feinsum", charset="UTF-8"'
"""How a browser asks a person for a key."""


def as_asked(scope: Scope, problem: Response) -> Response:
    """A problem document, or a page that says the same if a browser asks.

    Under ``/v1`` it is always the document.
    """
    if not prefers_html(scope):
        return problem
    document = json.loads(bytes(problem.body))
    headers = {name: problem.headers[name] for name in KEPT if name in problem.headers}
    if problem.status_code == 401:
        headers["www-authenticate"] = BASIC
    context = {"problem": document, "here": ""}
    return html("problem.html", context, problem.status_code, HEADERS | headers)


def prefers_html(scope: Scope) -> bool:
    """Whether a browser asks: it names HTML in ``Accept``, and does so before JSON.

    >>> chromium = (b"accept", b"text/html,application/xml;q=0.9,*/*;q=0.8")
    >>> prefers_html({"path": "/devices", "headers": [chromium]})
    True
    >>> prefers_html({"path": "/v1/devices", "headers": [chromium]})
    False
    >>> prefers_html({"path": "/devices", "headers": [(b"accept", b"*/*")]})
    False
    """
    if scope["path"].startswith("/v1/"):
        return False
    accepted = dict(scope["headers"]).get(b"accept", b"").lower()
    at = accepted.find(b"text/html")
    return at >= 0 and b"json" not in accepted[:at]
