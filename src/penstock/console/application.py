"""The application behind the gate: pages and their twins, changes, streams, errors, static files.

    /audit ─▶ HTML   /audit.json ─▶ data   /audit.live ─▶ the changing part, again and again

Rules that hold here:
- Pages run in threads; the loop serves streams.
- A stream looks before each round whether its session holds: it ends with it.
- An error is told in the shape of what was asked for: a page with the next step, or a problem.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.types import Message, Receive, Scope, Send

from penstock import __version__
from penstock.console.access import HiddenError, MissingError, NobodyError
from penstock.console.desk import VISIT, Desk, Visit, Visitor
from penstock.console.gate import ERROR, sign_in_path
from penstock.console.rendering import Renderer, load_assets
from penstock.console.rooms import Action, Again, Done, Page, Room, signature_of
from penstock.errors import DeniedError, InvalidError, PenstockError, UnavailableError, UsageError
from penstock.server.callers import TooLargeError, TooManyError
from penstock.telemetry import counter, gauge, get_logger

VIEWS: Final = counter(
    "penstock_console_answers",
    "Answers of the console, by what was asked for and the class of the status.",
    kind=("page", "json", "live", "action", "static"),
    status=("2xx", "3xx", "4xx", "5xx"),
)
STREAMS: Final = gauge("penstock_console_streams", "Pages that follow what happens now.")
_LONGEST_REST: Final = 15.0
_log = get_logger("console")

_TOLD: Final[tuple[tuple[type[Exception], HTTPStatus], ...]] = (
    (NobodyError, HTTPStatus.UNAUTHORIZED),
    (MissingError, HTTPStatus.NOT_FOUND),
    (HiddenError, HTTPStatus.FORBIDDEN),
    (TooManyError, HTTPStatus.TOO_MANY_REQUESTS),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (DeniedError, HTTPStatus.FORBIDDEN),
    (InvalidError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (UsageError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
)


class Streams:
    """How many streams there are, in all and of each user."""

    def __init__(self, most: int, per_user: int) -> None:
        self._most = most
        self._per_user = per_user
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.closing = asyncio.Event()

    def enter(self, user: str) -> None:
        """Count one more; refuse it where there are enough."""
        with self._lock:
            if self._open.total() >= self._most or self._open[user] >= self._per_user:
                raise TooManyError("too many pages follow what happens", 30.0)
            self._open[user] += 1
        STREAMS.plain.inc()

    def leave(self, user: str) -> None:
        """Count one less."""
        with self._lock:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
        STREAMS.plain.dec()

    async def rest(self, seconds: float) -> bool:
        """Wait; say whether the console goes on."""
        try:
            await asyncio.wait_for(self.closing.wait(), seconds)
        except TimeoutError:
            return True
        return False


class CountedStream(StreamingResponse):
    """A stream that is counted until it is over, also where its browser left before it began."""

    def __init__(
        self,
        content: AsyncIterable[Any],
        leave: Callable[[], None],
        headers: Mapping[str, str] | None = None,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


class Application:
    """Makes the routes of rooms."""

    def __init__(
        self, desk: Desk, rooms: Sequence[Room], renderer: Renderer, streams: Streams
    ) -> None:
        self._desk = desk
        self._renderer = renderer
        self._streams = streams
        self.app = FastAPI(
            title="Penstock console",
            version=__version__,
            description="What the pages of the console show, as data. Sign in, or send "
            "`Authorization: Bearer TOKEN` (`penstock tokens make`).",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
        )
        for room in rooms:
            for page in room.pages:
                self._add_page(room, page)
            for action in room.actions:
                self._add_action(room, action)
        self._add_home(rooms)
        self._add_static()
        for kind in (RequestValidationError, HTTPException, PenstockError, Exception):
            self.app.add_exception_handler(kind, self._on_error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call, or say why the gate refused it."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                VIEWS[_kind_of(scope), f"{message['status'] // 100}xx"].inc()
            await send(message)

        error = scope["state"].get(ERROR)
        if error is None:
            await self.app(scope, receive, counted)
            return
        made = await self._on_error(Request(scope), error)
        await made(scope, receive, counted)

    # --- routes ---

    def _add_page(self, room: Room, page: Page) -> None:
        signature = signature_of(page.load)

        def look(values: dict[str, Any]) -> tuple[Visit, Any]:
            visit: Visit = values["visit"]
            visit.require(room.sees)
            return visit, page.load(**values)

        def show(**values: Any) -> HTMLResponse:
            request = values.pop("request")
            visit, data = look(values)
            return self._renderer.page(request, visit, room, page, data)

        def answer(**values: Any) -> Any:
            return look(values)[1]

        asked = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        _sign(show, signature, asked)
        _sign(answer, signature)
        name = page.path.strip("/").replace("/", "-")
        self.app.add_api_route(
            page.path,
            show,
            response_class=HTMLResponse,
            include_in_schema=False,
            response_model=None,
        )
        self.app.add_api_route(
            f"{page.path}.json",
            answer,
            response_model=signature.return_annotation,
            operation_id=name,
            name=name,
            summary=page.title,
            description=inspect.getdoc(page.load) or page.title,
            tags=[room.title],
        )
        if page.live is not None:
            self._add_stream(room, page, page.live, signature)

    def _add_stream(
        self, room: Room, page: Page, template: str, signature: inspect.Signature
    ) -> None:
        def render(values: dict[str, Any]) -> str | None:
            visit = self._desk.revisit(values["visit"])
            if visit is None:
                return None
            visit.require(room.sees)
            values["visit"] = visit
            return self._renderer.fragment(visit, template, page.load(**values))

        async def follow(**values: Any) -> Response:
            request = values.pop("request")
            values["visit"].require(room.sees)
            self._streams.enter(values["visit"].user)
            request.scope["state"]["connection"].keep_open()
            rounds = self._rounds(values, render, page.every)
            return CountedStream(rounds, partial(self._streams.leave, values["visit"].user))

        asked = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        _sign(follow, signature, asked)
        self.app.add_api_route(
            f"{page.path}.live", follow, include_in_schema=False, response_model=None
        )

    async def _rounds(
        self, values: dict[str, Any], render: Callable[[dict[str, Any]], str | None], every: float
    ) -> AsyncIterator[str]:
        shown, rested = "", 0.0
        while True:
            try:
                made = await asyncio.to_thread(render, values)
            except PenstockError as error:
                yield write_event("trouble", str(error))
                made = shown
            if made is None:
                yield write_event("ended", "")
                return
            rested += every
            if made != shown:
                shown, rested = made, 0.0
                yield write_event("fragment", made)
            elif rested >= _LONGEST_REST:
                rested = 0.0
                yield ":\n\n"  # so that who went away is noticed
            if not await self._streams.rest(every):
                return

    def _add_action(self, room: Room, action: Action) -> None:
        signature = signature_of(action.run)

        def act(**values: Any) -> Response:
            request = values.pop("request")
            visit: Visit = values["visit"]
            visit.require(room.sees)
            if action.streams:
                return self._send_counted(request, visit.user, partial(action.run, **values))
            made = action.run(**values)
            if isinstance(made, Again):
                return self._renderer.again(request, visit, room, made)
            assert isinstance(made, Done)  # noqa: S101 - what actions return
            if made.said:
                self._desk.tell(visit, made.said)
            return RedirectResponse(made.to, HTTPStatus.SEE_OTHER)

        asked = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        _sign(act, signature, asked)
        self.app.add_api_route(
            action.path, act, methods=["POST"], include_in_schema=False, response_model=None
        )

    def _send_counted(
        self, request: Request, user: str, run: Callable[[], StreamingResponse]
    ) -> Response:
        """Send an answer that goes on for a while; it takes a place among the streams."""
        self._streams.enter(user)
        leave = partial(self._streams.leave, user)
        try:
            made = run()
        except BaseException:
            leave()
            raise
        request.scope["state"]["connection"].keep_open()
        kept = {name: it for name, it in made.headers.items() if name != "content-type"}
        return CountedStream(made.body_iterator, leave, kept, made.media_type or "")

    def _add_home(self, rooms: Sequence[Room]) -> None:
        @self.app.get("/", include_in_schema=False)
        def home(visit: Visitor) -> Response:
            seen = [it for it in sorted(rooms, key=lambda it: it.order) if visit.sees(it.sees)]
            first = next((it.home for it in seen if it.needs), "/account")
            return RedirectResponse(first, HTTPStatus.SEE_OTHER)

    def _add_static(self) -> None:
        @self.app.get("/static/{mark}/{name}", include_in_schema=False)
        async def static(mark: str, name: str) -> Response:
            found = load_assets().get(name)
            if found is None or found.mark != mark:
                raise HTTPException(HTTPStatus.NOT_FOUND)
            headers = {"Cache-Control": "public, max-age=31536000, immutable"}
            return Response(found.content, media_type=found.media_type, headers=headers)

    # --- errors ---

    async def _on_error(self, request: Request, error: Exception) -> Response:
        path = request.url.path
        status, message, fix, problems = describe(error)
        wants_page = not path.endswith((".json", ".live")) and not path.startswith("/static/")
        if isinstance(error, NobodyError) and wants_page and request.method in {"GET", "HEAD"}:
            return RedirectResponse(sign_in_path(request.scope), HTTPStatus.SEE_OTHER)
        if not wants_page:
            body = {"status": status, "title": message, "fix": fix, "problems": problems}
            return JSONResponse(body, status, media_type="application/problem+json")
        visit = request.scope["state"].get(VISIT)
        return await asyncio.to_thread(
            self._renderer.plain,
            request,
            "error.html",
            HTTPStatus(status).phrase,
            status,
            visit=visit,
            embedded=path == "/choices",
            message=message,
            fix=fix,
            problems=problems,
        )


def describe(error: Exception) -> tuple[int, str, str, list[dict[str, str]]]:
    """Return what people are told of an error: status, message, next step, single problems."""
    if isinstance(error, InvalidError):
        problems = [
            {"place": it.place, "message": it.message, "fix": it.fix or ""} for it in error.problems
        ]
        return int(HTTPStatus.UNPROCESSABLE_ENTITY), error.message, error.fix or "", problems
    if isinstance(error, RequestValidationError):
        places = [
            {"place": ".".join(map(str, it["loc"][1:])), "message": str(it["msg"]), "fix": ""}
            for it in error.errors()[:10]
        ]
        status = int(HTTPStatus.UNPROCESSABLE_ENTITY)
        return status, "the address does not fit", "correct what is named", places
    if isinstance(error, HTTPException):
        fix = "look for it in the navigation, or search"
        return error.status_code, "there is no such page", fix, []
    if isinstance(error, PenstockError):
        for kind, status in _TOLD:
            if isinstance(error, kind):
                return int(status), error.message, error.fix or "", []
    _log.error("a page failed", error=error)
    return 500, "the console failed", "try again; its log says why", []


def write_event(name: str, text: str) -> str:
    """Return a server-sent event."""
    # Browsers end a line at CR, too: what others wrote begins no field of its own.
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = "\n".join(f"data: {line}" for line in plain.split("\n"))
    return f"event: {name}\n{lines}\n\n"


def _kind_of(scope: Scope) -> str:
    path = scope["path"]
    if path.startswith("/static/"):
        return "static"
    if scope["method"] == "POST":
        return "action"
    ends = path.rpartition(".")[2]
    return ends if ends in {"json", "live"} else "page"


def _sign(
    function: Callable[..., Any], signature: inspect.Signature, *more: inspect.Parameter
) -> None:
    """Give a function of any keywords the parameters of another, for who looks at them."""
    kept = [it.replace(kind=inspect.Parameter.KEYWORD_ONLY) for it in signature.parameters.values()]
    function.__signature__ = inspect.Signature([*kept, *more])  # type: ignore[attr-defined]
