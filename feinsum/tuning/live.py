"""A web page on this machine that shows a running tuning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Self

from feinsum.records import Trial
from feinsum.tuning.progress import Finalist, TuningProgress, TuningReport, TuningStart
from feinsum.tuning.report import page_of
from feinsum.words import counted

__all__ = ["LivePage"]

FOLLOW = """<script>
let shown;
setInterval(async () => {
  try {
    const page = await (await fetch(location)).text();
    if (page !== shown) document.documentElement.innerHTML = shown = page;
  } catch { /* the tuning has ended; its last page stays */ }
}, 2000);
</script>"""

NOT_BEGUN = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Tuning</title>
{FOLLOW}
</head>
<body>The tuning has not started yet.</body>
</html>
"""

PATIENCE_S = 4.0
"""How long browsers have to fetch the last page; they fetch it every two seconds."""


class LivePage:
    """Serves the report of the trials so far; see ``feinsum tune --live``.

    The page is updated between trials, so as not to disturb timings. At the end, a
    browser that shows it gets the time to fetch the last page.

    Attributes:
        url: its address, for browsers on this machine.
    """

    def __init__(self) -> None:
        self._page = NOT_BEGUN
        self._trials: list[Trial] = []
        self._is_followed, self._is_latest = False, Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._is_followed and error is None:
            self._is_latest.wait(PATIENCE_S)
        self._server.shutdown()
        self._server.server_close()

    def begin(self, start: TuningStart) -> None:
        """Before the first trial."""
        self._start = start
        self._trials = [*start.known]
        self._draw(f"{len(start.known)} of {counted(start.n_trials, 'trial')}")

    def show(self, progress: TuningProgress) -> None:
        """After a trial."""
        self._trials.append(progress.trial)
        left = progress.seconds_left
        remaining = "" if left is None else f", {timedelta(seconds=round(left))} left"
        self._draw(
            f"{progress.n_done} of {counted(progress.n_trials, 'trial')}{remaining}"
        )

    def final(self, finalists: Sequence[Finalist]) -> None:
        """When the best were timed again."""
        self._draw("done", tuple(finalists))

    def _draw(self, status: str, finalists: tuple[Finalist, ...] = ()) -> None:
        start = self._start
        report = TuningReport(
            start.problem,
            tuple(self._trials),
            (),
            finalists,
            start.environment,
            len(start.known),
            start.roofline_s,
        )
        self._page = page_of(report, status).replace("</head>", f"{FOLLOW}\n</head>")
        self._is_latest.clear()

    def _handler(live) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = live._page
                content = page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                live._is_followed = True
                if page is live._page:
                    live._is_latest.set()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the terminal shows the tuning."""

        return Handler
