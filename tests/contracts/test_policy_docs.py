"""docs/policies.md: an example of every policy, short, and of settings and commands that exist."""

import re
import shlex
from pathlib import Path

import pytest

from gma.config import load, load_arguments
from gma.config.settings import AttentionSettings
from gma.policies import POLICIES

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def examples(language: str) -> list[str]:
    return [text for name, text in BLOCKS if name == language]


def trained() -> list[AttentionSettings]:
    """The attention of every `gma train` that is shown."""
    commands = [shlex.split(line) for text in examples("sh") for line in text.splitlines()]
    found = []
    for command in commands:
        if command[:2] == ["gma", "train"]:
            place = command.index("--folder")
            found.append(load_arguments(command[2:place] + command[place + 2 :]).config.attention)
    return found


def test_every_policy_has_an_example():
    assert {attention.policy for attention in trained()} == set(POLICIES)
    for policy in POLICIES:
        assert re.search(rf"^## `{policy}`", TEXT, re.MULTILINE)


def test_examples_are_short():
    assert max(len(text.splitlines()) for _, text in BLOCKS) <= 10


@pytest.mark.parametrize("text", examples("toml"), ids=range(len(examples("toml"))))
def test_a_file_with_the_settings_shown_loads(text, tmp_path):
    path = tmp_path / "example.toml"
    path.write_text(text, encoding="utf-8")
    load(path)


def test_every_key_of_a_policy_is_named():
    for key in AttentionSettings.model_fields:
        assert re.search(rf"\b{key}\b", TEXT) or key in ("convention", "backend"), key
