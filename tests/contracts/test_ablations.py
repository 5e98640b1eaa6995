"""Every policy and every ablation trains from a config, and what has been trained decodes as the masked pass does."""

import pytest
import torch

from gma import GaussianMultiheadAttention
from gma.decoding.greedy import greedy
from gma.model import directory
from gma.text.vocabulary import BOS, EOS
from tests.support import tiny_run

ABLATIONS = {
    "absolute positions": ["positions=absolute"],
    "width p": ["width_rule=whole"],
    "width p/2": ["width_rule=half"],
    "width p/3": ["width_rule=third"],
    "width predicted": ["width_rule=predicted"],
    "laplace prior": ["prior=laplace"],
    "linear prior": ["prior=linear"],
    "no prior": ["prior=none"],
    "an alignment for all heads of a layer": ["sharing=heads"],
    "an alignment for every head": ["sharing=none"],
    "an alignment for all layers": ["sharing=layers"],
    "one alignment": ["sharing=all"],
    "as the authors' code": ["convention=reference"],
    "wait-k": ["policy=wait_k"],
    "wait-k, multipath": ["policy=wait_k", "delta=[1, inf]"],
    "wait-k, catch-up": ["policy=wait_k", "catch_up=0.1"],
    "MMA-IL": ["policy=monotonic"],
    "MMA-H": ["policy=monotonic", "monotonic=hard"],
    "ITST": ["policy=itst"],
    "gain": ["policy=gain"],
    "offline": ["policy=offline"],
}
QUICK = ["training.updates=6", "training.validate_every=6", "training.validate_sentences=3", "training.log_every=1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("options", ABLATIONS.values(), ids=ABLATIONS)
def test_it_trains_and_decodes(corpus, tmp_path, options):
    run = tmp_path / "run"
    outcome = tiny_run.train(corpus, run, *QUICK, *(f"attention.{option}" for option in options))
    assert outcome.update == 6
    losses = [record["loss"] for record in tiny_run.records(run, "training")]
    assert losses[-1] < losses[0]
    loaded = directory.load(run)
    settings = loaded.config.attention
    for key, value in (option.split("=") for option in options):
        if key != "delta":
            assert str(getattr(settings, key)) == value

    # double: no rounding decides
    model = loaded.model.double()
    sources = [
        [*loaded.tokenizer.source.encode(text), EOS] for text in ("Anna sieht den Hund .", "Peter", "das ist gut")
    ]
    for source, hypothesis in zip(sources, greedy(model, sources)):
        with torch.no_grad():
            output = model(
                torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BOS, *hypothesis.tokens]])
            )
        needed = torch.stack([alignment.visible.amax(dim=1)[0] for alignment in output.alignments]).amax(dim=0)
        assert hypothesis.needed == needed.tolist()
        tokens = [*hypothesis.tokens, EOS] if hypothesis.complete else hypothesis.tokens
        assert output.logits[0].argmax(dim=-1).tolist()[: len(tokens)] == tokens


OPTIONS = [
    *({"prior": prior} for prior in ("gaussian", "laplace", "linear", "none")),
    *({"width_rule": rule} for rule in ("whole", "half", "third", "predicted")),
    *({"positions": positions} for positions in ("incremental", "absolute")),
    *({"share_heads": share} for share in (True, False)),
    {"convention": "reference"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_module_trains(options):
    """Towards a random target; every ablation of one layer is an option of the module."""
    torch.manual_seed(0)
    attention = GaussianMultiheadAttention(16, 4, batch_first=True, **options)
    query, source, wanted = torch.randn(4, 6, 16), torch.randn(4, 9, 16), torch.randn(4, 6, 16)
    optimizer = torch.optim.Adam(attention.parameters(), 1e-2)
    losses = []
    for _ in range(15):
        loss = (attention(query, source, source, need_weights=False)[0] - wanted).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.95 * losses[0]


def test_layers_of_a_model_may_share_the_module_s_alignment():
    torch.manual_seed(0)
    first, second = (GaussianMultiheadAttention(16, 4, batch_first=True) for _ in range(2))
    query, source = torch.randn(2, 6, 16), torch.randn(2, 9, 16)
    alignment = first.align(query, torch.tensor([9, 9]))
    output, _ = second(query, source, source, alignment=alignment)
    output.square().sum().backward()
    assert first.aligner.step.output.weight.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in second.aligner.parameters())
