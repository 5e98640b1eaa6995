"""The recipes load, hold the paper's values, and together are a manual of every key."""

import re
import sys
from importlib import resources
from typing import Literal, get_args, get_origin

import pytest

from gma.config import Config, load, recipes
from gma.config.settings import PRESETS, Settings
from gma.config.toml import toml_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def text_of(recipe: str) -> str:
    return (resources.files("gma.config") / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch):
    monkeypatch.delenv("GMA_DATA", raising=False)


def test_the_recipes_there_are():
    assert recipes() == [
        "de-en-11m",
        "europarl-de-en",
        "generated",
        "iwslt15-en-vi",
        "multi30k-de-en",
        "tatoeba-europarl-de-en",
        "wmt15-de-en-base",
        "wmt15-de-en-big",
    ]


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_loads_and_survives_a_round_trip(recipe, tmp_path):
    config = load(recipe).config
    path = tmp_path / "config.toml"
    path.write_text(config.dump(), encoding="utf-8")
    assert load(path).config == config
    assert bool(config.data.generated) != bool(config.data.train.source)


@pytest.mark.parametrize("recipe", recipes())
def test_a_recipe_says_what_it_is_and_lines_are_short(recipe):
    lines = text_of(recipe).splitlines()
    assert lines[0].startswith("# ")
    assert all(len(line) <= 120 for line in lines), [line for line in lines if len(line) > 120]


def manual() -> dict[str, list[tuple[str, str, str]]]:
    """Section -> (key, value as written, the comment above it) of the recipe that explains every key."""
    entries: dict[str, list[tuple[str, str, str]]] = {}
    section, comment, section_entries = "", [], []
    for line in text_of("generated").splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section_entries = entries.setdefault(header[1], [])
            section, comment = header[1], []
        elif section and (entry := re.fullmatch(r"(?:# )?(\w+) = (.+)", line)):
            section_entries.append((entry[1], entry[2], " ".join(comment)))
        elif section and line.startswith("# "):
            # a comment serves all the keys that follow it, up to the next comment
            fresh = section_entries and section_entries[-1][2] == " ".join(comment)
            comment = [line[2:]] if fresh else [*comment, line[2:]]
    return entries


def test_the_manual_names_every_key_once_and_nothing_else():
    for name, field in Config.model_fields.items():
        keys = [key for key, _, _ in manual()[name]]
        assert sorted(keys) == sorted(field.annotation.model_fields)
    assert list(manual()) == list(Config.model_fields)


def test_the_manual_explains_every_key_and_lists_its_choices():
    for name, section in Config.model_fields.items():
        for key, _, comment in manual()[name]:
            assert len(comment) >= 20, f"{name}.{key} has no explanation"
            annotation = section.annotation.model_fields[key].annotation
            if get_origin(annotation) is Literal:
                missing = [choice for choice in get_args(annotation) if f'"{choice}"' not in comment]
                assert not missing, f"{name}.{key}: the comment leaves out {missing}"


def test_keys_left_out_of_the_manual_s_recipe_stand_there_with_their_values():
    """A line `# key = value` shows what the recipe resolves to, and every comment with a default tells the true one."""
    values = load("generated").config.model_dump()
    given = tomllib.loads(text_of("generated"))
    for name, entries in manual().items():
        for key, written, _ in entries:
            if key in given[name] or key in ("train", "valid", "test"):
                continue
            assert tomllib.loads(f"v = {written}")["v"] == tomllib.loads(f"v = {toml_value(values[name][key])}")["v"]


def test_the_manual_tells_the_true_defaults():
    for name, section in Config.model_fields.items():
        defaults = section.annotation().model_dump()
        for key, _, comment in manual()[name]:
            field = section.annotation.model_fields[key]
            if field.is_required() or isinstance(field.default, Settings):
                continue  # chosen by preset or tokenizer, or a list of files
            stated = re.findall(r"[Dd]efaults?:? (.*?)(?:\.(?:\s|$)|[);]|$)", comment)
            value = toml_value(defaults[key])
            forms = {
                value,
                value.replace("e-0", "e-"),
                value.removesuffix(".0"),
                "5e-4" if value == "0.0005" else value,
            }
            assert any(form in text for form in forms for text in stated), f"{name}.{key}: {value} not in {stated}"


def test_the_paper_s_settings():
    paper = {
        "learning_rate": 5e-4,
        "warmup_updates": 4000,
        "warmup_from": 1e-7,
        "betas": (0.9, 0.98),
        "label_smoothing": 0.1,
        "clip_norm": 0.0,
        "weight_decay": 0.0,
        "keep_checkpoints": 5,
    }
    sizes = {"iwslt15-en-vi": "small", "wmt15-de-en-base": "base", "wmt15-de-en-big": "big"}
    for recipe, preset in sizes.items():
        config = load(recipe).config
        assert {key: getattr(config.training, key) for key in paper} == paper
        assert {key: getattr(config.model, key) for key in PRESETS[preset]} == PRESETS[preset]
        assert (config.model.dropout, config.model.attention_dropout, config.model.encoder) == (0.3, 0.0, "causal")
        processes = 1 if preset == "small" else 8
        assert config.training.tokens * config.training.accumulation * processes == 32_768
        attention = config.attention
        assert (attention.policy, attention.prior, attention.width_rule) == ("gaussian", "gaussian", "half")
        assert (attention.positions, attention.sharing, attention.convention) == ("incremental", "heads", "paper")
    vietnamese = load("iwslt15-en-vi").config
    assert (vietnamese.data.tokenizer, vietnamese.data.minimum_frequency) == ("word", 5)
    assert (vietnamese.data.joint, vietnamese.model.embeddings) == (False, "separate")
    for recipe in ("wmt15-de-en-base", "wmt15-de-en-big"):
        german = load(recipe).config
        assert (german.data.tokenizer, german.data.joint, german.data.vocabulary_size) == ("bpe", True, 32_000)
        assert german.model.embeddings == "shared"
