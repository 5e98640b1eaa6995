"""What a speaker holds of a talk: enough to go on with it at any server that has the same model."""

from dataclasses import dataclass, field

from gma.serve.protocol import DeltaKept, Heard, Ready, Resume, SentenceEnd, Words


@dataclass
class HeldTalk:
    """The talk from the beginning of its open sentence on.

    Attributes:
        text: of the source, from there on, sent or not.
        source: where it begins, in characters of the talk.
        ends: where the speaker has ended a sentence, in characters of the talk.
        delta: the latency that is wanted; None for the server's.
    """

    delta: float | None = None
    text: str = ""
    source: int = 0
    ends: list[int] = field(default_factory=list)
    target: int = 0
    words: int = 0
    heard: int = 0
    sentence: int = 0
    n: int = 0
    key: str = ""
    model: str = ""
    pieces: list[list[int]] = field(default_factory=list)
    changes: list[tuple[int, float]] = field(default_factory=list)
    next_delta: float | None = None

    @property
    def length(self) -> int:
        """Characters of the talk so far."""
        return self.source + len(self.text)

    @property
    def kept_delta(self) -> float | None:
        """The latency that the server was last known to keep."""
        return self.next_delta if self.next_delta is not None else self.changes[-1][1] if self.changes else None

    def resume(self) -> Resume | None:
        """For `hello`; None before there is anything to go on with."""
        if not self.key:
            return None
        return Resume(
            key=self.key,
            model=self.model,
            n=self.n,
            sentence=self.sentence,
            source=self.source,
            target=self.target,
            words=self.words,
            heard=self.heard,
            pieces=self.pieces,
            changes=self.changes,
        )

    def learn(self, event: object) -> None:
        """Take in what the server has sent."""
        if isinstance(event, Ready):
            if event.key is not None:
                self.key, self.model = event.key, event.model
            if not self.changes:
                self.changes = [(0, event.delta.value)]
            return
        if not isinstance(event, Heard | Words | DeltaKept | SentenceEnd):
            return
        self.n = event.n
        if isinstance(event, Heard):
            self.heard += len(event.words)
        elif isinstance(event, Words):
            self.pieces += [word.pieces for word in event.words]
        elif isinstance(event, DeltaKept):
            if event.sentence == self.sentence:
                self.changes = [change for change in self.changes if change[0] < event.word]
                self.changes.append((event.word, event.value))
            else:
                # the open sentence was written already
                self.next_delta = event.value
        elif isinstance(event, SentenceEnd):
            self._next_sentence(event)

    def _next_sentence(self, event: SentenceEnd) -> None:
        end = event.source[1]
        self.text = self.text[end - self.source :]
        self.source, self.ends = end, [place for place in self.ends if place > end]
        if event.target_words:
            self.target = event.target[1] + 1
        self.words, self.sentence, self.heard, self.pieces = event.words, event.sentence + 1, 0, []
        if self.changes:
            kept = self.kept_delta
            assert kept is not None
            self.changes = [(0, kept)]
        self.next_delta = None
