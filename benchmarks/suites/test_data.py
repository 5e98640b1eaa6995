"""Preparing a large corpus: speed, memory that does not grow with it, and batches with little padding."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suites.corpora import DATA

CORPUS = Path(DATA or ".") / "europarl-de-en"
SIZES = (50_000, 250_000)
PREPARE = """
import gzip, itertools, json, sys
from pathlib import Path
from rich.console import Console
from gma import config, prepare
from gma.batches import BatchPlan
from gma.token_file import PreparedCorpus

corpus, folder, pairs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for side in ("de", "en"):
    with gzip.open(corpus / f"train250k.{side}.gz", "rt") as lines, open(folder / f"train.{side}", "w") as file:
        file.writelines(itertools.islice(lines, pairs))
settings = config.load("wmt15-de-en-base", [
    f'data.root="{folder}"',
    'data.train.source=["train.de"]',
    'data.train.target=["train.en"]',
    f'data.valid.source=["{corpus}/valid.de.gz"]',
    f'data.valid.target=["{corpus}/valid.en.gz"]',
    "data.test.source=[]",
    "data.test.target=[]",
]).config.data
summary = prepare.prepare(settings, folder / "prepared", Console(quiet=True))
split = PreparedCorpus.open(folder / "prepared").split("train")
print(json.dumps({
    "pairs_per_second": summary.pairs_per_second,
    "peak_megabytes": summary.peak_memory / 2**20,
    "padding": BatchPlan(split, 4096, seed=1).padding_waste(0),
}))
"""


@pytest.mark.skipif(not CORPUS.is_dir(), reason="GMA_DATA names no folder with europarl-de-en/")
def test_preparing_europarl(benchmark, tmp_path):
    def prepared(pairs: int) -> dict[str, float]:
        folder = tmp_path / str(pairs)
        folder.mkdir()
        command = [sys.executable, "-c", PREPARE, str(CORPUS.resolve()), str(folder), str(pairs)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)

    found = benchmark.pedantic(lambda: {f"{pairs:,}": prepared(pairs) for pairs in SIZES})
    benchmark.extra_info.update(suite="data", size="Europarl De-En, joint BPE of 32,000", prepared=found)
