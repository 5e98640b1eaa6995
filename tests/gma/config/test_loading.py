"""Wrong settings are refused with key, value and what was expected; right ones survive a round trip."""

import itertools
import json
import math
import sys
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gma_kernels
from gma.attention import alignment
from gma.cli import app, options
from gma.config import AttentionSettings, Config, ConfigError, load, load_arguments, recipes
from gma.config.settings import POLICY_KEYS, PRESETS, TOKENIZERS, Expected, ModelSettings, Settings
from gma_kernels.contract import LARGEST_HEAD, PRIORS


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("GMA_DATA", raising=False)


def load_text(folder, text, overrides=()):
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, list(overrides))


def fields(model=Config, prefix=""):
    """Dotted key and field of every leaf."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


FIELDS = dict(fields())
# without what only other policies use
OTHERS = {key for keys in POLICY_KEYS.values() for key in keys} - set(POLICY_KEYS["gaussian"])
SHOWN = set(FIELDS) - {f"attention.{key}" for key in OTHERS}
EMPTY = ""
CUSTOM = "[model]\npreset = 'custom'\nwidth = 256\nfeed_forward = 512\nheads = 4\n"

# TOML text, overrides, then what the message must hold: the key, the value as TOML writes it, and what was expected
WRONG = [
    # types
    (EMPTY, ["model.width=wide"], 'model.width = "wide"', "a whole number, 1 to"),
    ("[model]\nwidth = '512'", [], 'model.width = "512"', "a whole number, 1 to"),
    (EMPTY, ["model.width=512.0"], "model.width = 512.0", "a whole number"),
    (EMPTY, ["model.heads=true"], "model.heads = true", "a whole number"),
    (EMPTY, ["model.dropout=true"], "model.dropout = true", "a number, 0 <= x < 1"),
    (EMPTY, ["model.dropout=[0.1]"], "model.dropout = [0.1]", "a number, 0 <= x < 1"),
    (EMPTY, ["model.preset=3"], "model.preset = 3", "'tiny', 'small', 'base', 'big', 'custom'"),
    (EMPTY, ["data.joint=1"], "data.joint = 1", "true or false"),
    (EMPTY, ["data.lowercase=yes"], 'data.lowercase = "yes"', "true or false"),
    (EMPTY, ["data.folder=12"], "data.folder = 12", "text that is not empty"),
    (EMPTY, ["data.folder=2024-01-01"], "data.folder = 2024-01-01", "text that is not empty"),
    (EMPTY, ["data.source=de en"], 'data.source = "de en"', "a language code"),
    (EMPTY, ["data.train.source=train.de"], 'data.train.source = "train.de"', 'as in ["train.de.gz"]'),
    ("[data]\ntrain = {source = ['a', 3], target = ['b', 'c']}", [], 'data.train.source = ["a", 3]', "a list of file"),
    ("[data]\ntrain = ['a', 'b']", [], 'data.train = ["a", "b"]', "a table with the keys source, target"),
    ("model = 3", [], "model = 3", "a table with the keys preset, width"),
    ("model = 3", ["model.width=4"], "model = 3", "is a section of keys"),
    (EMPTY, ["training.betas=0.9"], "training.betas = 0.9", "two numbers, each 0 <= x < 1"),
    (EMPTY, ["training.compile=no"], 'training.compile = "no"', "true or false"),
    # ranges
    (EMPTY, ["model.width=0"], "model.width = 0", "a whole number, 1 to"),
    (EMPTY, ["model.encoder_layers=-1"], "model.encoder_layers = -1", "a whole number, 1 to"),
    (EMPTY, ["model.dropout=1"], "model.dropout = 1", "0 <= x < 1"),
    (EMPTY, ["model.dropout=nan"], "model.dropout = nan", "0 <= x < 1"),
    (EMPTY, ["model.attention_dropout=-0.1"], "model.attention_dropout = -0.1", "0 <= x < 1"),
    (EMPTY, ["attention.delta=nan"], "attention.delta = nan", "a number (of source tokens), inf, or [low, high]"),
    (EMPTY, ["attention.delta=[4, 1]"], "attention.delta = [4, 1]", "low <= high"),
    (EMPTY, ["attention.delta=[1, inf]"], "attention.delta = [1.0, inf]", "two finite numbers"),
    (EMPTY, ["attention.delta=[-inf, 1]"], "attention.delta = [-inf, 1]", "low <= high"),
    (EMPTY, ["attention.delta=[1, 2, 3]"], "attention.delta = [1, 2, 3]", "[low, high]"),
    (EMPTY, [f"attention.delta=1{'0' * 400}"], "attention.delta = 1000", "a number"),
    (EMPTY, [f"attention.delta=1{'0' * 5000}"], 'attention.delta = "1000', "a number"),
    (EMPTY, ["attention.delta=true"], "attention.delta = true", "a number"),
    (EMPTY, ["data.generated=-1"], "data.generated = -1", "a whole number, 0 to"),
    (EMPTY, ["data.minimum_frequency=0"], "data.minimum_frequency = 0", "a whole number, 1 to"),
    (EMPTY, ["data.vocabulary_size=10"], "data.vocabulary_size = 10", "64 or more"),
    (EMPTY, ["data.max_ratio=0.5"], "data.max_ratio = 0.5", "0 for no limit, or a finite number, 1 or more"),
    (EMPTY, ["data.max_ratio=inf"], "data.max_ratio = inf", "a finite number"),
    (EMPTY, ["data.max_ratio=nan"], "data.max_ratio = nan", "0 for no limit"),
    (EMPTY, ["training.tokens=0"], "training.tokens = 0", "a whole number, 1 to"),
    (EMPTY, ["training.learning_rate=0"], "training.learning_rate = 0", "a finite number above 0"),
    (EMPTY, ["training.learning_rate=inf"], "training.learning_rate = inf", "a finite number above 0"),
    (EMPTY, ["training.minutes=-1"], "training.minutes = -1", "a finite number, 0 or more"),
    (EMPTY, ["training.betas=[0.9, 1.0]"], "training.betas = [0.9, 1.0]", "each 0 <= x < 1"),
    (EMPTY, ["training.label_smoothing=1.5"], "training.label_smoothing = 1.5", "0 <= x < 1"),
    (EMPTY, ["training.seed=-1"], "training.seed = -1", "0 or more"),
    (EMPTY, ["training.keep_checkpoints=0"], "training.keep_checkpoints = 0", "a whole number, 1 to"),
    # choices, with the nearest one named
    (EMPTY, ["model.preset=smal"], 'model.preset = "smal"', "'custom' (did you mean 'small'?)"),
    (EMPTY, ["model.encoder=casual"], 'model.encoder = "casual"', "'causal', 'bidirectional' (did you mean 'causal'?)"),
    (EMPTY, ["model.embeddings=tied"], 'model.embeddings = "tied"', "'separate', 'target', 'shared'"),
    (EMPTY, ["attention.policy=wait"], 'attention.policy = "wait"', "'itst', 'offline' (did you mean 'wait_k'?)"),
    (EMPTY, ["attention.policy=monotonic", "attention.monotonic=soft"], "attention.monotonic", "'hard'"),
    (EMPTY, ["attention.prior=normal"], 'attention.prior = "normal"', "'gaussian', 'laplace', 'linear', 'none'"),
    (EMPTY, ["attention.sharing=head"], 'attention.sharing = "head"', "'all' (did you mean 'heads'?)"),
    (EMPTY, ["data.tokenizer=spm"], 'data.tokenizer = "spm"', "'bpe', 'word'"),
    (EMPTY, ["data.on_empty=skip"], 'data.on_empty = "skip"', "'drop', 'error'"),
    (EMPTY, ["training.precision=fp16"], 'training.precision = "fp16"', "'float32', 'bfloat16', 'float16'"),
    (EMPTY, ["training.device=gpu"], 'training.device = "gpu"', "'auto', 'cpu', 'cuda', or 'cuda:N'"),
    (EMPTY, ["training.early_stop_metric=ter"], 'training.early_stop_metric = "ter"', "'loss', 'bleu'"),
    # names
    (EMPTY, ["model.widht=3"], "model.widht = 3", "(did you mean model.width?); expected one of model.preset"),
    (EMPTY, ["model.tokens=3"], "model.tokens = 3", "(did you mean training.tokens?)"),
    ("[modell]\nwidth = 3", [], "modell = {width = 3}", "(did you mean model?); expected one of model, attention"),
    ("[model]\nzzz = 'q'", [], 'model.zzz = "q"', "no such key; expected one of model.preset"),
    ("[data.train]\nsorce = ['a']", [], 'data.train.sorce = ["a"]', "(did you mean data.train.source?)"),
    ("width = 3", [], "width = 3", "(did you mean model.width?)"),
    # combinations that cannot be
    (EMPTY, ["model.heads=3"], "model.heads = 3", "a divisor of model.width = 512"),
    (EMPTY, ["model.heads=1"], "model.heads = 1", "512 features; expected 256 at most: use more heads"),
    (CUSTOM, ["model.width=255", "model.heads=5"], "model.width = 255", "an even number"),
    ("[model]\npreset = 'custom'\nwidth = 8\nheads = 2", [], "model.feed_forward is missing", 'preset = "custom"'),
    (EMPTY, ["model.encoder=bidirectional"], 'model.encoder = "bidirectional"', "only policy 'offline'"),
    ("[attention]\npolicy = 'offline'\ndelta = 2", [], "attention.delta = 2", "leave it out"),
    (EMPTY, ["attention.policy=offline", "attention.prior=none"], 'attention.prior = "none"', "('gaussian')"),
    (EMPTY, ["attention.policy=wait_k", "attention.delta=2.5"], "attention.delta = 2.5", "a whole number"),
    (EMPTY, ["attention.policy=wait_k", "attention.delta=0"], "attention.delta = 0.0", "1 or more"),
    (EMPTY, ["attention.policy=wait_k", "attention.delta=[1, 3.5]"], "attention.delta = [1.0, 3.5]", "whole number"),
    (EMPTY, ["attention.policy=wait_k", "attention.prior=none"], 'attention.prior = "none"', "leave it out"),
    (EMPTY, ["attention.policy=wait_k", "attention.catch_up=1"], "attention.catch_up = 1", "0 <= x < 1"),
    (EMPTY, ["attention.catch_up=0.2"], "attention.catch_up = 0.2", "('wait_k')"),
    (EMPTY, ["attention.policy=monotonic", "attention.sharing=all"], 'attention.sharing = "all"', "('gaussian')"),
    (EMPTY, ["attention.policy=monotonic", "attention.delta=3"], "attention.delta = 3.0", "'gain', 'wait_k'"),
    (EMPTY, ["attention.policy=gain", "attention.delta=-0.1"], "attention.delta = -0.1", "0 or more"),
    (EMPTY, ["attention.policy=gain", "attention.delta=inf"], "attention.delta = inf", "a finite number of nats"),
    (EMPTY, ["attention.policy=gain", "attention.delta=[0.0, 1.0]"], "attention.delta = ", "two of them above 0"),
    (EMPTY, ["attention.policy=monotonic", "attention.noise=-1"], "attention.noise = -1", "0 or more"),
    (EMPTY, ["attention.latency_average=0.1"], "attention.latency_average = 0.1", "('monotonic')"),
    (EMPTY, ["attention.policy=wait_k", "model.encoder=bidirectional"], "model.encoder", "only policy 'offline'"),
    (
        "[model]\nembeddings = 'shared'\n[data]\njoint = false",
        [],
        'model.embeddings = "shared"',
        "data.joint = false: use 'separate' or 'target'",
    ),
    (EMPTY, ["data.tokenizer=word", "data.joint=true"], "data.joint = true", "use tokenizer = 'bpe'"),
    (EMPTY, ["data.tokenizer=word", "data.split_punctuation=true"], "data.split_punctuation = true", "expected false"),
    (EMPTY, ["data.source_vocabulary=v", "data.target_vocabulary=w"], 'data.source_vocabulary = "v"', "needs data.t"),
    (EMPTY, ["data.tokenizer=word", "data.source_vocabulary=v"], 'data.target_vocabulary = ""', "of both sides"),
    ("[data.train]\nsource = ['a']", [], "data.train.target = []", "as many files as source has, 1"),
    ("[data.train]\nsource = ['a']\ntarget = ['b']", [], "data.valid.source = []", "at least one file"),
    ("[data.test]\nsource = ['a']\ntarget = ['b']", ["data.generated=9"], 'data.test.source = ["a"]', "generated = 9"),
    (EMPTY, ["data.tokenizer=word", "data.vocabulary_size=4"], "data.vocabulary_size = 4", "expected 5 or more, or 0"),
    (EMPTY, ["attention.delta=-inf"], "attention.delta = -inf", "a number (of source tokens), inf"),
    (EMPTY, ["training.updates=0"], "training.updates = 0", "training.minutes = 0 is none either"),
    (EMPTY, ["training.warmup_from=0.1"], "training.warmup_from = 0.1", "training.learning_rate = 0.0005 at most"),
    (EMPTY, ["training.schedule=linear", "training.updates=9"], 'training.schedule = "linear"', "more updates"),
    (EMPTY, ["training.validate_every=0", "training.patience=3"], "training.patience = 3", "validate_every = 0"),
    (
        "[training]\nearly_stop_metric = 'bleu'\nvalidate_sentences = 0",
        [],
        'training.early_stop_metric = "bleu"',
        "use 'loss'",
    ),
    (EMPTY, ["training.device=cpu", "training.precision=float16"], 'training.precision = "float16"', "use 'bfloat16'"),
    # overrides
    (EMPTY, ["model.width"], "'model.width'", "section.key=value"),
    (EMPTY, ["width=3"], "'width=3'", "section.key=value"),
    (EMPTY, ["=3"], "'=3'", "section.key=value"),
    (EMPTY, ["model..width=3"], "'model..width=3'", "section.key=value"),
    (EMPTY, ["data.train=a"], "data.train = a", "one of its keys: data.train.source, data.train.target"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "overrides", "key_and_value", "expected"), WRONG)
def test_wrong_settings_are_refused_by_name(tmp_path, text, overrides, key_and_value, expected):
    with pytest.raises(ConfigError) as refusal:
        load_text(tmp_path, text, overrides)
    message = str(refusal.value)
    assert key_and_value in message
    assert expected in message
    assert len(message.splitlines()) == 1, "one mistake, one line"


def test_no_key_takes_a_table_or_a_list_of_tables(tmp_path):
    """Whatever the key: a value that no setting can have names the key, the value and what it takes."""
    for key, field in FIELDS.items():
        section, _, name = key.rpartition(".")
        with pytest.raises(ConfigError) as refusal:
            load_text(tmp_path, f"[{section}]\n{name} = [{{odd = 1}}]\n")
        message = str(refusal.value).splitlines()[0]
        assert f"{key} = [{{odd = 1}}] ({tmp_path}/run.toml:2): expected " in message
        if get_origin(field.annotation) is Literal:
            assert all(repr(choice) in message for choice in get_args(field.annotation))
        else:
            assert next(item.words for item in field.metadata if isinstance(item, Expected)) in message


def test_every_mistake_is_reported_with_its_place(tmp_path):
    text = "# a comment\n[model]\nwidth = 'w'\n\n[training]\nbetas = [\n  2,\n  3,\n]\n[data.valid]\nsource = 1\n"
    with pytest.raises(ConfigError) as refusal:
        load_text(tmp_path, text, ["training.seed=x"])
    lines = str(refusal.value).splitlines()
    path = tmp_path / "run.toml"
    assert len(lines) == 4
    for start in (
        f'model.width = "w" ({path}:3): ',
        f"training.betas = [2, 3] ({path}:6): ",
        f"data.valid.source = 1 ({path}:11): ",
        'training.seed = "x" (command line): ',
    ):
        assert any(line.startswith(start) for line in lines), (start, lines)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[model]\nwidth = = 3\n", "line 2"), (b"[model]\nwidth = 1\nwidth = 2\n", "line 3"), (b"\xff[model]", "UTF-8")],
)
def test_a_file_that_is_no_toml(tmp_path, content, expected):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        load(path)
    assert str(path) in str(refusal.value)
    assert expected in str(refusal.value)


@pytest.mark.parametrize("name", ["nowhere.toml", "./generated", ""])
def test_a_file_that_is_not_there(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        load(name)
    assert all(recipe in str(refusal.value) for recipe in recipes())


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path)


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(ConfigError) as refusal:
        load("multi30k")
    assert "did you mean 'multi30k-de-en'?" in str(refusal.value)
    assert all(recipe in str(refusal.value) for recipe in recipes())


def test_origins(tmp_path, monkeypatch):
    monkeypatch.setenv("GMA_DATA", "/corpora")
    text = "[model]\npreset = 'base'\nheads = 16\n[data]\ntrain = {source = ['a'], target = ['b']}\n"
    text += "[data.valid]\nsource = ['c']\ntarget = ['d']\n"
    config, origins = load_text(tmp_path, text, ["training.seed=3", "data.tokenizer=word", "training.seed=4"])
    path = tmp_path / "run.toml"
    expected = {
        "model.preset": f"{path}:2",
        "model.heads": f"{path}:3",
        "model.width": "preset base",
        "model.dropout": "default",
        "data.root": "environment variable GMA_DATA",
        "data.train.source": f"{path}:5",
        "data.valid.target": f"{path}:8",
        "data.test.source": "default",
        "data.tokenizer": "command line",
        "data.minimum_frequency": "tokenizer word",
        "training.seed": "command line",
    }
    assert {key: origins[key] for key in expected} == expected
    assert (config.model.heads, config.model.width, config.training.seed) == (16, 512, 4)
    assert config.data.root == "/corpora"
    assert set(origins) == SHOWN


def test_a_file_beats_the_environment(tmp_path, monkeypatch):
    """So that the config of a run reads back equal on a machine with other settings."""
    monkeypatch.setenv("GMA_DATA", "/corpora")
    assert load_text(tmp_path, "[data]\nroot = 'here'").config.data.root == "here"


def test_a_choice_on_the_command_line_resets_what_it_governs(tmp_path):
    text = CUSTOM + "[attention]\ndelta = [1, 4]\nbackend = 'native'\n[data]\nvocabulary_size = 100\n"
    config = load_text(tmp_path, text, ["model.preset=big", "attention.policy=offline", "data.tokenizer=word"]).config
    assert (config.model.width, config.model.feed_forward, config.model.heads) == (1024, 4096, 16)
    assert config.attention == AttentionSettings(policy="offline", backend="native")
    assert config.data.vocabulary_size == 0
    # what is given beside it on the command line counts, in either order
    for overrides in itertools.permutations(["model.preset=big", "model.heads=8"]):
        assert load_text(tmp_path, text, overrides).config.model.heads == 8


def test_arguments_of_a_command():
    assert load_arguments([]) == load("generated")
    assert load_arguments(["model.width=64"]).config.model.width == 64
    assert load_arguments(["multi30k-de-en", "training.seed=9"]) == load("multi30k-de-en", ["training.seed=9"])
    with pytest.raises(ConfigError, match="'generated' is no override"):
        load_arguments(["model.width=64", "generated"])


@pytest.mark.parametrize(
    ("written", "value"),
    [("2", 2.0), ("inf", math.inf), ("-1.5", -1.5), ("[0.5,4]", (0.5, 4.0)), (" [1, 1] ", (1.0, 1.0))],
)
def test_delta(written, value):
    delta = load(None, [f"attention.delta={written}"]).config.attention.delta
    assert delta == value
    assert isinstance(delta, type(value))


@pytest.mark.parametrize("written", ["a=b", "with space", "ü", '"quoted"', "x\ny = 1"])
def test_text_needs_no_quotes(written):
    assert load(None, [f"data.folder={written}"]).config.data.folder == written.strip('"')


def test_the_presets_are_the_paper_s():
    sizes = {
        name: (preset["width"], preset["feed_forward"], preset["heads"])
        for name, preset in PRESETS.items()
        if len(preset) == 5
    }
    assert sizes == {"tiny": (128, 256, 4), "small": (512, 1024, 4), "base": (512, 2048, 8), "big": (1024, 4096, 16)}
    for name in ("small", "base", "big"):
        model = ModelSettings(preset=name)
        assert (model.encoder_layers, model.decoder_layers) == (6, 6)


def test_choices_are_those_of_the_code():
    def choices(key):
        return set(get_args(FIELDS[key].annotation))

    assert choices("attention.prior") == set(PRIORS)
    assert choices("attention.width_rule") == set(alignment.WIDTH_RULES)
    assert choices("attention.positions") == set(alignment.POSITIONS)
    assert choices("attention.convention") == set(alignment.CONVENTIONS)
    assert choices("attention.backend") == {"auto", *gma_kernels.backends()}
    assert choices("attention.policy") == set(POLICY_KEYS)
    assert choices("model.preset") == set(PRESETS)
    assert choices("data.tokenizer") == set(TOKENIZERS)
    with pytest.raises(ValueError, match=f"{LARGEST_HEAD} at most"):
        ModelSettings(width=2 * (LARGEST_HEAD + 1), heads=2)


def test_settings_cannot_be_changed():
    config = load().config
    with pytest.raises(ValueError, match="frozen"):
        config.model.width = 3
    with pytest.raises(ValueError, match="frozen"):
        config.model = ModelSettings()


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=4),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=3), items, max_size=2),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FIELDS)), ODD)
def test_any_value_is_taken_or_refused_by_name(key, value):
    """Written as JSON, of which much is TOML and the rest is text."""
    message = ""
    try:
        config = load("multi30k-de-en", [f"{key}={json.dumps(value)}"]).config
    except ConfigError as refusal:
        message = str(refusal)
    else:
        Config.model_validate(config.values())
    assert not message or key.split(".")[0] in message


VALUES = {
    "model": {
        "preset": st.sampled_from(["tiny", "small", "base", "big"]),
        "width": st.sampled_from([256, 512, 1024]),
        "encoder_layers": st.integers(1, 12),
        "dropout": st.floats(0, 1, exclude_max=True) | st.just(0),
    },
    "attention": {
        # everything but -inf, which is refused
        "delta": st.floats(allow_nan=False, min_value=-1e300)
        | st.integers(-3, 9)
        | st.tuples(st.floats(-2, 0), st.floats(0, 9)).map(list),
        "prior": st.sampled_from(PRIORS),
        "sharing": st.sampled_from(["heads", "none", "layers", "all"]),
    },
    "data": {
        "folder": st.text(st.characters(codec="utf-8"), min_size=1),
        "train": st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1).map(
            lambda names: {"source": names, "target": names[::-1]}
        ),
        "valid": st.just({"source": ["v"], "target": ["v"]}),
        "max_ratio": st.floats(1, 1e300),
        "lowercase": st.booleans(),
    },
    "training": {
        "learning_rate": st.floats(1e-6, 1e10),
        "seed": st.integers(0, 2**63 - 1),
        "betas": st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    },
}


@settings(max_examples=150, deadline=None)
@given(st.fixed_dictionaries({name: st.fixed_dictionaries({}, optional=keys) for name, keys in VALUES.items()}))
def test_dump_reads_back_equal(tmp_path_factory, values):
    if "train" in values["data"]:
        values["data"]["valid"] = {"source": ["v"], "target": ["w"]}
    config = Config.model_validate(values)
    path = tmp_path_factory.mktemp("dump") / "config.toml"
    path.write_bytes(config.dump().encode())
    resolved = load(path)
    assert resolved.config == config
    assert resolved.config.dump() == config.dump()
    assert all(origin.startswith(f"{path}:") for origin in resolved.origins.values())


@pytest.mark.parametrize(
    "overrides",
    [
        ["attention.policy=wait_k"],
        ["attention.policy=wait_k", "attention.delta=[1, inf]", "attention.catch_up=0.25"],
        ["attention.policy=monotonic", "attention.monotonic=hard", "attention.energy_bias=-1.5"],
    ],
)
def test_dump_of_another_policy_reads_back_equal(tmp_path, overrides):
    config = load("multi30k-de-en", overrides).config
    assert load_text(tmp_path, config.dump()).config == config


def test_delta_of_the_file_is_that_of_its_policy():
    """The recipe's is a range of δ; on the command line the policy's choice voids it, whatever its numbers."""
    attention = load("generated", ["attention.policy=wait_k"]).config.attention
    assert attention == AttentionSettings(policy="wait_k", delta=3)
    assert load("generated", ["attention.policy=gaussian"]).config.attention.delta == (1.0, 7.0)
    both = ["attention.delta=[2, 4]", "attention.policy=wait_k"]
    assert load("generated", both).config.attention.delta == (2.0, 4.0)


@pytest.mark.parametrize(
    ("policy", "delta", "middle"),
    [
        ("gaussian", (0.5, 2.0), 1.25),
        ("wait_k", 3, 3.0),
        ("wait_k", (1, 6), 3.0),
        ("wait_k", (1, math.inf), 5.0),
        ("wait_k", (9, math.inf), 9.0),
    ],
)
def test_the_latency_when_nobody_asks_for_another(policy, delta, middle):
    assert AttentionSettings(policy=policy, delta=delta).middle_delta == middle


def test_dump_of_an_offline_model_reads_back_equal(tmp_path):
    config = load("multi30k-de-en", ["attention.policy=offline", "model.encoder=bidirectional"]).config
    assert load_text(tmp_path, config.dump()).config == config
    assert "delta" not in config.dump()


def run_command(monkeypatch, *arguments) -> int:
    """What the console script does; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["gma", *arguments])
    monkeypatch.setattr(options.console, "width", 200)
    with pytest.raises(SystemExit) as end:
        app.main()
    return end.value.code or 0


def test_the_command_prints_toml_that_loads_again(tmp_path, capsys, monkeypatch):
    assert run_command(monkeypatch, "config", "multi30k-de-en", "training.minutes=7", "--toml") == 0
    printed = capsys.readouterr().out
    assert load_text(tmp_path, printed).config == load("multi30k-de-en", ["training.minutes=7"]).config


def test_the_command_shows_every_key_with_its_origin(capsys, monkeypatch):
    assert run_command(monkeypatch, "config", "training.seed=7") == 0
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["training.seed", "7", "command line"] in rows
    assert ["model.width", "128", "preset tiny"] in rows
    assert {row[0] for row in rows if row} == SHOWN


def test_a_path_with_an_equals_sign_is_no_override(tmp_path):
    path = tmp_path / "rate=3" / "run.toml"
    path.parent.mkdir()
    path.write_text("[training]\nseed = 5\n", encoding="utf-8")
    assert load_arguments([str(path), "training.log_every=9"]).config.training.seed == 5
    assert load_arguments(["data.folder=a/b=c"]).config.data.folder == "a/b=c"
