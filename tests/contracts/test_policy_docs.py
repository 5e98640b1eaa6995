"""docs/policies.md: an example of every policy, short, and of settings and commands that exist."""

import re

from gma.config import load_arguments
from gma.config.settings import AttentionSettings
from gma.policies import POLICIES
from tests.support.pages import ROOT, blocks, commands, read

PAGE = ROOT / "docs" / "policies.md"
TEXT = read(PAGE)


def trained() -> list[AttentionSettings]:
    """The attention of every `gma train` that is shown."""
    found = []
    for command in (command for block in blocks(PAGE) if block.language == "sh" for command in commands(block)):
        if command[:2] == ["gma", "train"]:
            place = command.index("--folder")
            found.append(load_arguments(command[2:place] + command[place + 2 :]).config.attention)
    return found


def test_every_policy_has_an_example():
    assert {attention.policy for attention in trained()} == set(POLICIES)
    for policy in POLICIES:
        assert re.search(rf"^## `{policy}`", TEXT, re.MULTILINE)


def test_examples_are_short():
    assert max(len(block.text.splitlines()) for block in blocks(PAGE)) <= 10


def test_every_key_of_a_policy_is_named():
    for key in AttentionSettings.model_fields:
        assert re.search(rf"\b{key}\b", TEXT) or key in ("convention", "backend"), key
