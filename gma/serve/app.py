"""The routes, what every answer carries, and the server around them."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from gma.serve import protocol
from gma.serve.alignatt import Sidecar
from gma.serve.service import Service
from gma.serve.session import Refused, Session
from gma.serve.texts import Texts

PAGE = Path(__file__).parent / "page"
DRAIN_SECONDS = 10.0
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# why a connection is not taken, as HTTP before there is a WebSocket
_STATUS = {
    protocol.RESTART: 503,
    protocol.BUSY: 503,
    protocol.TOO_MANY: 429,
    protocol.FOREIGN_ORIGIN: 403,
    protocol.UNAUTHORIZED: 401,
    protocol.NOT_FOUND: 404,
}


class SafeHeaders:
    """Puts the security headers on every HTTP answer."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


def create(service: Service) -> Starlette:
    """The application around a service."""

    async def taken(socket: WebSocket) -> str | None:
        """The address of a connection that has been given a place; None if it was refused."""
        address = socket.client.host if socket.client else ""
        refusal = service.refusal(address)
        if service.is_foreign(socket.headers):
            refusal = Refused("origin", "the page comes from another site", protocol.FOREIGN_ORIGIN)
        if refusal is not None:
            service.metrics.refused(refusal.error.code)
            await socket.send_denial_response(_refused(refusal))
            return None
        service.take_place(address)
        return address

    async def stream(socket: WebSocket) -> None:
        if (address := await taken(socket)) is None:
            return
        session = Session(service, socket)
        try:
            await socket.accept()
            await session.run()
        finally:
            service.leave(session)
            service.give_place(address)

    async def alignatt(socket: WebSocket) -> None:
        if not service.may_speak(socket, socket.query_params.get("token")):
            refused = Refused("unauthorized", "the token is missing or wrong", protocol.UNAUTHORIZED)
            await socket.send_denial_response(_refused(refused))
        elif (address := await taken(socket)) is not None:
            try:
                await socket.accept()
                await Sidecar(service, socket).run()
            finally:
                service.give_place(address)

    async def watch(request: Request) -> Response:
        session = request.path_params["session"]
        if service.is_foreign(request.headers):
            return _refused(Refused("origin", "the page comes from another site", protocol.FOREIGN_ORIGIN))
        if session not in service.readers:
            return _refused(Refused("no_session", "nobody speaks in this session", protocol.NOT_FOUND))
        if service.readers.is_full(session):
            return _refused(Refused("readers", "too many readers", protocol.BUSY))
        last = request.headers.get("last-event-id", "0")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 17 else 0
        return StreamingResponse(
            service.readers.events(session, after),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    texts = Texts(service.loaded, service.limits.text_words)

    async def translate(request: Request) -> Response:
        if service.is_foreign(request.headers):
            return _refused(Refused("origin", "the page comes from another site", protocol.FOREIGN_ORIGIN))
        if not service.may_speak(request, None):
            return _refused(Refused("unauthorized", "the token is missing or wrong", protocol.UNAUTHORIZED))
        return await texts.answer(request)

    async def health(request: Request) -> Response:
        silent = service.alive
        return JSONResponse({"model_thread": "alive" if silent else "silent"}, status_code=200 if silent else 503)

    async def ready(request: Request) -> Response:
        takes = service.alive and not service.draining
        return JSONResponse({"ready": takes}, status_code=200 if takes else 503)

    async def metrics(request: Request) -> Response:
        service.metrics.queue.set(service.engine.queued)
        service.metrics.beat.set(max(0.0, asyncio.get_running_loop().time() - service.engine.beat))
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def schema(request: Request) -> Response:
        return JSONResponse(protocol.schema())

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await asyncio.get_running_loop().run_in_executor(None, service.stop)

    routes = [
        WebSocketRoute("/v1/stream", stream),
        Route("/v1/watch/{session}", watch),
        Route("/v1/translate", translate, methods=["POST"]),
        WebSocketRoute("/alignatt", alignatt),
        Route("/v1/schema.json", schema),
        Route("/healthz", health),
        Route("/readyz", ready),
        Route("/metrics", metrics),
        Mount("/", StaticFiles(directory=PAGE, html=True)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(SafeHeaders)], lifespan=lifespan)


def _refused(refused: Refused) -> Response:
    status = _STATUS[refused.error.close]
    headers = {"retry-after": "5"} if status in (429, 503) else {}
    return JSONResponse(json.loads(refused.error.model_dump_json()), status_code=status, headers=headers)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """uvicorn takes a connection that is answered by HTTP for an error; a flood of them must not fill the log."""
    return record.msg != "ASGI callable returned without completing handshake."


class Server(uvicorn.Server):
    """uvicorn, draining before it closes what is open."""

    def __init__(self, service: Service, *, proxies: str | None = None):
        config = uvicorn.Config(
            create(service),
            log_level="warning",
            access_log=False,
            proxy_headers=proxies is not None,
            forwarded_allow_ips=proxies,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=service.limits.message_bytes,
            # keeps proxies from closing a silent connection; a client whose answer is late may be busy sending
            ws_ping_interval=20.0,
            ws_ping_timeout=None,
            timeout_graceful_shutdown=2,
            limit_concurrency=None,
        )
        super().__init__(config)
        logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
        self._service = service

    async def shutdown(self, sockets: list | None = None) -> None:
        if not self.force_exit:
            await self._service.drain(DRAIN_SECONDS)
        await super().shutdown(sockets)
