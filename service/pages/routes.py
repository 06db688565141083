"""The pages, by their paths; reading them takes what reading ``/v1`` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from feinsum.db.server import Order
from feinsum.errors import (
    InvalidRequestError,
    NoSuchRouteError,
    RecordNotFoundError,
)
from feinsum.records import Device, DevicePeaks, TuningRecord
from feinsum.records.environment import HOST_PLATFORM
from feinsum.service.answers import check_key
from feinsum.service.keys import KeyHolder
from feinsum.service.pages.graph import drawing_of
from feinsum.service.pages.notation import Notation, notation_of
from feinsum.service.pages.plan import COUNTS, title_of, view_of
from feinsum.service.pages.ranking import history_of, rankings_of, timeline_of
from feinsum.service.pages.rendering import asset, html
from feinsum.service.pages.roofline import roofline_chart
from feinsum.service.pages.search import (
    MAX_TEXT,
    SearchCriteria,
    SearchView,
    search,
)
from feinsum.service.pages.words import label
from feinsum.service.paging import Cursor, from_cursor, key_after, next_cursor
from feinsum.service.routes.canonicalization import check_work, limit_for
from feinsum.service.routes.documents import CONTENT_ID, DeviceId, FactId, PlanId
from feinsum.service.routes.retractions import before
from feinsum.service.state import Reading, Service, TheService

router = APIRouter(include_in_schema=False)

page = partial(router.api_route, methods=["GET", "HEAD"], response_class=Response)

FOREVER = "max-age=31536000, immutable"

PER_PAGE = 50
"""Entries of a list on one page."""

MAX_FACTS = 500
"""Facts of a workload that are ranked, the fastest ones."""

MAX_CHOICES = 100
"""Devices that a page offers for a search."""

N_LATEST = 8
N_IN_CHART = 200

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

NEVER_LONG = 1 << 62
"""No extent counts as long: the text has size parameters already."""

Words = Annotated[str, Query(max_length=2 * MAX_TEXT)]


@page("/")
def home(service: TheService, _: Reading) -> Response:
    store = service.store
    return _html(
        service,
        "home.html",
        here="home",
        criteria=SearchCriteria(),
        overview=store.overview(),
        latest=_with_words(store.latest_facts(N_LATEST)),
    )


@page("/workloads")
def workloads(
    service: TheService,
    caller: Reading,
    q: Words = "",
    sizes: Words = "",
    dtype: Annotated[str, Query(max_length=50)] = "",
    device: Annotated[str, Query(pattern=f"^$|{CONTENT_ID}")] = "",
    order: Order = "speedup",
    cursor: Cursor = None,
) -> Response:
    """All workloads, or those that are searched for."""
    start = max(0, from_cursor(cursor, int)[0]) if cursor else 0
    criteria = SearchCriteria(q.strip(), sizes.strip(), dtype.strip(), device, order)
    result = _search(service, criteria, start, caller) if criteria.q else None
    if result:
        listed = result.others
    else:
        listed = service.store.ordered_workloads(
            start, PER_PAGE, order, criteria.having()
        )
    exact = result.exact if result else None
    query = {name: value for name, value in asdict(criteria).items() if value}
    return _html(
        service,
        "workloads.html",
        here="workloads",
        criteria=criteria,
        result=result,
        listed=[(workload, notation_of(workload.text)) for workload in listed],
        exact_words=notation_of(exact.text) if exact else None,
        devices=_choices(service, device),
        query=urlencode(query),
        following=next_cursor(
            listed,
            PER_PAGE,
            lambda _: (start + len(listed),),
            lambda workload: len(workload.text),
        ),
    )


@page("/workloads/{key}")
def workload(
    key: Annotated[str, Path(max_length=200)], service: TheService, _: Reading
) -> Response:
    store = service.store
    listed = store.listed_workload(check_key(key))
    if listed is None:
        raise RecordNotFoundError(
            f"no fact is recorded for the workload {key!r}; search for its subscripts"
        )
    facts = store.fastest_facts(key, MAX_FACTS)
    peaks = _peaks(service, (fact.environment.device for fact in facts))
    rankings = rankings_of(facts, peaks)
    return _html(
        service,
        "workload.html",
        here="workloads",
        listed=listed,
        words=notation_of(listed.text),
        drawing=drawing_of(listed.text),
        rankings=rankings,
        axis=rankings[0].axis if rankings else None,
        n_unread=max(0, listed.n_facts - len(facts)),
        has_plans=bool(store.page_of_plans("", 1, key)),
    )


@page("/facts/{record_id}")
def fact(record_id: FactId, service: TheService, _: Reading) -> Response:
    """A fact, retracted or not, and the history of its recipe on all devices."""
    store = service.store
    record = store.stored(record_id)
    # the record itself may be retracted, or slower than all that are read
    candidates = (*store.fastest_facts(record.workload, MAX_FACTS), record)
    alike = {fact.id: fact for fact in candidates if fact.recipe == record.recipe}
    facts = alike.values()
    peaks = _peaks(service, (fact.environment.device for fact in facts))
    return _html(
        service,
        "fact.html",
        here="workloads",
        record=record,
        trust=store.trust(record_id),
        words=notation_of(record.workload_text),
        code=_code_of(record),
        timeline=timeline_of(record, peaks[record.environment.device]),
        histories=[
            history_of(
                device, [f for f in facts if f.environment.device == device], limits
            )
            for device, limits in peaks.items()
        ],
    )


@page("/devices")
def devices(service: TheService, _: Reading, cursor: Cursor = None) -> Response:
    listed = service.store.page_of_devices(key_after(cursor), PER_PAGE)
    following = next_cursor(
        listed, PER_PAGE, lambda entry: (entry.id,), lambda entry: entry.n_characters
    )
    return _html(
        service, "devices.html", here="devices", listed=listed, following=following
    )


@page("/devices/{device_id}")
def device(device_id: DeviceId, service: TheService, _: Reading) -> Response:
    store = service.store
    listed = store.listed_device(device_id)
    if listed is None:
        raise RecordNotFoundError(f"no device has the id {device_id!r}")
    latest = store.latest_facts(N_IN_CHART, device_id)
    peaks = store.peaks(device_id)
    return _html(
        service,
        "device.html",
        here="devices",
        listed=listed,
        peaks=peaks,
        drivers=store.drivers_of(device_id),
        latest=_with_words(latest[:N_LATEST]),
        # without limits there is nothing to compare with
        chart=roofline_chart(latest, peaks) if peaks else None,
    )


@page("/demand")
async def demand(
    request: Request, service: TheService, _: Reading, cursor: Cursor = None
) -> Response:
    after = from_cursor(cursor, int, int, str, str) if cursor else None
    await service.misses.flush()
    listed = await run_in_threadpool(service.store.demands, after, PER_PAGE)
    following = next_cursor(
        listed,
        PER_PAGE,
        lambda entry: entry.sort_key,
        lambda entry: len(entry.workload_text or ""),
    )
    devices = await run_in_threadpool(service.store.page_of_devices, "", 1000)
    return _html(
        service,
        "demand.html",
        here="demand",
        listed=[(entry, notation_of(entry.workload_text or "")) for entry in listed],
        names={entry.id: label(entry.device) for entry in devices},
        url=str(request.base_url).rstrip("/"),
        following=following,
    )


@page("/retractions")
def retractions(
    request: Request, service: TheService, _: Reading, cursor: Cursor = None
) -> Response:
    listed = service.store.retractions(before(cursor), PER_PAGE)
    following = next_cursor(
        listed, PER_PAGE, lambda entry: (entry.retracted_at, entry.id)
    )
    stored = service.store.stored_ids([entry.document for entry in listed])
    return _html(
        service,
        "retractions.html",
        here="retractions",
        listed=[(entry, entry.document in stored) for entry in listed],
        url=str(request.base_url).rstrip("/"),
        following=following,
    )


@page("/plans")
def plans(
    service: TheService,
    _: Reading,
    workload: Annotated[str, Query(max_length=200)] = "",
    cursor: Cursor = None,
) -> Response:
    """Plans by id: all, or those of an einsum or a program."""
    wanted = check_key(workload) if workload else None
    page = service.store.page_of_plans(key_after(cursor), PER_PAGE, wanted)
    following = next_cursor(
        page, PER_PAGE, lambda entry: (entry.id,), lambda entry: len(entry.document)
    )
    listed = service.store.sound_plans([entry.id for entry in page])
    return _html(
        service,
        "plans.html",
        here="plans",
        workload=workload,
        has_facts=bool(wanted and service.store.listed_workload(wanted)),
        listed=[(plan, title_of(plan)) for plan in listed],
        following=following,
    )


@page("/plans/{record_id}")
def plan(record_id: PlanId, service: TheService, _: Reading) -> Response:
    """A plan: its counts, its fleet, and a picture of the grid for every step."""
    record = service.store.plan(record_id)
    return _html(
        service,
        "plan.html",
        here="plans",
        record=record,
        trust=service.store.trust(record_id),
        names=COUNTS,
        title=title_of(record),
        view=view_of(record),
    )


@page("/static/{name}")
def static(name: str) -> Response:
    """A file that pages load; without a key, as none of them has data."""
    file = asset(name)
    if file is None:
        raise NoSuchRouteError(f"there is no file {name[:50]!r}")
    headers = {
        "Cache-Control": f"public, {FOREVER}",
        "X-Content-Type-Options": "nosniff",
    }
    return Response(file.content, 200, headers, file.media_type)


def _search(
    service: Service, criteria: SearchCriteria, start: int, caller: KeyHolder
) -> SearchView:
    limit_s = limit_for(caller, service.settings)
    try:
        check_work(criteria.q, caller)
    # a search that is refused is a message on the page, not another page
    except InvalidRequestError as error:
        return SearchView(problem=str(error))
    return search(criteria, service.store, service.notations, limit_s, start, PER_PAGE)


def _html(service: Service, template: str, **context: Any) -> Response:
    # a page may be kept, and is checked before it is shown again
    headers = {"Cache-Control": f"{service.visibility}, no-cache"}
    return html(template, context, headers=headers)


def _choices(service: Service, chosen: str) -> list[tuple[str, str]]:
    """The devices that a page offers, with the chosen one: ids and labels, by label."""
    page = service.store.page_of_devices("", MAX_CHOICES)
    devices = {entry.id: entry for entry in page}
    # the form keeps a choice that is beyond the first devices
    if chosen and chosen not in devices:
        listed = service.store.listed_device(chosen)
        devices |= {chosen: listed} if listed else {}
    labels = [(entry.id, label(entry.device)) for entry in devices.values()]
    return sorted(labels, key=lambda choice: choice[::-1])


def _with_words(
    facts: Iterable[TuningRecord],
) -> list[tuple[TuningRecord, Notation]]:
    return [(fact, notation_of(fact.workload_text)) for fact in facts]


def _peaks(
    service: Service, devices: Iterable[Device]
) -> Mapping[Device, DevicePeaks | None]:
    """The limits of some devices; in the order of these, each once."""
    return {device: service.store.peaks(device.id) for device in dict.fromkeys(devices)}


def _code_of(record: TuningRecord) -> str:
    """A program that prints the code of a recipe, for a reader to copy."""
    # recipes of the host are for C, others for OpenCL
    is_host = record.environment.device.platform == HOST_PLATFORM
    return PROGRAM.format(
        text=record.workload_text,
        spec=str(record.spec),
        never=NEVER_LONG,
        target="" if is_host else ", target=lp.PyOpenCLTarget()",
    )
