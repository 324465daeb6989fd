"""The routes of the dashboard, and what answers them: bounded looks, as JSON. No HTML is made here."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from omniq.errors import Conflict, DuplicateTask, InvalidOption, NotFound, OmniqError, StoreUnavailable
from omniq.logic.health import Health, judge
from omniq.logic.why import why
from omniq.storage.base import BaseStorage
from omniq.storage.facts import facts_about, vital_signs, with_slots
from omniq.task import MAX_NAME_CHARS, Task, TaskFilter, TaskStatus, queue_name
from omniq.web import redacting, shapes
from omniq.web.events import Live, Stream, in_time
from omniq.web.guarding import Guard, refused

MAX_LIMIT: Final = 200
MAX_TEXT: Final = 200
MAX_BODY: Final = 4_096
TYPES: Final = {"css": "text/css", "js": "text/javascript", "html": "text/html", "svg": "image/svg+xml"}
FILES: Final = ("style.css", "app.js", "dom.js", "charts.js", "pages.js", "login.js", "icon.svg")


class Settings(Struct, frozen=True, kw_only=True):
    """Safe unless said otherwise: loopback names only, read-only, arguments hidden."""

    token: str | None = None
    hosts: tuple[str, ...] = ()
    allow_actions: bool = False
    show_args: bool = False


class Dashboard:
    """An ASGI application. At its first request it opens a clone of the storage, on the loop that serves."""

    def __init__(self, storage: BaseStorage, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._storage = storage.clone()
        self.live = Live(self._storage)
        self.app = Starlette(routes=self.routes(), lifespan=self._lifespan)
        self.guard = Guard(
            self.app,
            token=self.settings.token,
            hosts=self.settings.hosts,
            allow_actions=self.settings.allow_actions,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.guard(scope, receive, send)

    async def close(self) -> None:
        await self.live.stop()
        await self._storage.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.close()

    def routes(self) -> list[Route]:
        """Every way in. A test walks this list."""
        get, post = ["GET"], ["POST"]
        table: list[tuple[str, Callable[[Request], Awaitable[Response]], list[str]]] = [
            ("/", self._page, get),
            ("/login", self._login_page, get),
            ("/login", self._login, post),
            ("/static/{name}", self._file, get),
            ("/healthz", self._healthz, get),
            ("/metrics", self._metrics, get),
            ("/api/session", self._session, get),
            ("/api/overview", self._overview, get),
            ("/api/events", self._events, get),
            ("/api/tasks", self._tasks, get),
            ("/api/task", self._task, get),
            ("/api/workers", self._workers, get),
            ("/api/schedules", self._schedules, get),
            ("/api/task/{action}", self._act_on_task, post),
            ("/api/queue/{action}", self._act_on_queue, post),
            ("/api/schedule/{action}", self._act_on_schedule, post),
        ]
        return [
            # A probe has a limit of its own, and an answer of its own shape when that is over.
            Route(path, _answered(answer, limited=path != "/healthz"), methods=methods)
            for path, answer, methods in table
        ]

    # --- files -----------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        if not request.scope["path"].endswith("/"):  # mounted: addresses in the page are relative to it
            return RedirectResponse(request.scope["path"] + "/", status_code=303)
        return _file("index.html")

    async def _login_page(self, _: Request) -> Response:
        return _file("login.html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _file(name) if name in FILES else refused(404, "no such file")

    # --- who and whether -------------------------------------------------------------------------

    async def _login(self, request: Request) -> Response:
        said = (await _body(request)).get("token", "")
        if not isinstance(said, str) or not self.guard.is_token(said):
            await asyncio.sleep(0.5)  # so that guessing takes long
            return refused(401, "that is not the token")
        response = JSONResponse({"ok": True})
        self.guard.sign_in(request, response)
        return response

    async def _session(self, _: Request) -> Response:
        return JSONResponse(
            {
                "csrf": self.guard.csrf,
                "actions": self.settings.allow_actions,
                "args": self.settings.show_args,
                "store": redacting.address(self._storage.url),
            }
        )

    async def _healthz(self, request: Request) -> Response:
        """Whether work gets done. Names are only for those who may see them."""
        try:
            async with in_time(0.5):  # probes are in more of a hurry
                health = judge(*await vital_signs(self._storage))
        except OmniqError as exc:  # it names the store's address
            health = Health(False, (redacting.text(str(exc)),))
        known = self.guard.knows(request.headers) and (
            self.settings.token is not None or self.guard.serves(request.headers)
        )
        said = {"ok": health.ok} | ({"problems": health.problems, "notes": health.notes} if known else {})
        return JSONResponse(said, status_code=200 if health.ok else 503)

    async def _metrics(self, _: Request) -> Response:
        from omniq.web.metrics import CONTENT_TYPE, exposition

        return Response(await exposition(self._storage), media_type=CONTENT_TYPE)

    # --- looking ---------------------------------------------------------------------------------

    async def _overview(self, _: Request) -> Response:
        return JSONResponse(await shapes.overview(self._storage))

    async def _events(self, request: Request) -> Response:
        if request.method == "HEAD":  # nothing would ever end a stream that sends nothing
            return Response(media_type="text/event-stream")
        if self.live.is_full:
            return refused(503, "too many pages are open; close some")
        return Stream(self.live.follow())

    async def _tasks(self, request: Request) -> Response:
        asked = request.query_params
        after = _text(dict(asked), "after", MAX_NAME_CHARS)
        page = await self._storage.page(filter_of(dict(asked)), after, limit_of(asked.get("limit")))
        now = self._storage.clock.now()
        return JSONResponse({"tasks": [shapes.brief(task, now) for task in page.tasks], "after": page.after})

    async def _task(self, request: Request) -> Response:
        task_id = _text(dict(request.query_params), "id", MAX_NAME_CHARS) or ""
        facts = await facts_about(self._storage, task_id)
        runs = await self._storage.history(task_id)
        with_args = self.settings.show_args
        return JSONResponse(shapes.whole(facts.task, runs, why(facts), facts.now, with_args=with_args))

    async def _workers(self, request: Request) -> Response:
        """The one that is asked for first, then those that were heard of last."""
        now, wanted = self._storage.clock.now(), request.query_params.get("id")
        held: dict[str | None, list[Task]] = {}
        running = await self._storage.longest_running(shapes.MAX_RUNNING)
        for task in running:
            held.setdefault(task.owner, []).append(task)
        told: list[dict[str, Any]] = []
        found = sorted(await self._storage.workers(), key=lambda one: one.id != wanted)
        for one in found[:MAX_LIMIT]:
            slots = held.get(one.id, [])
            # Where these are not all, each is asked for: the store's own account, not the latest beat's.
            are_all = len(running) < shapes.MAX_RUNNING
            many = len(slots) if are_all else (await with_slots(self._storage, one)).in_flight
            told.append(shapes.worker(one, many, slots, now))
        return JSONResponse({"workers": told, "of": len(found)})

    async def _schedules(self, _: Request) -> Response:
        found = sorted(await self._storage.schedules(), key=lambda one: one.name)
        told = {"schedules": [shapes.schedule(one) for one in found[:MAX_LIMIT]], "of": len(found)}
        return JSONResponse(told)

    # --- steering --------------------------------------------------------------------------------

    async def _act_on_task(self, request: Request) -> Response:
        task_id = (await _body(request)).get("id")
        if not isinstance(task_id, str):
            raise InvalidOption("the body must be JSON with the id of a task")
        match request.path_params["action"]:
            case "retry":
                await self._storage.retry(task_id)
            case "cancel":
                await self._storage.cancel(task_id)
            case "delete":
                await self._storage.delete(task_id)
            case "run-now":
                await self._storage.reschedule(task_id, self._storage.clock.now())
            case _:
                return refused(404, "an action is retry, cancel, delete or run-now")
        self.live.look_soon()
        return JSONResponse({"ok": True})

    async def _act_on_queue(self, request: Request) -> Response:
        name = queue_name((await _body(request)).get("queue", ""))
        match request.path_params["action"]:
            case "pause":
                await self._storage.pause(name)
            case "resume":
                await self._storage.resume(name)
            case _:
                return refused(404, "an action is pause or resume")
        self.live.look_soon()
        return JSONResponse({"ok": True})

    async def _act_on_schedule(self, request: Request) -> Response:
        name = (await _body(request)).get("name")
        if not isinstance(name, str):
            raise InvalidOption("the body must be JSON with the name of a schedule")
        made: str | None = None
        match request.path_params["action"]:
            case "pause":
                await self._storage.pause_schedule(name)
            case "resume":
                await self._storage.resume_schedule(name)
            case "run":
                made = str(await self._storage.run_schedule(name))
            case _:
                return refused(404, "an action is pause, resume or run")
        self.live.look_soon()
        return JSONResponse({"ok": True, "id": made})


# --- from requests to values, from errors to answers ---------------------------------------------

_STATUS_OF: Final[tuple[tuple[type[OmniqError], int], ...]] = (
    (NotFound, 404),
    (DuplicateTask, 409),
    (Conflict, 409),
    (InvalidOption, 400),
    (StoreUnavailable, 503),
)


def _answered(
    answer: Callable[[Request], Awaitable[Response]], *, limited: bool
) -> Callable[[Request], Awaitable[Response]]:
    async def safely(request: Request) -> Response:
        try:
            async with in_time() if limited else contextlib.nullcontext():
                return await answer(request)
        except OmniqError as exc:
            status = next((code for kind, code in _STATUS_OF if isinstance(exc, kind)), 500)
            return refused(status, redacting.text(str(exc)))

    return safely


def _file(name: str) -> Response:
    content = (files("omniq.web") / "static" / name).read_bytes()
    return Response(content, media_type=TYPES[name.rpartition(".")[2]])


async def _body(request: Request) -> dict[str, Any]:
    """JSON only: a form of another site cannot send that without asking first."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise InvalidOption("send JSON, with content-type: application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise InvalidOption(f"the body must be at most {MAX_BODY} bytes")
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise InvalidOption("the body must be a JSON object")
    return {str(key): value for key, value in said.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def limit_of(asked: str | None) -> int:
    """At most so many, whatever is asked for."""
    try:
        return max(1, min(MAX_LIMIT, int((asked or "50")[:12])))
    except ValueError:
        raise InvalidOption("limit must be a number, such as 50") from None


def filter_of(asked: dict[str, str]) -> TaskFilter:
    status = asked.get("status") or None
    try:
        known = None if status is None else TaskStatus(status.upper())
    except ValueError:
        raise InvalidOption(f"status must be one of {', '.join(TaskStatus)}") from None
    return TaskFilter(
        status=known,
        queue=_text(asked, "queue"),
        func_path=_text(asked, "func"),
        owner=_text(asked, "owner"),
        error=_text(asked, "error"),
        enqueued_after=_moment(asked, "enqueued_after"),
        enqueued_before=_moment(asked, "enqueued_before"),
        finished_after=_moment(asked, "finished_after"),
        finished_before=_moment(asked, "finished_before"),
    )


def _text(asked: dict[str, str], name: str, limit: int = MAX_TEXT) -> str | None:
    said = asked.get(name) or None
    if said is not None and ("\x00" in said or not _encodable(said)):
        raise InvalidOption(f"{name} has characters that no text has")
    return None if said is None else said[:limit]


def _encodable(said: str) -> bool:
    try:
        return bool(said.encode())
    except UnicodeEncodeError:
        return False


def _moment(asked: dict[str, str], name: str) -> datetime | None:
    said = asked.get(name) or None
    if said is None:
        return None
    try:
        at = datetime.fromisoformat(said[:40])
    except ValueError:
        raise InvalidOption(f"{name} must be a moment such as 2026-01-31T12:00:00Z") from None
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{name} is beyond the last moment that UTC can name") from None
