"""The native batch does what the one in PyTorch does, and what a sentence gets depends on that sentence alone."""

import math
import random
import threading
from copy import deepcopy
from unittest.mock import patch

import pytest
import torch

from gma.config.settings import AttentionSettings, ModelSettings
from gma.decoding import engine
from gma.decoding.engine import EngineError, chosen_engine, open_batch
from gma.decoding.greedy import greedy
from gma.decoding.incremental import IncrementalBatch
from gma.decoding.native_batch import NativeBatch
from gma.decoding.packed_model import packed
from gma.model.inference import WEIGHTS, Inference
from gma.model.transformer import Transformer
from gma.text.vocabulary import EOS
from gma_kernels import native
from tests.support.small_models import SHARING, SOURCE_VOCABULARY, TARGET_VOCABULARY, random_source, small_model

pytestmark = pytest.mark.skipif(native.extension is None, reason="the native extension is not built")

POLICIES = [
    *({"policy": "gaussian", "sharing": sharing} for sharing in SHARING),
    {"policy": "gaussian", "convention": "reference"},
    {"policy": "gaussian", "positions": "absolute", "width_rule": "predicted"},
    {"policy": "gaussian", "prior": "laplace", "width_rule": "third", "sharing": "none"},
    {"policy": "gaussian", "prior": "linear", "width_rule": "whole"},
    {"policy": "gaussian", "prior": "none"},
    {"policy": "wait_k"},
    {"policy": "wait_k", "catch_up": 0.3},
    {"policy": "gain"},
    {"policy": "offline"},
    {"policy": "gaussian", "encoder": "bidirectional"},
    {"policy": "offline", "encoder": "bidirectional"},
]
LATENCIES = {"gaussian": (-1.0, 0.0, 0.6, 1.7, 4.0, math.inf), "wait_k": (1.0, 2.0, 5.0, math.inf), "offline": (None,)}
LATENCIES |= {"gain": (0.0, 0.7, 0.9, 1.0, 1.1, 1.3, 2.0)}
STATES = 10_000  # rows compared, over all policies


@pytest.fixture(autouse=True)
def _same_level_afterwards():
    level = native.extension.simd_level()
    yield
    native.extension.use_simd(level)


class Doubles:
    """Several batches that are treated alike, and compared whenever they step."""

    def __init__(self, model: Transformer, seed: int):
        oracle = deepcopy(model).double()
        self.batches = [IncrementalBatch(oracle), IncrementalBatch(model), NativeBatch(model)]
        self.generator = random.Random(seed)
        self.latencies = LATENCIES[model.policy.name]
        self.sources: dict[int, list[int]] = {}  # what has not been pushed yet, by slot
        self.states = self.worst = self.own = 0.0

    def every(self, method: str, *arguments):
        first, *others = [getattr(batch, method)(*arguments) for batch in self.batches]
        assert all(other == first for other in others)
        return first

    def act(self) -> None:
        """One thing that may happen to a batch."""
        draw, slots = self.generator.random(), sorted(self.sources)
        if not slots or (draw < 0.1 and len(slots) < 8):
            slot = self.every("open", self.generator.choice(self.latencies))
            self.sources[slot] = random_source(self.generator)
        elif draw < 0.13:
            slot = self.generator.choice(slots)
            self.every("close", slot)
            del self.sources[slot]
        elif draw < 0.18 and len(slots) < 8:
            # only a source that has ended may be shared, and no token may be waiting in the middle of the decoder
            ended = [slot for slot in slots if not self.sources[slot] and self.batches[0].awaited(slot) == 0]
            if ended:
                fork = self.every("fork", self.generator.choice(ended))
                self.sources[fork] = []
        elif draw < 0.22 and self.latencies != (None,):
            self.every("change_latency", self.generator.choice(slots), self.generator.choice(self.latencies))
        elif draw < 0.5:
            new = {}
            for slot in self.generator.sample(slots, self.generator.randint(1, len(slots))):
                count = self.generator.randint(0, 3)
                new[slot], self.sources[slot] = self.sources[slot][:count], self.sources[slot][count:]
            for batch in self.batches:
                batch.push({slot: tokens for slot, tokens in new.items() if tokens})
        else:
            self.step(self.generator.sample(slots, self.generator.randint(1, len(slots))))

    def step(self, slots: list[int]) -> None:
        oracle, reference, found = [batch.advance(slots) for batch in self.batches]
        if oracle is None:
            assert reference is None
            assert found is None
            return
        assert found.slots == oracle.slots == reference.slots
        assert found.needed == oracle.needed
        for slot in slots:
            assert self.batches[2].awaited(slot) == self.batches[0].awaited(slot)
        if not found.slots:
            return
        assert found.best == found.logits.argmax(dim=1).tolist()
        for positions, expected in ((found.positions, oracle.positions), (found.widths, oracle.widths)):
            torch.testing.assert_close(torch.tensor(positions), torch.tensor(expected), rtol=1e-4, atol=1e-4)
        scale = oracle.logits.abs().max()
        self.worst = max(self.worst, float((found.logits - oracle.logits).abs().max() / scale))
        self.own = max(self.own, float((reference.logits - oracle.logits).abs().max() / scale))
        self.states += len(found.slots)
        # a token chosen at random: translations end now and then
        tokens = [EOS if self.generator.random() < 0.05 else self.generator.randrange(4, TARGET_VOCABULARY)] * len(
            found.slots
        )
        for batch in self.batches:
            batch.write(found.slots, tokens)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_random_states_are_those_of_the_oracle(policy):
    doubles = Doubles(small_model(1, torch.float32, **policy), seed=7)
    while doubles.states < STATES / len(POLICIES):
        doubles.act()
    # what float32 costs PyTorch is the measure of what it may cost here
    assert doubles.own > 0
    assert doubles.worst <= 4 * doubles.own


def middle_model(seed: int = 0, **attention) -> Transformer:
    """Large enough that two threads share its steps; its widths are no multiples of anything."""
    torch.manual_seed(seed)
    settings = ModelSettings(preset="custom", width=180, feed_forward=300, heads=3, encoder_layers=2, decoder_layers=3)
    return Transformer(settings, AttentionSettings(**attention), SOURCE_VOCABULARY, 900).eval()


def logits_alone(model: Transformer, source: list[int], tokens: list[int], delta: float, weights: str):
    """Of every step of one sentence that is given these tokens, its source pushed at once."""
    batch = NativeBatch(model, weights)
    slot, found = batch.open(delta), []
    batch.push({slot: source})
    for token in tokens:
        found.append(batch.advance().logits[0].clone())
        batch.write([slot], [token])
    return found


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("level", native.extension.simd_levels() if native.extension else [])
def test_not_a_bit_depends_on_company_cuts_or_threads(level, weights):
    native.extension.use_simd(level)
    model, generator = middle_model(width_rule="predicted"), random.Random(3)
    sources = [random_source(generator, longest=25) for _ in range(23)]
    tokens = [[generator.randrange(4, 900) for _ in range(6)] for _ in sources]
    deltas = [generator.choice((0.0, 1.0, 2.5)) for _ in sources]
    batch, rest = NativeBatch(model, weights), [list(source) for source in sources]
    slots = {batch.open(delta): index for index, delta in enumerate(deltas)}
    found: list[list[torch.Tensor]] = [[] for _ in sources]
    while any(len(steps) < 6 for steps in found):
        torch.set_num_threads(generator.choice((1, 2)))
        new = {}
        for slot, index in slots.items():
            count = generator.randint(0, 4)
            new[slot], rest[index] = rest[index][:count], rest[index][count:]
        batch.push({slot: some for slot, some in new.items() if some})
        scores = batch.advance(generator.sample(sorted(slots), generator.randint(1, len(slots))))
        if scores is None or not scores.slots:
            continue
        for slot, logits in zip(scores.slots, scores.logits):
            index = slots[slot]
            batch.write([slot], [tokens[index][len(found[index])]])
            found[index].append(logits.clone())
            if len(found[index]) == 6:
                batch.close(slot)
                del slots[slot]
    torch.set_num_threads(1)
    for index, steps in enumerate(found):
        alone = logits_alone(model, sources[index], tokens[index], deltas[index], weights)
        assert all(torch.equal(one, other) for one, other in zip(steps, alone, strict=True))


@pytest.mark.parametrize(("weights", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.02), ("int8", 0.06)])
@pytest.mark.parametrize("level", native.extension.simd_levels() if native.extension else [])
def test_every_level_and_weight_is_near_the_oracle(level, weights, tolerance):
    native.extension.use_simd(level)
    model = middle_model(policy="wait_k")
    source, tokens = [5, 9, 30, 12, 8, EOS], [7, 80, 600, 4]
    with patch.object(engine, "hindrance", lambda model: "none is wanted"):
        batch = open_batch(deepcopy(model).double())
    slot = batch.open(2.0)
    batch.push({slot: source})
    for token, found in zip(tokens, logits_alone(model, source, tokens, 2.0, weights), strict=True):
        expected = batch.advance().logits[0]
        batch.write([slot], [token])
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()
        assert torch.count_nonzero(found - found[0]) > 800


def test_packed_weights_take_less_memory():
    sizes = [packed(middle_model(), weights).bytes for weights in WEIGHTS]
    assert sizes[0] > 1.7 * sizes[1] > 2.5 * sizes[2]


def test_a_model_that_changes_is_packed_again():
    model = small_model(0, torch.float32)
    before = packed(model, "float32")
    assert packed(model, "float32") is before
    with torch.no_grad():
        model.project.weight.mul_(2.0)
    assert packed(model, "float32") is not before


def test_many_threads_with_batches_of_their_own():
    model = middle_model()
    sources = [random_source(random.Random(seed), longest=20) for seed in range(6)]
    expected, found = greedy(model, sources, slots=1), {}

    def translate(index: int) -> None:
        found[index] = greedy(model, [sources[index]])[0]

    threads = [threading.Thread(target=translate, args=(index,)) for index in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index].tokens for index in range(len(sources))] == [one.tokens for one in expected]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda batch: batch.push({3: [5]}), "slot 3 is not open"),
        (lambda batch: batch.push({0: [SOURCE_VOCABULARY]}), f"the token {SOURCE_VOCABULARY}; expected 0 or more"),
        (lambda batch: batch.push({0: [-1]}), "the token -1; expected 0 or more"),
        (lambda batch: batch.write([0], [TARGET_VOCABULARY]), f"the token {TARGET_VOCABULARY}; expected"),
        (lambda batch: batch.write([0], []), "there are 1 slots and 0 tokens"),
        (lambda batch: batch.advance([1]), "slot 1 is not open"),
        (lambda batch: batch.close(-1), "slot -1 is not open"),
        (lambda batch: batch.fork(2), "slot 2 is not open"),
        (lambda batch: batch.copy({0: 5}), "slot 5 is not open"),
        (lambda batch: batch.take_back(0, 9), "cannot go back to 9 of 0"),
        (lambda batch: batch.force({0: [4]}), "only a model without a policy"),
    ],
)
def test_bad_calls_are_refused(call, message):
    batch = NativeBatch(small_model(0, torch.float32))
    batch.open(1.0)
    with pytest.raises(ValueError, match=message):
        call(batch)


def test_a_second_step_waits_for_the_choice():
    batch = NativeBatch(small_model(0, torch.float32))
    slot = batch.open(1.0)
    batch.push({slot: [5, 6, EOS]})
    assert batch.advance().slots == [slot]
    assert batch.advance() is None


def test_weights_that_are_not_finite_have_a_name():
    model = small_model(0, torch.float32)
    with torch.no_grad():
        model.decoder.layers[0].cross_attention.query.weight.fill_(math.nan)
    batch = NativeBatch(model)
    slot = batch.open(1.0)
    batch.push({slot: [5, 6, EOS]})
    with pytest.raises(ValueError, match="are the model's weights finite"):
        batch.advance()


def test_which_engine_serves(monkeypatch):
    model = small_model(0, torch.float32)
    assert chosen_engine(model) == "native"
    monkeypatch.setenv(engine.VARIABLE, "torch")
    assert chosen_engine(model) == "torch"
    monkeypatch.setenv(engine.VARIABLE, "faster")
    with pytest.raises(EngineError, match="GMA_ENGINE is 'faster'; expected one of auto, native, torch"):
        chosen_engine(model)
    monkeypatch.delenv(engine.VARIABLE)
    model.inference = Inference("torch", "int8")
    with pytest.raises(EngineError, match="weights are 'int8', which only the native engine has"):
        chosen_engine(model)
    double = small_model(0)
    assert chosen_engine(double) == "torch"
    double.inference = Inference("native")
    with pytest.raises(EngineError, match=r"wants float32 on the CPU; use 'auto'"):
        chosen_engine(double)
    assert chosen_engine(small_model(0, torch.float32, policy="monotonic")) == "torch"
    assert isinstance(open_batch(small_model(0, torch.float32, policy="monotonic")), IncrementalBatch)
