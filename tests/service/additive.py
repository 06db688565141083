"""Which changes of an OpenAPI document break clients of the one before.

Additive are: new paths, methods, answers, properties of answers, and optional
parameters and properties of requests. Anything else is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["breaking_changes"]

Document = Mapping[str, Any]


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
            yield from _of_body(where, before, after, old, new)
            yield from _of_answers(where, before, after, old, new)


def _of_parameters(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    known = {(p["in"], p["name"]): p for p in before.get("parameters", ())}
    given = {(p["in"], p["name"]): p for p in after.get("parameters", ())}
    for place, parameter in known.items():
        if place not in given:
            yield f"{where}: parameter {place[1]} gone"
            continue
        schemas = parameter["schema"], given[place]["schema"]
        yield from _of_input(f"{where}: parameter {place[1]}", *schemas, old, new)
    for place, parameter in given.items():
        was_required = known.get(place, {}).get("required", False)
        if parameter.get("required", False) and not was_required:
            yield f"{where}: parameter {place[1]} is required now"


def _of_body(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    known, given = before.get("requestBody"), after.get("requestBody")
    if given is None:
        if known is not None:
            yield f"{where}: takes no body any more"
        return
    if known is None:
        if given.get("required", False):
            yield f"{where}: a body is required now"
        return
    for kind, content in known["content"].items():
        if kind not in given["content"]:
            yield f"{where}: takes no {kind} any more"
            continue
        schemas = content["schema"], given["content"][kind]["schema"]
        yield from _of_input(f"{where}: body", *schemas, old, new)


def _of_answers(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    for status, answer in before["responses"].items():
        found = after["responses"].get(status)
        if found is None:
            yield f"{where}: answer {status} gone"
            continue
        for kind, content in answer.get("content", {}).items():
            if kind not in found.get("content", {}):
                yield f"{where}: answer {status} is not {kind} any more"
                continue
            schemas = [
                part.get("schema", {}) for part in (content, found["content"][kind])
            ]
            place = f"{where}: answer {status}"
            yield from _of_output(place, *schemas, old, new)


def _of_input(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    """What may be sent may still be sent."""
    before, after = _resolved(before, old), _resolved(after, new)
    yield from _of_type(where, before, after)
    for word in ("maxLength", "maximum", "maxItems", "minimum", "minLength", "pattern"):
        if word in after and before.get(word) != after[word]:
            is_wider = word in before and _is_wider(word, before[word], after[word])
            if not is_wider:
                yield f"{where}: {word} is {after[word]} now"
    for value in set(before.get("enum", ())) - set(
        after.get("enum", before.get("enum", ()))
    ):
        yield f"{where}: {value!r} is not taken any more"
    known = before.get("properties", {})
    for name, schema in known.items():
        inner = after.get("properties", {}).get(name)
        if inner is None:
            yield f"{where}.{name}: gone"
        else:
            yield from _of_input(f"{where}.{name}", schema, inner, old, new)
    for name in set(after.get("required", ())) - set(before.get("required", ())):
        yield f"{where}.{name}: is required now"


def _of_output(
    where: str, before: Document, after: Document, old: Document, new: Document
) -> Iterator[str]:
    """What was answered is still answered."""
    before, after = _resolved(before, old), _resolved(after, new)
    yield from _of_type(where, before, after)
    for name, schema in before.get("properties", {}).items():
        inner = after.get("properties", {}).get(name)
        if inner is None:
            yield f"{where}.{name}: gone"
        else:
            yield from _of_output(f"{where}.{name}", schema, inner, old, new)
    for name in set(before.get("required", ())) - set(after.get("required", ())):
        yield f"{where}.{name}: is not always there any more"
    if "items" in before:
        items = before["items"], after.get("items", {})
        yield from _of_output(f"{where}[]", *items, old, new)


def _of_type(where: str, before: Document, after: Document) -> Iterator[str]:
    if before.get("type") != after.get("type"):
        yield f"{where}: was {before.get('type')}, is {after.get('type')}"


def _is_wider(word: str, before: float, after: float) -> bool:
    if word.startswith("max"):
        return after > before
    return word.startswith("min") and after < before


def _resolved(schema: Document, document: Document) -> Document:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Document = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found
