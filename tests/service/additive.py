"""Which changes of an OpenAPI document break clients of the one before.

Additive are: new paths, methods, answers, properties of answers, and optional
parameters and properties of requests. Anything else is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["breaking_changes"]

Document = Mapping[str, Any]

LIMITS = ("maxLength", "maximum", "maxItems", "minimum", "minLength", "pattern")


def breaking_changes(old: Document, new: Document) -> list[str]:
    """What a client of ``old`` would miss in ``new``, in words.

    >>> old = {"paths": {"/v1/a": {"get": {"responses": {"200": {}}}}}}
    >>> breaking_changes(old, {"paths": {}})
    ['/v1/a: gone']
    >>> breaking_changes({"paths": {}}, old)
    []
    """
    return list(_of_paths(old, new))


def _of_paths(old: Document, new: Document) -> Iterator[str]:
    for path, methods in old["paths"].items():
        if path not in new["paths"]:
            yield f"{path}: gone"
            continue
        for method, before in methods.items():
            where = f"{method.upper()} {path}"
            after = new["paths"][path].get(method)
            if after is None:
                yield f"{where}: gone"
                continue
            yield from _of_parameters(where, before, after, old, new)
            body = (
                _content(before.get("requestBody")),
                _content(after.get("requestBody")),
            )
            yield from _of_contents(f"{where}: body", *body, old, new, is_sent=True)
            if body[1] and not body[0] and after["requestBody"].get("required"):
                yield f"{where}: a body is required now"
            for status, answer in before["responses"].items():
                if status not in after["responses"]:
                    yield f"{where}: answer {status} gone"
                    continue
                contents = _content(answer), _content(after["responses"][status])
                place = f"{where}: answer {status}"
                yield from _of_contents(place, *contents, old, new, is_sent=False)


def _content(body: Document | None) -> Document:
    content: Document = (body or {}).get("content", {})
    return content


def _of_parameters(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    earlier = {(p["in"], p["name"]): p for p in before.get("parameters", ())}
    later = {(p["in"], p["name"]): p for p in after.get("parameters", ())}
    for place, parameter in earlier.items():
        if place not in later:
            yield f"{where}: parameter {place[1]} gone"
            continue
        schemas = parameter["schema"], later[place]["schema"]
        place_words = f"{where}: parameter {place[1]}"
        yield from _of_schema(place_words, *schemas, old, new, is_sent=True)
    for place, parameter in later.items():
        was_required = earlier.get(place, {}).get("required", False)
        if parameter.get("required", False) and not was_required:
            yield f"{where}: parameter {place[1]} is required now"


def _of_contents(
    where: str,
    before: Document,
    after: Document,
    old: Document,
    new: Document,
    *,
    is_sent: bool,
) -> Iterator[str]:
    for kind, content in before.items():
        if kind not in after:
            yield f"{where} is not {kind} any more"
            continue
        schemas = [part.get("schema", {}) for part in (content, after[kind])]
        yield from _of_schema(where, *schemas, old, new, is_sent=is_sent)


def _of_schema(
    where: str,
    before: Document,
    after: Document,
    old: Document,
    new: Document,
    *,
    is_sent: bool,
) -> Iterator[str]:
    """What may be sent may still be sent; what was answered is still answered."""
    before, after = _resolved(before, old), _resolved(after, new)
    if before.get("type") != after.get("type"):
        yield f"{where}: was {before.get('type')}, is {after.get('type')}"
    for name, schema in before.get("properties", {}).items():
        inner = after.get("properties", {}).get(name)
        if inner is None:
            yield f"{where}.{name}: gone"
        else:
            place = f"{where}.{name}"
            yield from _of_schema(place, schema, inner, old, new, is_sent=is_sent)
    required = set(before.get("required", ())), set(after.get("required", ()))
    if is_sent:
        yield from (
            f"{where}.{name}: is required now" for name in required[1] - required[0]
        )
        yield from _of_limits(where, before, after)
        return
    for name in required[0] - required[1]:
        yield f"{where}.{name}: is not always there any more"
    if "items" in before:
        items = before["items"], after.get("items", {})
        yield from _of_schema(f"{where}[]", *items, old, new, is_sent=False)


def _of_limits(where: str, before: Document, after: Document) -> Iterator[str]:
    for word in LIMITS:
        if word == "pattern" and _is_wider(before.get(word), after.get(word)):
            continue
        if word in after and before.get(word) != after[word]:
            signs = {"max": 1, "min": -1}
            sign = signs.get(word[:3], 0) if word in before else 0
            if not sign or sign * (after[word] - before[word]) < 0:
                yield f"{where}: {word} is {after[word]} now"
    missing = set(before.get("enum", ())) - set(
        after.get("enum", before.get("enum", ()))
    )
    yield from (f"{where}: {value!r} is not taken any more" for value in missing)


def _is_wider(before: str | None, after: str | None) -> bool:
    """Whether patterns differ by how often something is repeated, and more is taken.

    >>> _is_wider("^[0-9]{8}$", "^[0-9]{4,8}$"), _is_wider("^[0-9]{8}$", "^[0-9]{4}$")
    (True, False)
    """
    repeated = re.compile(r"\{(\d+),?(\d*)\}")
    patterns = [pattern or "" for pattern in (before, after)]
    if len({repeated.sub("", pattern) for pattern in patterns}) > 1:
        return False
    old, new = (
        [(int(low), int(high or low)) for low, high in repeated.findall(pattern)]
        for pattern in patterns
    )
    return len(old) == len(new) and all(
        n[0] <= o[0] and o[1] <= n[1] for o, n in zip(old, new, strict=True)
    )


def _resolved(schema: Document, document: Document) -> Document:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target: Document = document["components"]["schemas"][reference.rpartition("/")[2]]
    return target
