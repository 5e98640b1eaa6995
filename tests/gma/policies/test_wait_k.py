"""Wait-k: exactly how much is read, for every k, from one model; and latencies that a policy cannot keep."""

import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from gma.decoding.greedy import greedy
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.streaming import StreamingTranslator
from gma.decoding.translate import translate
from gma.model import directory
from gma.policies import POLICIES, LatencyError, WaitKCrossAttention
from gma.text.vocabulary import BOS, EOS
from tests.support import tiny_model, tiny_run
from tests.support.small_models import SOURCE_VOCABULARY, TARGET_VOCABULARY, random_source, small_loaded, small_model

LENGTHS = (1, 2, 5, 12)
ROWS = 20


def needed(model, k, lengths=LENGTHS, rows=ROWS):
    """g of every layer, [layers, B, T], in one masked pass."""
    generator = torch.Generator().manual_seed(0)
    source = torch.randint(4, SOURCE_VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    target = torch.randint(4, TARGET_VOCABULARY, (len(lengths), rows), generator=generator)
    with torch.no_grad():
        output = model(source, torch.tensor(lengths), target, k)
    return torch.stack([alignment.visible[:, 0] for alignment in output.alignments])


def wait_k(k, i, length, catch_up=Fraction(0)):
    return min(k + i - 1 - math.floor(catch_up * i), length)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_g_is_exactly_its_formula_for_every_k(dtype):
    model = small_model(0, dtype, policy="wait_k", delta=(1, math.inf))
    for k in (*range(1, max(LENGTHS) + 4), math.inf):
        expected = [[wait_k(k, i, length) for i in range(1, ROWS + 1)] for length in LENGTHS]
        assert needed(model, k).tolist() == [expected] * 2


def test_every_sentence_may_have_its_own_k():
    model = small_model(0, policy="wait_k")
    ks = [4.0, 1.0, 3.0, math.inf]
    expected = [[wait_k(k, i, length) for i in range(1, ROWS + 1)] for k, length in zip(ks, LENGTHS)]
    assert needed(model, torch.tensor(ks)).tolist() == [expected] * 2


def test_the_configured_k_when_nobody_asks():
    expected = [[wait_k(3, i, length) for i in range(1, ROWS + 1)] for length in LENGTHS]
    for model in (small_model(0, policy="wait_k"), small_model(0, policy="wait_k", delta=(1, 5))):
        assert needed(model, None).tolist() == [expected] * 2


@pytest.mark.parametrize("k", [1, 2, 4, 9, math.inf])
def test_decoding_reads_by_the_formula_from_one_multipath_model(k):
    generator = random.Random(1)
    model = small_model(1, policy="wait_k", delta=(1, math.inf))
    sources = [random_source(generator) for _ in range(12)]
    for source, hypothesis in zip(sources, greedy(model, sources, delta=k)):
        steps = range(1, len(hypothesis.needed) + 1)
        assert hypothesis.needed == [wait_k(k, i, len(source)) for i in steps]


@pytest.mark.parametrize("catch_up", ["0.1", "0.2", "0.29", "0.5", "0.7", "0.99"])
def test_catch_up(catch_up):
    """Exactly, although 0.29 · 100 < 29 in floating point; it never goes back, and never to nothing."""
    model = small_model(0, policy="wait_k", catch_up=float(catch_up))
    for k in (1, 3):
        found = needed(model, k, (300,), 200)[0, 0].tolist()
        assert found == [wait_k(k, i, 300, Fraction(catch_up)) for i in range(1, 201)]
        assert found == sorted(found)
        assert found[0] >= 1


def test_nothing_past_g_is_attended_to():
    model = small_model(2, policy="wait_k")
    source, lengths, target = torch.tensor([[5, 6, 7, 8, 9, EOS]]), torch.tensor([6]), torch.tensor([[BOS, 9, 10, 11]])
    _, weights = model.look(source, lengths, target, 2.0)
    for layer in weights:
        for row in range(4):
            assert (layer[0, :, row, : 2 + row] > 0).all()
            assert not layer[0, :, row, 2 + row :].any()


def test_multipath_draws_every_k_up_to_the_longest_source_alike():
    def drawn(low, high, longest):
        shares = [share / 1200 for share in range(1200)]
        return Counter(WaitKCrossAttention.drawn_latency(low, high, share, longest, 0.0) for share in shares)

    assert drawn(1.0, math.inf, 12) == dict.fromkeys(range(1, 13), 100)
    assert drawn(2.0, 4.0, 12) == dict.fromkeys(range(2, 5), 400)
    assert drawn(2.0, 9.0, 5) == dict.fromkeys(range(2, 6), 300)
    assert drawn(7.0, 9.0, 5) == {7: 1200}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


def test_training_draws_a_k_for_every_batch(corpus, tmp_path, monkeypatch):
    """From the share that belongs to the update and the batch's own length: whatever the number of processes."""
    trainer = tiny_run.trainer(
        corpus, tmp_path, "attention.policy=wait_k", "attention.delta=[1, inf]", "training.accumulation=3"
    )
    seen, network = [], trainer.network

    def watch(source, lengths, target, delta):
        seen.append((delta, source.shape[1]))
        return network(source, lengths, target, delta)

    monkeypatch.setattr(trainer, "network", watch)
    for _ in range(8):
        trainer._update()
    assert len(seen) == 24
    assert all(k.is_integer() and 1 <= k <= longest for k, longest in seen)
    assert len({k for k, _ in seen}) > 4
    shares = [trainer._share(update) for update in range(1, 9) for _ in range(3)]
    assert [k for k, _ in seen] == [1 + math.floor(share * longest) for share, (_, longest) in zip(shares, seen)]


@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_a_k_that_is_none(k):
    loaded = small_loaded(small_model(0, policy="wait_k"), policy="wait_k")
    for attempt in (
        lambda: IncrementalBatch(loaded.model).open(k),
        lambda: StreamingTranslator(loaded).open(k),
        lambda: translate(loaded, ["ab"], delta=k),
    ):
        with pytest.raises(LatencyError, match=r"k is .*; expected a whole number of source tokens, 1 or more"):
            attempt()


@pytest.mark.parametrize("policy", [name for name, policy in POLICIES.items() if policy.latency_symbol is None])
def test_a_policy_without_a_latency_to_choose_refuses_one(policy):
    loaded = small_loaded(small_model(0, policy=policy), policy=policy)
    for attempt in (
        lambda: IncrementalBatch(loaded.model).open(1.0),
        lambda: StreamingTranslator(loaded).open(1.0),
        lambda: translate(loaded, ["ab"], delta=1.0),
        lambda: loaded.model.look(torch.tensor([[5, EOS]]), torch.tensor([2]), torch.tensor([[BOS]]), 1.0),
    ):
        with pytest.raises(LatencyError, match=f"policy '{policy}' has none to choose when translating; leave it out"):
            attempt()


@pytest.fixture(scope="module")
def models(corpus, tmp_path_factory):
    """A folder with a model of each policy, and a text."""
    folder = tmp_path_factory.mktemp("models")
    for policy in POLICIES:
        tiny_model.make(folder / policy, corpus, f"attention.policy={policy}")
    (folder / "text").write_text("Anna\nPeter sieht Anna\n")
    return folder


def test_k_and_delta_are_one_option(models, monkeypatch, capfdbinary):
    printed = []
    for option in ("--k", "--delta"):
        for command in ("translate", "stream"):
            arguments = [command, models / "wait_k", "--input", models / "text", option, 2]
            assert tiny_model.command(monkeypatch, *arguments) == 0
            # a stream writes a space after each word
            printed.append([line.split() for line in capfdbinary.readouterr().out.decode().splitlines()])
    expected = translate(directory.load(models / "wait_k"), ["Anna", "Peter sieht Anna"], delta=2.0)
    assert printed == [[list(translation.words) for translation in expected]] * 4


@pytest.mark.parametrize(
    ("policy", "latency", "message"),
    [
        ("monotonic", "2", "policy 'monotonic' has none"),
        ("offline", "2", "policy 'offline' has none"),
        ("wait_k", "2.5", "k is 2.5; expected a whole number"),
    ],
)
@pytest.mark.parametrize("command", ["translate", "stream", "evaluate", "sweep"])
def test_commands_refuse_a_latency_by_name(models, monkeypatch, capsys, command, policy, latency, message):
    text = ["--input", models / "text"]
    if command in ("evaluate", "sweep"):
        text = ["--source", models / "text", "--reference", models / "text"]
    assert tiny_model.command(monkeypatch, command, models / policy, "--k", latency, *text) == 2
    error = capsys.readouterr().err
    if command == "sweep" and policy != "wait_k":
        message = f"no policy of {policy} has a latency to choose"
    assert message in error
    assert "Traceback" not in error


def test_a_sweep_takes_the_latencies_usual_with_each_policy(models, tmp_path, monkeypatch, capsys):
    names = ",".join(str(models / policy) for policy in ("wait_k", "monotonic"))
    text = ["--source", models / "text", "--reference", models / "text"]
    assert tiny_model.command(monkeypatch, "sweep", names, *text, "--output", tmp_path) == 0
    rows = [line.split(",")[:2] for line in (tmp_path / "curve.csv").read_text().splitlines()[1:]]
    assert rows == [["monotonic", ""], ["wait_k", "1.0"], ["wait_k", "3.0"], ["wait_k", "5.0"], ["wait_k", "7.0"]]


def test_info_lists_every_policy(monkeypatch, capsys):
    assert tiny_model.command(monkeypatch, "info") == 0
    lines = capsys.readouterr().out.splitlines()
    for name, policy in POLICIES.items():
        (line,) = [line for line in lines if f" {name} " in line and policy.summary[:30] in line]
        assert (policy.latency_symbol or "–") in line
