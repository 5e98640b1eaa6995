"""The trainer: gradients, what is drawn, what is skipped, when it stops, what it leaves behind."""

import copy
import io
import itertools
import json
import math
import platform

import pytest
import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gma.attention.alignment import Alignment
from gma.corpus.batches import collate
from gma.errors import UserError
from gma.model import directory
from gma.storage import tensor_file
from gma.text.vocabulary import PAD
from gma.training import run
from gma.training.loss import cross_entropy
from gma.training.trainer import _past_the_end, _seed
from tests.support import tiny_run

# the output layer is the target's embedding
OUTPUT = "decoder.embed.tokens.weight"
QUIET = ["training.validate_every=0", "training.validate_sentences=0", "training.save_every=1000"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A run of 20 updates and everything it wrote."""
    run = tmp_path_factory.mktemp("finished")
    return run, tiny_run.train(corpus, run)


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}


def test_an_update_follows_the_gradient_of_the_mean_over_all_its_tokens(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path, "training.accumulation=3", "model.dropout=0", "attention.delta=1.0")
    batches = [collate(trainer.train_split, indices) for indices in trainer.stream.update(0).batches]
    total = 0.0
    for batch in batches:
        logits = trainer.model(batch.source, batch.source_lengths, batch.target_input).logits
        total = total + cross_entropy(logits, batch.target_output, 0.1, PAD).smoothed
    mean = total / sum(batch.tokens for batch in batches)
    expected = torch.autograd.grad(mean, list(trainer.model.parameters()))

    seen = []
    trainer.settings = trainer.settings.model_copy(update={"clip_norm": 0.0})
    parameters = list(trainer.model.parameters())
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.extend(parameter.grad.clone() for parameter in parameters))
    trainer._update()
    torch.testing.assert_close(seen, list(expected), rtol=1e-4, atol=1e-7)
    assert trainer.state.tokens == sum(batch.tokens for batch in batches)


def test_gradients_are_clipped_to_the_norm(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path, "training.clip_norm=0.01")
    norms = []
    parameters = list(trainer.model.parameters())
    trainer.optimizer.register_step_pre_hook(
        lambda *_: norms.append(torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters]).item())
    )
    trainer._update()
    assert trainer.gradient_norm > 0.01
    assert norms[0] == pytest.approx(0.01, rel=1e-3)


def test_an_update_depends_on_nothing_but_weights_and_number(corpus, tmp_path):
    one, other = (tiny_run.trainer(corpus, tmp_path / name) for name in "ab")
    one._update()
    torch.manual_seed(99)
    torch.rand(7)
    other._update()
    for name, tensor in weights(one).items():
        assert torch.equal(tensor, weights(other)[name])


def test_dropout_differs_between_updates_and_micro_batches():
    seeds = [_seed(1, update, batch) for update, batch in itertools.product(range(50), range(8))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_delta_is_drawn_for_every_update_from_its_range(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path)
    batch = collate(trainer.train_split, [0, 1])
    drawn = [trainer._delta(trainer._share(update), batch, update) for update in range(1, 301)]
    assert drawn == [trainer._delta(trainer._share(update), batch, update) for update in range(1, 301)]
    assert len(set(drawn)) == 300
    assert all(0.5 <= delta <= 3.0 for delta in drawn)
    assert min(drawn) < 0.6
    assert max(drawn) > 2.9
    assert abs(sum(drawn) / 300 - 1.75) < 0.2
    assert tiny_run.trainer(corpus, tmp_path, "attention.delta=2.0")._delta(0.5, batch, 1) is None


def test_the_loss_falls(finished):
    losses = [record["loss"] for record in tiny_run.records(finished[0], "training")]
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 0.3


def test_bfloat16_trains_float32_weights(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path, *QUIET, "training.precision=bfloat16", "training.updates=5")
    outcome = trainer.train()
    assert outcome.update == 5
    assert trainer.state.skipped == 0
    assert math.isfinite(outcome.validation["loss"])
    assert all(tensor.dtype == torch.float32 for tensor in trainer.tensors().values())


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bfloat16_without_instructions_for_it_is_said_to_be_slow(corpus, tmp_path, monkeypatch, has_instructions):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has_instructions)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    said = io.StringIO()
    chosen = tiny_run.load(corpus, *QUIET, "training.precision=bfloat16", "training.updates=1")
    run.train(chosen, tmp_path, Console(file=said, width=200))
    assert ("training.precision=float32 is likely faster" in said.getvalue()) == (not has_instructions)


def poison(trainer, monkeypatch, updates):
    """Let the gradient of some updates be infinite."""
    accumulate = trainer._accumulate

    def poisoned(batch, delta, tokens):
        sums = accumulate(batch, delta, tokens)
        if trainer.state.update + 1 in updates:
            trainer.model.project.weight.grad[5, 0] = math.inf
        return sums

    monkeypatch.setattr(trainer, "_accumulate", poisoned)


def test_an_update_that_is_not_finite_is_skipped_and_counted(corpus, tmp_path, monkeypatch):
    output = io.StringIO()
    trainer = tiny_run.trainer(corpus, tmp_path, *QUIET, console=Console(file=output))
    poison(trainer, monkeypatch, {2})
    trainer._update()
    before, step = weights(trainer), trainer.tensors()[f"optimizer.step.{OUTPUT}"].clone()
    trainer._update()
    assert trainer.state.update == 2
    assert trainer.state.skipped == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trainer).items())
    assert torch.equal(trainer.tensors()[f"optimizer.step.{OUTPUT}"], step)
    assert "update 2: the gradient's norm is inf; update skipped (1 so far)" in output.getvalue()
    trainer._update()
    assert trainer.state.skipped_in_a_row == 0
    assert not torch.equal(weights(trainer)[OUTPUT], before[OUTPUT])


def test_a_hopeless_run_ends(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("gma.training.trainer.HOPELESS", 3)
    trainer = tiny_run.trainer(corpus, tmp_path, *QUIET)
    poison(trainer, monkeypatch, range(100))
    with pytest.raises(UserError, match=r"last 3 updates had no finite gradient; .*learning_rate"):
        trainer.train()


@pytest.mark.parametrize(
    ("metric", "scores", "stopped", "best"),
    [
        ("loss", [5.0, 4.0, 4.5, 4.0, 3.0, 2.0], 8, 4),
        ("bleu", [1.0, 9.0, 2.0, 10.0, 3.0, 3.0, 3.0], 12, 8),
    ],
)
def test_patience_ends_training_and_the_best_model_is_kept(corpus, tmp_path, metric, scores, stopped, best):
    trainer = tiny_run.trainer(
        corpus,
        tmp_path,
        "training.validate_every=2",
        "training.patience=2",
        f"training.early_stop_metric={metric}",
        "training.save_every=2",
        "training.keep_checkpoints=100",
    )
    upcoming = iter(scores)
    trainer.validation = lambda model, precision: (
        {"loss": 1.0, "perplexity": 2.7, "bleu": 0.0, "al": 1.0} | {metric: next(upcoming)}
    )
    outcome = trainer.train()
    assert outcome.update == stopped
    assert f"no better validation {metric} in 2 validations" in outcome.reason
    assert outcome.validation["update"] == best
    assert json.loads((tmp_path / "training.json").read_text())["update"] == best
    kept, then = tensor_file.read(tmp_path / "model.safetensors").tensors, tiny_run.checkpoint(tmp_path, best).tensors
    assert all(torch.equal(tensor, then[f"model.{name}"]) for name, tensor in kept.items())


def test_a_loss_that_is_no_number_is_not_the_best_for_ever(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path, "training.validate_every=10")
    upcoming = iter([math.nan, 5.0])
    trainer.validation = lambda model, precision: {"loss": next(upcoming), "perplexity": 1.0}
    assert trainer.train().validation["loss"] == 5.0


def test_minutes_end_training_with_a_model(corpus, tmp_path):
    outcome = tiny_run.train(corpus, tmp_path, "training.updates=0", "training.minutes=0.005")
    assert outcome.update >= 1
    assert "training.minutes = 0.005 reached" in outcome.reason
    assert directory.load(tmp_path).training["update"] <= outcome.update


def test_what_a_run_leaves_behind(finished, corpus):
    run, outcome = finished
    assert outcome.reason == "training.updates = 20 reached"
    loaded = directory.load(run)
    assert loaded.config == tiny_run.load(corpus)
    assert loaded.training["update"] == outcome.validation["update"]
    assert loaded.training["validation"] == outcome.validation
    assert loaded.training["corpus"]["train"]["kept"] == 400
    for key in ("target_tokens", "seconds", "parameters", "versions"):
        assert loaded.training[key]
    assert [record["update"] for record in tiny_run.records(run, "validation")] == [10, 20]
    validation = tiny_run.records(run, "validation")[-1]
    assert "tok:13a" in validation["bleu_signature"]
    assert "word convention" in validation["latency_convention"]
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == [
        f"update-{update:08}.safetensors" for update in (5, 10, 15, 20)
    ]


def test_tensorboard_has_the_same_numbers(finished):
    run, _ = finished
    board = EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    losses = [(event.step, event.value) for event in board.Scalars("training/loss")]
    expected = [(record["update"], record["loss"]) for record in tiny_run.records(run, "training")]
    assert [step for step, _ in losses] == [step for step, _ in expected]
    assert [value for _, value in losses] == pytest.approx([value for _, value in expected])
    assert {"validation/bleu", "validation/al", "training/past_the_end"} <= set(board.Tags()["scalars"])


def test_the_validation_loss_does_not_depend_on_batching(corpus, tmp_path):
    losses = [
        tiny_run.trainer(corpus, tmp_path, f"training.tokens={tokens}", "training.validate_sentences=0")
        for tokens in (64, 4096)
    ]
    results = [trainer.validation(trainer.model, trainer._precision()) for trainer in losses]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-5)
    assert "bleu" not in results[0]


def test_an_offline_model_waits_for_every_word(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path, "attention.policy=offline", "training.validate_sentences=20")
    trainer._update()
    result = trainer.validation(trainer.model, trainer._precision())
    texts = trainer.validation.split.source_text[:20]
    assert result["al"] == pytest.approx(sum(len(text.split()) for text in texts) / 20)
    assert trainer.model.training


def test_positions_past_the_end_are_counted_over_layers_heads_and_real_rows(corpus, tmp_path):
    trainer = tiny_run.trainer(corpus, tmp_path)
    batch = collate(trainer.train_split, trainer.stream.update(0).batches[0])
    sentences, length = batch.target_output.shape
    generator = torch.Generator().manual_seed(0)
    alignments = tuple(
        Alignment(30.0 * torch.rand(sentences, heads, length, generator=generator), None, None) for heads in (1, 2)
    )
    past, positions = _past_the_end(alignments, batch)
    expected = [
        bool(alignment.center[sentence, head, row] > batch.source_lengths[sentence])
        for alignment in alignments
        for sentence in range(sentences)
        for head in range(alignment.center.shape[1])
        for row in range(length)
        if batch.target_output[sentence, row] != PAD
    ]
    assert (past, positions) == (sum(expected), len(expected))


def test_the_live_line_has_everything(corpus, tmp_path):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=200)
    tiny_run.trainer(corpus, tmp_path, console=console).train()
    for part in ("update 20", "tokens/s", "loss", "rate", "valid BLEU", "AL", "p>|x|", "left"):
        assert part in output.getvalue(), part


def test_elsewhere_there_are_plain_lines(corpus, tmp_path):
    output = io.StringIO()
    tiny_run.trainer(corpus, tmp_path, "training.log_every=5", console=Console(file=output, width=40)).train()
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + 4 + 2
    assert lines[0] == "update 1 of 20"
    assert all(line.startswith("update ") for line in lines)
    assert "\x1b" not in output.getvalue()


@pytest.mark.slow
def test_a_compiled_model_trains_the_same(corpus, tmp_path):
    more = [*QUIET, "training.updates=5", "model.dropout=0", "model.decoder_layers=1"]
    for name, switch in (("plain", "false"), ("compiled", "true")):
        tiny_run.train(corpus, tmp_path / name, *more, f"training.compile={switch}")
    plain, compiled = (tiny_run.records(tmp_path / name, "training") for name in ("plain", "compiled"))
    assert [record["loss"] for record in compiled] == pytest.approx([record["loss"] for record in plain], rel=1e-4)


def test_validation_translates_with_the_weights_of_now(corpus, tmp_path):
    """Not with those of the validation before, which decoding may have packed."""
    run = tiny_run.trainer(
        corpus, tmp_path, "training.updates=20", "training.validate_every=10", "training.learning_rate=0.05"
    )
    translations = []
    translate = run.validation._translate
    run.validation._translate = lambda model: translations.append((copy.deepcopy(model), translate(model))) or []
    run.train()
    assert len(translations) == 2
    for model, lines in translations:
        assert translate(model.eval()) == lines
