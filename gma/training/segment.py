"""The work behind `gma segment`: a model that waits for the whole source learns to translate by meaning units."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from gma.corpus.token_file import PreparedCorpus
from gma.decoding.unit_batch import check_can_segment
from gma.model import directory
from gma.model.device import choose_device
from gma.model.directory import MODEL, TOKENIZER, Loaded
from gma.storage.digest import sha256_of
from gma.terminal import bar, say
from gma.text.tokenizer import EOS
from gma.training import segmenter, unit_labels
from gma.training.segmenter import Fit, Segmenter, SegmenterError, word_ends
from gma.training.trainer import CHECKPOINTS


def segment(model: Path, output: Path, console: Console, *, limit: int, device: str = "auto") -> Fit:
    """Label the meaning units of training sentences, train a segmenter on them, and write it with the model.

    Args:
        limit: sentences to label, drawn at random.
    """
    if (output / CHECKPOINTS).exists():
        raise SegmenterError(f"{output} is a run, whose best model would be overwritten; choose another --output")
    loaded = directory.load(model, choose_device(device))
    check_can_segment(loaded.model)
    seed, vocabulary = loaded.config.training.seed, loaded.tokenizer.source
    sources = _sources(loaded, model, limit, seed)
    words = sum(len(word_ends(source, vocabulary)) for source in sources)
    with bar(console, "finding meaning units", len(sources) + words) as advance:
        units = unit_labels.label(loaded.model, sources, vocabulary, progress=advance)
    states = segmenter.word_states(loaded.model, sources, vocabulary)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = Segmenter(vocabulary, loaded.config.model.width).to(states[0])
    fit = segmenter.fit(classifier, states, units, seed)
    record = {**loaded.training, directory.UNITS: {"sentences": len(sources), **asdict(fit)}}
    directory.save(output, loaded.model, loaded.config, loaded.tokenizer, record)
    segmenter.save(output, classifier, MODEL)
    say(
        console, f"{words:,} words of {len(sources):,} sentences; {sum(map(sum, units)) / words:.1%} end a meaning unit"
    )
    say(
        console,
        f"on {fit.held_out_words:,} held out: precision {fit.precision:.1%}, recall {fit.recall:.1%} (θ = 0.5); "
        f"cross-entropy {fit.loss:.3f}, that of a constant guess {fit.guess:.3f}",
    )
    say(console, f"written: {output}")
    return fit


def _sources(loaded: Loaded, model: Path, limit: int, seed: int) -> list[list[int]]:
    """Random training sentences with words, each with its end-of-sentence."""
    folder = Path(loaded.config.data.folder)
    corpus = PreparedCorpus.open(folder)
    if sha256_of(folder / TOKENIZER) != sha256_of(model / TOKENIZER):
        raise SegmenterError(
            f"the corpus in {folder} was prepared with another tokenizer than {model} was trained with; expected the "
            "corpus of its training: prepare it again as it was"
        )
    source = corpus.split("train").source
    chosen = np.random.default_rng(seed).permutation(np.flatnonzero(source.lengths))[:limit]
    return [[*source[index].tolist(), EOS] for index in chosen.tolist()]
