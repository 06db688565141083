"""The routes of the pages; they need the same scope as reading ``/v1``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from shlex import quote
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response

from feinsum.db.server.pages import Order
from feinsum.errors import InvalidRequestError, NoSuchRouteError, RecordNotFoundError
from feinsum.records import Device, TuningRecord
from feinsum.records.environment import HOST_PLATFORM
from feinsum.service.answers import check_key
from feinsum.service.keys import KeyHolder
from feinsum.service.pages.charts import Limits, make_history, make_marks, make_ranking
from feinsum.service.pages.coverage import SUITES, compute_coverage
from feinsum.service.pages.graph import draw_graph
from feinsum.service.pages.plan import COUNTS, make_plan_view, make_title
from feinsum.service.pages.rendering import get_asset, render_template
from feinsum.service.pages.roofline import make_roofline_chart
from feinsum.service.pages.search import (
    MAX_TEXT,
    SearchCriteria,
    SearchView,
    search,
)
from feinsum.service.pages.words import Notation, format_device, make_notation
from feinsum.service.paging import DEVICES, PLANS, Cursor, from_cursor, make_next_cursor
from feinsum.service.routes.canonicalization import check_work, limit_for
from feinsum.service.routes.documents import CONTENT_ID, DeviceId, FactId
from feinsum.service.state import Reading, Service, TheService

router = APIRouter(include_in_schema=False)

page = partial(router.api_route, methods=["GET", "HEAD"], response_class=Response)

PER_PAGE = 50
"""Entries of a list on one page."""

MAX_FACTS = 500
"""Facts of a workload that are ranked, the fastest ones."""

MAX_CHOICES = 100
"""Devices that a page offers for a search."""

N_LATEST = 12
N_IN_CHART = 200

NEVER_LONG = 1 << 62
"""No extent counts as long: the text already has size parameters."""

PROGRAM = """\
import feinsum
import loopy as lp
from feinsum.ir import from_text
from feinsum.raising import identify_as_einsum
from feinsum.transforms import apply_spec

einsum = from_text({text!r})
recipe = feinsum.TransformSpec.parse({spec!r})
kernel = feinsum.generate_loopy(einsum{target})
kernel, nest = identify_as_einsum(kernel, einsum, long_extent={never})
kernel = apply_spec(recipe, kernel, nest)
print(lp.generate_code_v2(kernel).device_code())
"""

Words = Annotated[str, Query(max_length=2 * MAX_TEXT)]
OneDevice = Annotated[str, Query(pattern=f"^$|{CONTENT_ID}")]


def _render(service: Service, template: str, **context: Any) -> Response:
    # a page may be kept, and is checked before it is shown again
    headers = {"Cache-Control": f"{service.visibility}, no-cache"}
    return render_template(template, context, headers=headers)


@page("/")
def home(service: TheService, _: Reading) -> Response:
    return _render(
        service,
        "home.html",
        here="home",
        criteria=SearchCriteria(),
        overview=service.store.overview(),
        latest=_with_words(service.store.latest_facts(N_LATEST)),
    )


@page("/workloads")
def workloads(
    service: TheService,
    caller: Reading,
    q: Words = "",
    sizes: Words = "",
    dtype: Annotated[str, Query(max_length=50)] = "",
    device: OneDevice = "",
    order: Order = "speedup",
    cursor: Cursor = None,
) -> Response:
    """List all workloads, or those that match a search."""
    start = max(0, from_cursor(cursor, int)[0]) if cursor else 0
    criteria = SearchCriteria(q.strip(), sizes.strip(), dtype.strip(), device, order)
    result = _search(service, criteria, start, caller) if criteria.q else None
    having = criteria.having()
    listed = (
        result.others
        if result
        else service.store.ordered_workloads(start, PER_PAGE, order, having)
    )
    # the position counts workloads: their order is not that of their keys
    end = start + len(listed)
    following = make_next_cursor(
        listed, PER_PAGE, lambda _: (end,), lambda w: len(w.text)
    )
    exact = result.exact if result else None
    query = {name: value for name, value in asdict(criteria).items() if value}
    return _render(
        service,
        "workloads.html",
        here="workloads",
        criteria=criteria,
        result=result,
        listed=[(workload, make_notation(workload.text)) for workload in listed],
        exact_words=make_notation(exact.text) if exact else None,
        devices=_list_choices(service, device),
        query=urlencode(query),
        following=following,
    )


def _search(
    service: Service, criteria: SearchCriteria, start: int, caller: KeyHolder
) -> SearchView:
    limit_s = limit_for(caller, service.settings)
    try:
        check_work(criteria.q, caller)
    # a search that is refused is a message on the page, not another page
    except InvalidRequestError as error:
        return SearchView(problem=str(error))
    return search(criteria, service.store, limit_s, start, PER_PAGE)


@page("/workloads/{key}")
def workload(
    request: Request,
    key: Annotated[str, Path(max_length=200)],
    service: TheService,
    _: Reading,
) -> Response:
    """Show the recipes of a workload, ranked on each device."""
    store = service.store
    key = store.complete_key(check_key(key))
    listed = store.listed_workload(key)
    if listed is None:
        raise RecordNotFoundError(
            f"no fact is recorded for the workload {key!r}; search for its subscripts"
        )
    facts = store.fastest_facts(key, MAX_FACTS)
    return _render(
        service,
        "workload.html",
        here="workloads",
        listed=listed,
        words=make_notation(listed.text),
        # quoted for a shell: facts are written by others
        command=f"feinsum tune {quote(listed.text)} --database {request.base_url}",
        drawing=draw_graph(listed.text),
        chart=make_ranking(facts, _list_limits(service, facts)),
        n_unread=max(0, listed.n_facts - len(facts)),
        has_plans=bool(store.page_of_plans("", 1, key)),
    )


@page("/facts/{record_id}")
def fact(record_id: FactId, service: TheService, _: Reading) -> Response:
    """Show a fact, retracted or not, and the history of its recipe on all devices."""
    store = service.store
    record = store.stored(record_id)
    # the record itself may be retracted, or slower than all that are read
    candidates = (record, *store.fastest_facts(record.workload, MAX_FACTS))
    alike = {fact.id: fact for fact in candidates if fact.recipe == record.recipe}
    limits = _list_limits(service, alike.values())
    # recipes of the host are for C, others for OpenCL
    is_host = record.environment.device.platform == HOST_PLATFORM
    program = PROGRAM.format(
        text=record.workload_text,
        spec=str(record.spec),
        never=NEVER_LONG,
        target="" if is_host else ", target=lp.PyOpenCLTarget()",
    )
    chart = make_history(record, alike.values(), limits)
    return _render(
        service,
        "fact.html",
        here="workloads",
        record=record,
        trust=store.trust(record_id),
        words=make_notation(record.workload_text),
        program=program,
        chart=chart,
        # of the fact itself, wherever it is in the history
        fraction=next(r.fraction for r in chart.rows if r.record.id == record.id),
        marks=make_marks(record, limits[record.environment.device]),
    )


@page("/devices")
def devices(service: TheService, _: Reading, cursor: Cursor = None) -> Response:
    listed, following = DEVICES.read_page(service.store, cursor, PER_PAGE)
    return _render(
        service, "devices.html", here="devices", listed=listed, following=following
    )


@page("/devices/{device_id}")
def device(device_id: DeviceId, service: TheService, _: Reading) -> Response:
    """Show a device, and its roofline with the fastest recipes."""
    store = service.store
    listed = store.listed_device(device_id)
    if listed is None:
        raise RecordNotFoundError(f"no device has the id {device_id!r}")
    latest = store.latest_facts(N_IN_CHART, device_id)
    peaks = store.peaks(device_id)
    # without limits there is nothing to compare with
    chart = make_roofline_chart(latest, peaks) if peaks else None
    dots = (
        [(dot, make_notation(dot.fact.workload_text)) for dot in chart.dots]
        if chart
        else []
    )
    return _render(
        service,
        "device.html",
        here="devices",
        listed=listed,
        peaks=peaks,
        drivers=store.drivers_of(device_id),
        latest=_with_words(latest[:N_LATEST]),
        chart=chart,
        dots=dots,
    )


@page("/coverage")
def coverage(
    service: TheService,
    _: Reading,
    suite: Literal["tccg", "dgfem", "everyday"] = "tccg",
    device: OneDevice = "",
) -> Response:
    """Show which workloads of a suite have facts, and how fast the best of each is."""
    return _render(
        service,
        "coverage.html",
        here="coverage",
        suites=SUITES,
        suite=suite,
        device=device,
        devices=_list_choices(service, device),
        coverage=compute_coverage(suite, service.store, device),
    )


@page("/plans")
def plans(
    service: TheService,
    _: Reading,
    workload: Annotated[str, Query(max_length=200)] = "",
    cursor: Cursor = None,
) -> Response:
    """List plans by id: all, or those of an einsum or a program."""
    key = check_key(workload) if workload else None
    listed, following = PLANS.read_page(service.store, cursor, PER_PAGE, workload=key)
    plans = service.store.sound_plans([entry.id for entry in listed])
    return _render(
        service,
        "plans.html",
        here="plans",
        workload=workload,
        has_facts=bool(key and service.store.listed_workload(key)),
        listed=[(plan, make_title(plan)) for plan in plans],
        following=following,
    )


@page("/plans/{record_id}")
def plan(record_id: FactId, service: TheService, _: Reading) -> Response:
    """Show a plan: its counts, its fleet, and a picture of the grid for every step."""
    record = service.store.plan(record_id)
    return _render(
        service,
        "plan.html",
        here="plans",
        record=record,
        trust=service.store.trust(record_id),
        names=COUNTS,
        title=make_title(record),
        view=make_plan_view(record),
    )


@page("/static/{name}")
def static(name: str) -> Response:
    """Serve a file that pages load; without a key, as none of them has data."""
    file = get_asset(name)
    if file is None:
        raise NoSuchRouteError(f"there is no file {name[:50]!r}")
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(file.content, 200, headers, file.media_type)


def _list_choices(service: Service, chosen: str) -> list[tuple[str, str]]:
    """Return the devices that a page offers: ids and labels, by label."""
    page = service.store.page_of_devices("", MAX_CHOICES)
    devices = {entry.id: entry for entry in page}
    # the form keeps a choice that is beyond the first devices
    if chosen and chosen not in devices:
        listed = service.store.listed_device(chosen)
        devices |= {chosen: listed} if listed else {}
    labels = [(entry.id, format_device(entry.device)) for entry in devices.values()]
    return sorted(labels, key=lambda choice: choice[::-1])


def _with_words(facts: Iterable[TuningRecord]) -> list[tuple[TuningRecord, Notation]]:
    return [(fact, make_notation(fact.workload_text)) for fact in facts]


def _list_limits(service: Service, facts: Iterable[TuningRecord]) -> Limits:
    """Return the limits of the devices of some facts, in the order of the facts."""
    devices: dict[Device, None] = dict.fromkeys(f.environment.device for f in facts)
    return {device: service.store.peaks(device.id) for device in devices}
