"""Errors that the command line shows as a message: all that the project defines, but for those that never leave it."""

import importlib
import pkgutil

import pytest

import gma
from gma.corpus import download
from gma.corpus.integrity import CorpusError
from gma.errors import UserError
from gma.policies import LatencyError
from gma.training.checkpoint import CheckpointError
from tests.support import tiny_model

# caught, and told of in other words, where they are raised
INTERNAL = {"Impossible", "Stopped", "_Changed", "_Interrupted", "_Unreachable", "Refused"}
# what a caller of the library may want to tell apart from other mistakes
OF_THEIR_OWN = {
    "CheckpointError",
    "ClientError",
    "ConfigError",
    "CorpusError",
    "DamagedFile",
    "EngineError",
    "ForeignFile",
    "HubError",
    "LatencyError",
    "ModelDirectoryError",
    "StreamError",
    "StreamFailed",
    "StreamsRefused",
    "UserError",
}
# `__main__` runs the command, and the agent needs a package that may not be there
NOT_IMPORTED = {"gma.__main__", "gma.simuleval_agent"}


def test_every_error_of_the_project_is_one():
    names = {module.name for module in pkgutil.walk_packages(gma.__path__, "gma.")} - NOT_IMPORTED
    modules = [importlib.import_module(name) for name in sorted(names)]
    found = {
        thing
        for module in modules
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Exception) and thing.__module__ == module.__name__
        if not issubclass(thing, Warning)
    }
    assert {error.__name__ for error in found if not issubclass(error, UserError)} == INTERNAL
    assert {error.__name__ for error in found if issubclass(error, UserError)} == OF_THEIR_OWN


@pytest.mark.parametrize(
    ("error", "kind"),
    [(UserError, Exception), (LatencyError, ValueError), (CheckpointError, RuntimeError), (CorpusError, ValueError)],
)
def test_it_is_printed_without_a_traceback_and_is_still_of_its_kind(error, kind, monkeypatch, capsys):
    def fail(*_):
        raise error("what is wrong; what to do")

    assert issubclass(error, kind)
    monkeypatch.setattr(download, "download", fail)
    assert tiny_model.command(monkeypatch, "download", "tatoeba-de-en") == 2
    assert capsys.readouterr().err == "what is wrong; what to do\n"


def test_a_mistake_in_the_program_is_not_hidden(monkeypatch):
    def fail(*_):
        raise ValueError("a mistake")

    monkeypatch.setattr(download, "download", fail)
    with pytest.raises(ValueError, match="a mistake"):
        tiny_model.command(monkeypatch, "download", "tatoeba-de-en")
