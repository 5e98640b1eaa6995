"""Latencies that nobody trained for: refused or warned of alike from Python, the command line and files."""

import math
import subprocess
import sys
import warnings

import pytest

from gma import GaussianMultiheadAttention, StreamingTranslator
from gma.config import ConfigError, load
from gma.decoding.translate import translate
from gma.errors import Caution, UserError
from gma.evaluation import forced
from gma.model import directory
from gma.policies import POLICIES, MeaningUnits
from tests.support import tiny_model, tiny_run


@pytest.fixture(scope="module")
def loaded():
    return directory.load(directory.find("de-en"))


WAYS = {
    "translate": lambda loaded, delta: translate(loaded, ["Ja."], delta=delta),
    "open": lambda loaded, delta: StreamingTranslator(loaded).open(delta),
    "forced": lambda loaded, delta: forced.read(loaded, ["Ja."], ["Yes."], delta=delta),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("delta", [-math.inf, math.nan])
def test_what_no_model_can_keep_is_refused(loaded, way, delta):
    with pytest.raises(UserError, match=f"delta is {delta}; expected a number"):
        WAYS[way](loaded, delta)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("delta", [0.0, 0.49, 6.01, 1000.0, math.inf, -5.0])
def test_what_nobody_trained_for_is_warned_of_with_the_range(loaded, way, delta):
    with pytest.warns(Caution, match=rf"δ = {delta:g}: the model was trained for δ from 0\.5 to 6"):
        WAYS[way](loaded, delta)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("delta", [None, 0.5, 2.0, 6.0])
def test_what_it_was_trained_for_is_not(loaded, way, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WAYS[way](loaded, delta)


def test_a_model_of_one_latency_says_so(tmp_path):
    corpus = tiny_run.make_corpus(tmp_path / "corpus")
    tiny_model.make(tmp_path / "model", corpus, "attention.delta=1.0")
    with pytest.warns(Caution, match="trained for δ = 1 alone"):
        translate(directory.load(tmp_path / "model"), ["a"], delta=2.0)


@pytest.mark.parametrize("policy", [*POLICIES.values(), MeaningUnits])
@pytest.mark.parametrize("delta", [-math.inf, math.nan])
def test_every_policy_refuses_what_is_no_latency(policy, delta):
    with pytest.raises(UserError):
        policy.checked_latency(delta)


@pytest.mark.parametrize("delta", ["-inf", "nan", "[0.5, -inf]", "[-inf, 1.0]", "[2.0, 1.0]", '"fast"'])
def test_settings_refuse_them(delta):
    with pytest.raises(ConfigError, match=r"attention\.delta"):
        load("generated", [f"attention.delta={delta}"])


@pytest.mark.parametrize("delta", [-math.inf, math.nan])
def test_the_module_refuses_them(delta):
    with pytest.raises(ValueError, match="expected a number"):
        GaussianMultiheadAttention(8, 2, delta=delta)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--delta=-inf"], 2, "delta is -inf; expected a number"),
        (["--delta=0"], 0, "warning: δ = 0: the model was trained for δ from 0.5 to 6"),
        (["--k=7"], 0, "warning: δ = 7: the model was trained for δ from 0.5 to 6"),
        (["--delta=2"], 0, ""),
    ],
)
def test_the_command_line_does_the_same(options, code, message):
    command = [sys.executable, "-m", "gma", "translate", *options]
    done = subprocess.run(command, input="Ja.\n", capture_output=True, text=True, timeout=240)
    assert done.returncode == code
    assert done.stderr.startswith(message) if message else not done.stderr
    assert "Traceback" not in done.stderr
