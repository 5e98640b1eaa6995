"""What all connections share: the engine, who is there, what is allowed."""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from gma.decoding.streaming import StreamingTranslator
from gma.model.directory import Loaded
from gma.policies.base import CrossAttention, LatencyError
from gma.serve import protocol
from gma.serve.engine import Engine
from gma.serve.looks import Looks
from gma.serve.metrics import Metrics
from gma.serve.readers import Readers
from gma.serve.session import Refused, Session

# seconds without a beat after which the model thread is taken for dead
SILENCE = 30.0


class Service:
    """One model, its thread, and its connections.

    Args:
        name: of the model and its weights: a talk goes on only where it is the same.
        token: what speakers must know; None for nobody is asked.
        origins: web pages that may connect, beside those of this server.
    """

    def __init__(
        self,
        loaded: Loaded,
        name: str,
        limits: protocol.Limits,
        *,
        token: str | None = None,
        origins: tuple[str, ...] = (),
    ):
        self.loaded, self.model, self.limits = loaded, name, limits
        self.tokenizer = loaded.tokenizer
        self.languages = loaded.config.data.source, loaded.config.data.target
        self._token, self._origins = token, frozenset(origins)
        self.metrics = Metrics()
        self.readers = Readers(limits.readers, limits.unsent_events)
        self.looks = Looks(loaded, limits.attention_words)
        self.sessions: set[Session] = set()
        self._addresses: Counter[str] = Counter()
        self.connections = 0
        self.draining = False
        self.engine: Engine
        self.loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin translating; results come into the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.engine = Engine(
            StreamingTranslator(self.loaded),
            lambda tell: self.loop.call_soon_threadsafe(tell) and None,
            sentence_limit=self.limits.sentence_tokens,
            rate=self.limits.words_per_second,
            burst=self.limits.words_at_once,
        )
        self.engine.on_step = self.metrics.step
        self.engine.start()

    def stop(self) -> None:
        self.engine.stop()
        self.looks.stop()

    @property
    def alive(self) -> bool:
        return time.monotonic() - self.engine.beat < SILENCE

    def may_speak(self, connection: HTTPConnection, token: str | None) -> bool:
        """token: from the message; one in the header counts as well."""
        if self._token is None:
            return True
        scheme, _, given = connection.headers.get("authorization", "").partition(" ")
        header = given if scheme.lower() == "bearer" else ""
        # both are compared, each in constant time
        right = self._token.encode()
        matches = [
            hmac.compare_digest((offered or "").encode("utf-8", "surrogatepass"), right) for offered in (token, header)
        ]
        return any(matches)

    def is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether a web page of another site is behind a request. Who sends no Origin is no web page."""
        origin = headers.get("origin")
        if origin is None or origin in self._origins:
            return False
        return not headers.get("host") or urlsplit(origin).netloc != headers.get("host")

    def refusal(self, address: str) -> Refused | None:
        """Why no further connection is taken, before anything is spent on it."""
        if self.draining:
            return Refused("shutdown", "the server is shutting down", protocol.RESTART)
        if self.connections >= self.limits.sessions:
            return Refused("full", f"{self.limits.sessions} speakers are connected", protocol.BUSY)
        if self._addresses[address] >= self.limits.sessions_per_address:
            return Refused(
                "address_full",
                f"{self.limits.sessions_per_address} speakers are connected from your address",
                protocol.TOO_MANY,
            )
        return None

    def take_place(self, address: str) -> None:
        self.connections += 1
        self._addresses[address] += 1
        self.metrics.streams.set(self.connections)

    def give_place(self, address: str) -> None:
        self.connections -= 1
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self.metrics.streams.set(self.connections)

    def enter(self, session: Session) -> None:
        self.sessions.add(session)
        self.readers.open(session.id)

    def leave(self, session: Session) -> None:
        if session in self.sessions:
            self.sessions.discard(session)
            self.readers.close(session.id)

    def checked_latency(self, delta: float | None) -> float | None:
        if delta is None:
            return None
        try:
            return self.loaded.model.latency(delta)
        except (LatencyError, ValueError) as error:
            raise Refused("delta", str(error), protocol.POLICY_VIOLATION) from None

    def ready(self, session: str, key: str, delta: float | None) -> protocol.Ready:
        model = self.loaded.model
        low, high = self._usual_latencies()
        return protocol.Ready(
            session=session,
            key=key,
            model=self.model,
            languages=self.languages,
            policy=model.policy.name,
            layers=len(model.decoder.layers),
            positions=model.policy.has_positions,
            delta=protocol.DeltaRange(
                value=model.latency(delta),
                low=low,
                high=high,
                whole=not _can_keep(model.policy, low + 0.5),
                symbol=model.policy.latency_symbol,
            ),
            limits=self.limits,
        )

    def _usual_latencies(self) -> tuple[float, float]:
        """What a control goes from and to: what the model was trained for, or else somewhat beyond what is usual."""
        model = self.loaded.model
        usual = model.policy.usual_latencies or (0.0,)
        furthest = 2 * max(usual) if _can_keep(model.policy, 2 * max(usual)) else max(usual)
        low, high = model.trained_latencies or (0.0, 0.0)
        return (low, min(high, furthest)) if low < high else (min(usual), furthest)

    async def drain(self, seconds: float) -> None:
        """Say that the server closes, let everything be worked off, and close."""
        self.draining = True
        sessions = list(self.sessions)
        for session in sessions:
            session.shut_down(seconds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(session.idle for session in list(self.sessions)):
            await asyncio.sleep(0.05)
        for session in list(self.sessions):
            session.restart()
        self.readers.end_all()
        await asyncio.sleep(0.1)


def _can_keep(policy: type[CrossAttention], latency: float) -> bool:
    try:
        policy.checked_latency(latency)
    except LatencyError:
        return False
    return True
