"""Every setting of a run: types, ranges, defaults, presets, and which combinations are impossible.

The meaning of each key, with its unit, is written once, in `recipes/generated.toml`; reading files, overrides and
where a value came from is `config`.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from gma.config.toml import toml_document

# width / feed-forward / heads are the paper's; tiny is ours, for the generated corpus on a laptop
PRESETS = {
    "tiny": {"width": 128, "feed_forward": 256, "heads": 4, "encoder_layers": 2, "decoder_layers": 2},
    "small": {"width": 512, "feed_forward": 1024, "heads": 4, "encoder_layers": 6, "decoder_layers": 6},
    "base": {"width": 512, "feed_forward": 2048, "heads": 8, "encoder_layers": 6, "decoder_layers": 6},
    "big": {"width": 1024, "feed_forward": 4096, "heads": 16, "encoder_layers": 6, "decoder_layers": 6},
    "custom": {"encoder_layers": 6, "decoder_layers": 6},
}
TOKENIZERS = {
    "bpe": {"joint": True, "vocabulary_size": 32_000, "minimum_frequency": 2, "split_punctuation": False},
    "word": {"joint": False, "vocabulary_size": 0, "minimum_frequency": 5, "split_punctuation": False},
}
# which keys of [attention] each policy uses; giving another one is an error
POLICY_KEYS = {
    "gaussian": ("delta", "prior", "width_rule", "positions", "convention", "sharing", "diagonal_weight", "backend"),
    "gain": ("delta", "backend"),
    "wait_k": ("delta", "catch_up", "backend"),
    "monotonic": ("monotonic", "energy_bias", "noise", "latency_average", "latency_variance", "backend"),
    "itst": ("delta", "transport_cost", "backend"),
    "offline": ("backend",),
}
# where the default is not that of the gaussian policy
DELTAS = {"gain": (0.05, 1.0), "wait_k": 3.0, "itst": (0.2, 1.0)}
# a range of k without an upper end has no middle: wait-k then translates with this k, or its lower end
USUAL_K = 5.0
LARGEST_HEAD = 256
SMALLEST_BPE = 64
# far beyond what anybody trains: larger numbers are typing mistakes or attacks
LARGEST_COUNT, LARGEST_WIDTH, MOST_LAYERS = 10**9, 1 << 17, 256
SMALLEST_WORDS = 5


class Impossible(ValueError):
    """A value that does not go with another one: `key` within its section (dotted from the top), `reason` in words."""

    def __init__(self, key: str, value: Any, reason: str):
        super().__init__(f"{key} = {value!r}: {reason}")
        self.key, self.value, self.reason = key, value, reason


@dataclass(frozen=True)
class Expected:
    """What a field takes, in words, for error messages."""

    words: str


def _is_number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63  # larger ones do not fit a float
    return isinstance(value, float) and not math.isnan(value)


def _delta(value: Any) -> Any:
    """A number above −inf, or a pair (low, high) of them; ints become floats."""
    if _is_number(value) and value != -math.inf:
        return float(value)
    pair = isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_number, value))
    if pair and not math.isinf(value[0]) and value[0] <= value[1]:
        return (float(value[0]), float(value[1]))
    raise ValueError("not a number or an ordered pair of numbers")


def _is_whole(value: float) -> bool:
    return value >= 1 and (value == math.inf or value.is_integer())


def _betas(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) == 2 and all(_is_number(x) and 0 <= x < 1 for x in value):
        return (float(value[0]), float(value[1]))
    raise ValueError("not a pair of numbers in [0, 1)")


Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT), Expected("a whole number, 1 to a thousand million")]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT), Expected("a whole number, 0 to a thousand million")]
Width = Annotated[int, Field(ge=1, le=LARGEST_WIDTH), Expected(f"a whole number, 1 to {LARGEST_WIDTH:,}")]
Layers = Annotated[int, Field(ge=1, le=MOST_LAYERS), Expected(f"a whole number, 1 to {MOST_LAYERS}")]
Seed = Annotated[int, Field(ge=0, lt=2**63), Expected("a whole number, 0 or more and below 2^63")]
Share = Annotated[float, Field(ge=0, lt=1), Expected("a number, 0 <= x < 1")]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), Expected("a finite number above 0")]
Finite = Annotated[float, Field(allow_inf_nan=False), Expected("a finite number")]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), Expected("a finite number, 0 or more")]
Switch = Annotated[bool, Expected("true or false, without quotes")]
Text = Annotated[str, Field(min_length=1), Expected('text that is not empty, in quotes, as in "runs/data"')]
OptionalText = Annotated[str, Expected('text in quotes; "" for none')]
Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$"), Expected('a language code such as "de"')]
Device = Annotated[
    str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$"), Expected("'auto', 'cpu', 'cuda', or 'cuda:N' with a number")
]
Files = Annotated[
    tuple[Annotated[str, Strict(), Field(min_length=1)], ...],
    Field(strict=False),
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value, json_schema_input_type=Any),
    Expected('a list of file names, as in ["train.de.gz"]'),
]
Delta = Annotated[
    float | tuple[float, float],
    BeforeValidator(_delta),
    Expected("a number (of source tokens), inf, or [low, high] with low <= high"),
]
Betas = Annotated[
    tuple[float, float], BeforeValidator(_betas), Expected("two numbers, each 0 <= x < 1, as in [0.9, 0.98]")
]


class Settings(BaseModel):
    """Immutable, no unknown keys, no silent conversions: "3" is not 3 and true is not 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    # key that chooses defaults -> its choices -> the defaults of each
    choosers: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill_chosen_defaults(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for chooser, choices in cls.choosers.items():
            choice = given.get(chooser, cls.model_fields[chooser].default)
            if isinstance(choice, str):  # anything else is refused by the field itself
                given = {**choices.get(choice, {}), **given}
        return given


class ModelSettings(Settings):
    choosers: ClassVar = {"preset": PRESETS}

    preset: Literal["tiny", "small", "base", "big", "custom"] = "small"
    width: Width
    feed_forward: Width
    heads: Width
    encoder_layers: Layers
    decoder_layers: Layers
    encoder: Literal["causal", "bidirectional"] = "causal"
    embeddings: Literal["separate", "target", "shared"] = "separate"
    dropout: Share = 0.3
    attention_dropout: Share = 0.0

    @model_validator(mode="after")
    def _check(self) -> "ModelSettings":
        if self.width % self.heads:
            raise Impossible("heads", self.heads, f"expected a divisor of model.width = {self.width}")
        if self.width // self.heads > LARGEST_HEAD:
            raise Impossible(
                "heads",
                self.heads,
                f"a head would have {self.width // self.heads} features; expected {LARGEST_HEAD} at most: use more "
                f"heads or a smaller model.width (= {self.width})",
            )
        if self.width % 2:
            raise Impossible("width", self.width, "expected an even number: sinusoidal positions come in pairs")
        return self


class AttentionSettings(Settings):
    choosers: ClassVar = {
        "policy": {policy: {} for policy in POLICY_KEYS}
        | {policy: {"delta": delta} for policy, delta in DELTAS.items()}
    }

    policy: Literal["gaussian", "gain", "wait_k", "monotonic", "itst", "offline"] = "gaussian"
    delta: Delta = 1.0
    prior: Literal["gaussian", "laplace", "linear", "none"] = "gaussian"
    width_rule: Literal["whole", "half", "third", "predicted"] = "half"
    positions: Literal["incremental", "absolute"] = "incremental"
    convention: Literal["paper", "reference"] = "paper"
    sharing: Literal["heads", "none", "layers", "all"] = "heads"
    diagonal_weight: NotNegative = 0.0
    catch_up: Share = 0.0
    monotonic: Literal["infinite_lookback", "hard"] = "infinite_lookback"
    energy_bias: Finite = -2.0
    noise: NotNegative = 1.0
    latency_average: NotNegative = 0.1
    latency_variance: NotNegative = 0.1
    transport_cost: NotNegative = 1.0
    backend: Literal["auto", "reference", "native", "triton", "cuda"] = "auto"

    @property
    def middle_delta(self) -> float:
        """The δ, k or θ to use when nobody asks for another one: the middle of a range, of θ the geometric one."""
        if not isinstance(self.delta, tuple):
            return self.delta
        low, high = self.delta
        if self.policy == "gain":
            return math.sqrt(low * high)
        if self.policy != "wait_k":
            return (low + high) / 2
        return max(low, USUAL_K) if high == math.inf else (low + high) // 2

    @model_validator(mode="after")
    def _check(self) -> "AttentionSettings":
        for key in self.model_fields_set - {"policy"}:
            if key not in POLICY_KEYS[self.policy]:
                users = [policy for policy, keys in POLICY_KEYS.items() if key in keys]
                raise Impossible(
                    key,
                    getattr(self, key),
                    f"means nothing with attention.policy = {self.policy!r}: leave it out, or choose a policy that "
                    f"uses it ({', '.join(map(repr, users))})",
                )
        self._check_delta()
        return self

    def _check_delta(self) -> None:
        ends = self.delta if isinstance(self.delta, tuple) else (self.delta,)
        if self.policy == "wait_k" and not all(map(_is_whole, ends)):
            raise Impossible(
                "delta",
                self.delta,
                "is k with attention.policy = 'wait_k'; expected a whole number of source tokens, 1 or more, inf, or "
                "[low, high] with two of them",
            )
        if self.policy == "gain" and (math.inf in ends or ends[0] < 0 or (len(ends) == 2 and ends[0] == 0)):
            raise Impossible(
                "delta",
                self.delta,
                "is θ with attention.policy = 'gain'; expected a finite number of nats, 0 or more, or [low, high] with "
                "two of them above 0, between which it is drawn",
            )
        if self.policy == "itst" and ends[0] < 0:
            raise Impossible(
                "delta",
                self.delta,
                "is θ with attention.policy = 'itst'; expected a share of the information, 0 or more, or [low, high] "
                "with two of them",
            )
        if self.policy != "wait_k" and len(ends) == 2 and math.inf in ends:
            raise Impossible(
                "delta",
                self.delta,
                f"a range has two finite numbers with attention.policy = {self.policy!r}: only a k can be drawn from "
                "one without an upper end ('wait_k')",
            )


class SplitFiles(Settings):
    """Parallel text: files of each side, joined in order; plain or .gz, relative to `data.root`."""

    source: Files = ()
    target: Files = ()

    @model_validator(mode="after")
    def _check(self) -> "SplitFiles":
        if len(self.source) != len(self.target):
            raise Impossible(
                "target",
                list(self.target),
                f"expected as many files as source has, {len(self.source)}: {list(self.source)}",
            )
        return self


class DataSettings(Settings):
    choosers: ClassVar = {"tokenizer": TOKENIZERS}

    folder: Text = "runs/data"
    root: Text = "data"
    source: Language = "de"
    target: Language = "en"
    train: SplitFiles = SplitFiles()
    valid: SplitFiles = SplitFiles()
    test: SplitFiles = SplitFiles()
    held_out: CountOrZero = 0
    generated: CountOrZero = 0
    tokenizer: Literal["bpe", "word"] = "bpe"
    joint: Switch
    vocabulary_size: CountOrZero
    minimum_frequency: Count
    source_vocabulary: OptionalText = ""
    target_vocabulary: OptionalText = ""
    lowercase: Switch = False
    unescape: Switch = False
    split_punctuation: Switch
    max_length: CountOrZero = 250
    max_ratio: Annotated[float, Field(ge=0), Expected("0 for no limit, or a number, 1 or more")] = 0.0
    on_bad_line: Literal["error", "drop"] = "error"
    on_empty: Literal["drop", "error"] = "drop"

    @model_validator(mode="after")
    def _check(self) -> "DataSettings":
        for key in ("train", "valid", "test"):
            files = getattr(self, key)
            if self.generated and files.source:
                raise Impossible(
                    f"{key}.source",
                    list(files.source),
                    f"does not go with data.generated = {self.generated}: set that to 0, or leave the files out",
                )
        if self.held_out == 1:
            raise Impossible("held_out", 1, "leaves nothing to train on; expected 0 for none, or 2 or more")
        if self.held_out and (self.generated or self.valid.source):
            raise Impossible(
                "held_out", self.held_out, "is for training text without data.valid: leave out the one or the other"
            )
        if self.train.source and not self.valid.source and not self.held_out:
            raise Impossible(
                "valid.source",
                [],
                "expected at least one file, as data.train has files, or data.held_out to take pairs from those",
            )
        if not (self.max_ratio == 0 or (self.max_ratio >= 1 and math.isfinite(self.max_ratio))):
            raise Impossible("max_ratio", self.max_ratio, "expected 0 for no limit, or a finite number, 1 or more")
        if bool(self.source_vocabulary) != bool(self.target_vocabulary):
            missing = "target_vocabulary" if self.source_vocabulary else "source_vocabulary"
            raise Impossible(missing, "", "expected a file: give the vocabulary files of both sides, or of none")
        if self.tokenizer == "word":
            self._check_word()
        else:
            self._check_bpe()
        return self

    def _check_word(self) -> None:
        if 0 < self.vocabulary_size < SMALLEST_WORDS:
            raise Impossible(
                "vocabulary_size",
                self.vocabulary_size,
                f"leaves no room for a word beside the four special entries; expected {SMALLEST_WORDS} or more, or 0 "
                "for no limit",
            )
        for key in ("joint", "split_punctuation"):
            if getattr(self, key):
                raise Impossible(
                    key,
                    True,
                    "expected false with data.tokenizer = 'word': its vocabularies are of whole words, one a side; "
                    "use tokenizer = 'bpe'",
                )

    def _check_bpe(self) -> None:
        if self.source_vocabulary:
            raise Impossible(
                "source_vocabulary",
                self.source_vocabulary,
                "lists words and needs data.tokenizer = 'word', not 'bpe'; or leave it and target_vocabulary out",
            )
        if self.vocabulary_size < SMALLEST_BPE:
            raise Impossible(
                "vocabulary_size", self.vocabulary_size, f"expected {SMALLEST_BPE} or more with data.tokenizer = 'bpe'"
            )


class TrainingSettings(Settings):
    start_from: OptionalText = ""
    tokens: Count = 4096
    accumulation: Count = 8
    updates: CountOrZero = 100_000
    minutes: NotNegative = 0.0
    learning_rate: Positive = 5e-4
    warmup_updates: CountOrZero = 4000
    warmup_from: NotNegative = 1e-7
    schedule: Literal["inverse_square_root", "linear"] = "inverse_square_root"
    betas: Betas = (0.9, 0.98)
    epsilon: Positive = 1e-8
    label_smoothing: Share = 0.1
    clip_norm: NotNegative = 0.0
    weight_decay: NotNegative = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    seed: Seed = 1
    device: Device = "auto"
    validate_every: CountOrZero = 1000
    validate_sentences: CountOrZero = 500
    save_every: Count = 1000
    keep_checkpoints: Count = 5
    patience: CountOrZero = 0
    early_stop_metric: Literal["loss", "bleu"] = "loss"
    log_every: Count = 50
    compile: Switch = False

    @model_validator(mode="after")
    def _check(self) -> "TrainingSettings":
        if not self.updates and not self.minutes:
            raise Impossible(
                "updates", 0, "no limit, and training.minutes = 0 is none either: give at least one above 0"
            )
        if self.warmup_from > self.learning_rate:
            raise Impossible(
                "warmup_from", self.warmup_from, f"expected training.learning_rate = {self.learning_rate} at most"
            )
        if self.schedule == "linear" and self.updates <= self.warmup_updates:
            raise Impossible(
                "schedule",
                "linear",
                f"falls from training.warmup_updates = {self.warmup_updates} to 0 at training.updates, and that is "
                f"{self.updates}: expected more updates, or 'inverse_square_root'",
            )
        if self.patience and not self.validate_every:
            raise Impossible(
                "patience", self.patience, "counts validations, and training.validate_every = 0 turns them off: set it"
            )
        if self.early_stop_metric == "bleu" and not self.validate_sentences:
            raise Impossible(
                "early_stop_metric",
                "bleu",
                "needs translations, and training.validate_sentences = 0 turns them off: set it, or use 'loss'",
            )
        if self.precision == "float16" and self.device == "cpu":
            raise Impossible(
                "precision",
                "float16",
                "needs a GPU, not training.device = 'cpu': use 'bfloat16' or 'float32' (float16 overflows without "
                "loss scaling and is slow on a CPU)",
            )
        return self


class Config(Settings):
    model: ModelSettings = Field(default_factory=lambda: ModelSettings.model_validate({}))
    attention: AttentionSettings = Field(default_factory=AttentionSettings)
    data: DataSettings = Field(default_factory=lambda: DataSettings.model_validate({}))
    training: TrainingSettings = Field(default_factory=TrainingSettings)

    @model_validator(mode="after")
    def _check(self) -> "Config":
        if self.model.encoder == "bidirectional" and self.attention.policy != "offline":
            raise Impossible(
                "model.encoder",
                "bidirectional",
                f"expected 'causal' with attention.policy = {self.attention.policy!r}: a state that looks ahead cannot "
                "be computed before the sentence ends; only policy 'offline' may use it",
            )
        if self.model.embeddings == "shared" and not self.data.joint:
            raise Impossible(
                "model.embeddings",
                "shared",
                "needs one vocabulary for both sides, and data.joint = false: use 'separate' or 'target', or "
                "data.joint = true with data.tokenizer = 'bpe'",
            )
        return self

    def values(self) -> dict[str, dict[str, Any]]:
        """Section -> key -> plain value, without the keys that the chosen policy does not use."""
        values = self.model_dump()
        used = ("policy", *POLICY_KEYS[self.attention.policy])
        values["attention"] = {key: value for key, value in values["attention"].items() if key in used}
        return values

    def dump(self) -> str:
        """TOML text that `gma.config.load` reads back to an equal config."""
        return toml_document(self.values())
