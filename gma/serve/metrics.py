"""What `/metrics` shows, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.streams = Gauge("gma_streams", "Speakers who are connected", registry=self.registry)
        self.queue = Gauge("gma_queued_messages", "Messages that no step has taken", registry=self.registry)
        self.beat = Gauge(
            "gma_model_thread_silent_seconds", "Since the model thread came round", registry=self.registry
        )
        self._words = Counter("gma_words", "Words written", registry=self.registry)
        self._refused = Counter(
            "gma_refused", "Connections that were refused or closed", ["code"], registry=self.registry
        )
        self._step = Histogram("gma_step_seconds", "One step of the model", buckets=_SECONDS, registry=self.registry)
        self._together = Histogram(
            "gma_step_streams",
            "Speakers in one step",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self._lag = Histogram(
            "gma_word_lag_seconds",
            "Delay of a written word: from what it is aligned to, to what it waited for; queued; computed",
            ["part"],
            buckets=_SECONDS,
            registry=self.registry,
        )

    def word(self, policy: float, queued: float, computed: float) -> None:
        self._words.inc()
        for part, seconds in (("policy", policy), ("queue", queued), ("compute", computed)):
            self._lag.labels(part).observe(seconds)

    def step(self, seconds: float, speakers: int) -> None:
        self._step.observe(seconds)
        self._together.observe(speakers)

    def refused(self, code: str) -> None:
        self._refused.labels(code).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)
