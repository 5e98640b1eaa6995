"""Real text for the benchmarks that need some: from the folder in GMA_DATA, or the generated corpus without it."""

import gzip
import os
import random
from pathlib import Path

from rich.console import Console

from gma import config
from gma.corpus import prepare
from gma.corpus.token_file import PreparedCorpus
from gma.text.rules import TextRules
from gma.text.vocabulary import EOS, BpeVocabulary
from gma.text.word_counts import WordCounts

DATA = os.environ.get(config.loading.DATA_VARIABLE, "")


def short_sentences(folder: Path) -> tuple[str, PreparedCorpus]:
    """Multi30k De→En if it is at hand, else the generated corpus: its name, and it."""
    real = bool(DATA) and (Path(DATA) / "multi30k-de-en").is_dir()
    recipe = "multi30k-de-en" if real else "generated"
    settings = config.load(recipe, [f'data.folder="{folder}"']).config.data
    prepare.prepare(settings, folder, Console(quiet=True))
    return recipe, PreparedCorpus.open(folder)


def sentence_lengths(count: int) -> list[int]:
    """Tokens of sentences as they come: 1.3 for a word of Europarl's valid set if at hand, else of a like spread."""
    path = Path(DATA or ".") / "europarl-de-en" / "valid.de.gz"
    generator = random.Random(0)
    if not path.exists():
        return [min(150, 1 + round(generator.lognormvariate(3.2, 0.7))) for _ in range(count)]
    with gzip.open(path, "rt") as file:
        words = [len(line.split()) for line in file]
    return [1 + round(1.3 * n) for n in generator.sample(words, count)]


def long_sources(vocabulary: int) -> tuple[str, list[list[int]]]:
    """1,000 sentences of 25 to 60 words as token ids with EOS: of Europarl's valid set if at hand, else random ones."""
    path = Path(DATA or ".") / "europarl-de-en" / "valid.de.gz"
    if not path.exists():
        generator = random.Random(0)
        lengths = [round(1.3 * generator.randint(25, 60)) for _ in range(1000)]
        return "random tokens", [[generator.randrange(4, vocabulary) for _ in range(n)] + [EOS] for n in lengths]
    with gzip.open(path, "rt") as file:
        lines = file.read().splitlines()
    pieces = BpeVocabulary.train(WordCounts(lines), TextRules(), size=vocabulary, minimum_frequency=2)
    chosen = [line for line in lines if 25 <= len(line.split()) <= 60][:1000]
    return "Europarl valid, 25 to 60 words", [[*pieces.encode(line), EOS] for line in chosen]
