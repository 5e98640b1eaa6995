"""Every message of `/v1/stream`, as pydantic models: the one definition, of which the JSON schema is generated.

docs/protocol.md says when each of them is sent, and what follows.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter

VERSION = 1

# why a stream was closed
DONE, POLICY_VIOLATION, TOO_BIG, FAILED, RESTART, BUSY = 1000, 1008, 1009, 1011, 1012, 1013
UNAUTHORIZED, FOREIGN_ORIGIN, NOT_FOUND, IDLE, TOO_MANY = 4401, 4403, 4404, 4408, 4429

# JSON has no infinity
Latency: TypeAlias = Annotated[
    float,
    Field(strict=True, ge=-1e6),
    BeforeValidator(
        lambda value: float("inf") if value == "inf" else value, json_schema_input_type=float | Literal["inf"]
    ),
    PlainSerializer(lambda value: "inf" if value == float("inf") else value, return_type=float | Literal["inf"]),
]
Count: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 53, strict=True)]
# what a client says came before: whatever is counted from there on is a Count, too
Past: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 52, strict=True)]
Span: TypeAlias = tuple[Count, Count]


class Message(BaseModel):
    """A JSON object in a text frame, told by its `type`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resume(Message):
    """What a client holds of a talk that another connection had, on this server or any other with the same model.

    It says where the open sentence begins; its text, from there on, is sent again as usual. `n` is the number of the
    last event that arrived; `source`, `target` and `words` count characters and words in front of the sentence;
    `heard` is how many of its words were confirmed, `pieces` are those of the words that have arrived of its
    translation, `changes` the latencies kept in it.
    """

    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    model: Annotated[str, Field(max_length=64)]
    n: Past = 0
    sentence: Past = 0
    source: Past = 0
    target: Past = 0
    words: Past = 0
    heard: Past = 0
    pieces: Annotated[list[Annotated[list[Count], Field(min_length=1)]], Field(max_length=1024)] = []
    changes: Annotated[list[tuple[Count, Latency]], Field(max_length=1024)] = []


class Hello(Message):
    """First of all, within five seconds. attention: send that of every sentence that has ended."""

    type: Literal["hello"]
    v: Literal[1]
    token: Annotated[str, Field(max_length=1024)] | None = None
    delta: Latency | None = None
    attention: bool = False
    resume: Resume | None = None


class Text(Message):
    """More of the source, cut anywhere. A word is complete when white space follows; a line feed ends a sentence."""

    type: Literal["text"]
    seq: Count
    text: str


class Tail(Message):
    """What a recogniser may still change: shown to readers, never translated."""

    type: Literal["tail"]
    text: Annotated[str, Field(max_length=4096)]


class End(Message):
    """The sentence ends here: Enter, or a pause."""

    type: Literal["end"]
    seq: Count


class Delta(Message):
    """Another latency, from the next target word on, also for one that waits already."""

    type: Literal["delta"]
    seq: Count
    value: Latency


class Bye(Message):
    """Nothing follows: the open sentence ends, the rest is sent, and the connection is closed with 1000."""

    type: Literal["bye"]
    seq: Count


ClientMessage: TypeAlias = Annotated[Hello | Text | Tail | End | Delta | Bye, Field(discriminator="type")]


class DeltaRange(Message):
    """The latency to begin with, the range of a control for it, whether only whole numbers will do, and what it is
    called; null where none is chosen."""

    value: Latency
    low: float
    high: float
    whole: bool
    symbol: str | None


class Limits(Message):
    """Of one server. Past `unacknowledged` messages a client is closed with 4429, past `message_bytes` with 1009."""

    sessions: int = 256
    sessions_per_address: int = 16
    message_bytes: int = 16384
    unacknowledged: int = 32
    words_per_second: float = 20.0
    words_at_once: int = 100
    sentence_tokens: int = 256
    idle_seconds: float = 60.0
    unsent_events: int = 256
    readers: int = 64
    attention_words: int = 64
    text_words: int = 20000


class Ready(Message):
    """Answer to `hello`. `key` is the speaker's alone and opens the talk anywhere; `session` is for readers' links."""

    type: Literal["ready"] = "ready"
    v: int = VERSION
    session: str
    key: str | None = None
    model: str
    languages: tuple[str, str]
    policy: str
    layers: int
    positions: bool
    delta: DeltaRange
    limits: Limits


class SourceWord(Message):
    """pieces: the text of its tokens; positions p count these."""

    word: str
    source: Span
    pieces: list[str]


class Heard(Message):
    """Source words that have arrived in a sentence, in order."""

    type: Literal["heard"] = "heard"
    n: Count
    ack: Count
    sentence: Count
    words: list[SourceWord]


class TargetWord(Message):
    """A word of the translation, which never changes.

    `source_words` is how many words of its sentence it and those before it needed, `arrived` how many had arrived,
    `needed_end` whether it had to know that the sentence had ended, `after` how many words of the talk had to arrive.
    `p` and `sigma` are position and width in every decoder layer, in source tokens from 1.
    """

    word: str
    index: Count
    pieces: list[Count]
    source_words: Count
    arrived: Count
    needed_end: bool
    after: Count
    p: list[float]
    sigma: list[float]
    source: Span
    target: Span


class Lag(Message):
    """Milliseconds that a step's oldest message waited, and that the step computed."""

    queued: float
    computed: float


class Words(Message):
    """Words of a sentence's translation."""

    type: Literal["words"] = "words"
    n: Count
    ack: Count
    sentence: Count
    words: list[TargetWord]
    ms: Lag


class DeltaKept(Message):
    """From which target word on a latency is kept."""

    type: Literal["delta"] = "delta"
    n: Count
    ack: Count
    sentence: Count
    word: Count
    value: Latency


class SentenceEnd(Message):
    """A sentence is complete. `al` and `laal` are its average lagging in words, measured against its own length."""

    type: Literal["end"] = "end"
    n: Count
    ack: Count
    sentence: Count
    source: Span
    target: Span
    source_words: Count
    target_words: Count
    words: Count
    reason: Literal["punctuation", "limit", "line", "end", "model", "failure"]
    al: float
    laal: float


class Attention(Message):
    """Where a sentence that has ended was looked at while its words were written, for whoever asked for it in `hello`.

    weights: `[layers][target words][source words + 1]` in whole percent, averaged over heads; the last column is the
    end of the sentence. Not numbered: it comes when it is computed, and not at all for a sentence with more than
    `attention_words`.
    """

    type: Literal["attention"] = "attention"
    sentence: Count
    weights: list[list[list[Annotated[int, Field(ge=0, le=100)]]]]


class Wait(Message):
    """Where the open sentence stands, in source tokens: the newest only, so not numbered; `awaited` null: its end."""

    type: Literal["wait"] = "wait"
    ack: Count
    sentence: Count
    arrived: Count
    awaited: Count | None
    arrived_words: Count


class TailShown(Message):
    """To readers: the speaker's newest `tail`."""

    type: Literal["tail"] = "tail"
    text: str


class Shutdown(Message):
    """The server closes with 1012 after so many seconds; another one takes over where the client stands."""

    type: Literal["shutdown"] = "shutdown"
    seconds: float


class Error(Message):
    """What was wrong with a message, before the connection is closed."""

    type: Literal["error"] = "error"
    code: str
    message: str
    close: int


ServerMessage: TypeAlias = Annotated[
    Ready | Heard | Words | DeltaKept | SentenceEnd | Attention | Wait | TailShown | Shutdown | Error,
    Field(discriminator="type"),
]

CLIENT: TypeAdapter[Any] = TypeAdapter(ClientMessage)
SERVER: TypeAdapter[Any] = TypeAdapter(ServerMessage)


def schema() -> dict[str, Any]:
    """JSON Schema of what either side sends."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"gma /v1/stream, version {VERSION}",
        "client": CLIENT.json_schema(),
        "server": SERVER.json_schema(mode="serialization"),
    }
