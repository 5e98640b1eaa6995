"""From raw text to a corpus: filters, counts, vocabularies, errors, and a killed run that leaves nothing half done."""

import gzip
import hashlib
import io
import json
import os
import random

import pytest
from rich.console import Console
from typer.testing import CliRunner

from gma.cli.app import app
from gma.config import DataSettings
from gma.corpus import generated
from gma.corpus.prepare import PARTIAL, prepare
from gma.corpus.token_file import CorpusError, PreparedCorpus
from gma.errors import UserError
from gma.storage.lock import LOCK, locked
from gma.text.vocabulary import UNK, BpeVocabulary, WordVocabulary

QUIET = Console(quiet=True)
SOURCE = ["Ein Mann schläft.", "Zwei Hunde laufen schnell.", "Die Frau, sie lacht!", "Ein Kind spielt im Park."] * 5
TARGET = ["A man sleeps.", "Two dogs run fast.", "The woman, she laughs!", "A child plays in the park."] * 5


@pytest.fixture
def raw(tmp_path):
    """Writes text files and gives the settings that name them."""

    def write(train=(SOURCE, TARGET), valid=(SOURCE[:4], TARGET[:4]), test=None, zipped=False, **settings):
        files = {}
        for name, sides in {"train": train, "valid": valid, "test": test}.items():
            if sides is None:
                continue
            files[name] = {}
            for side, lines in zip(("source", "target"), sides):
                content = "".join(line + "\n" for line in lines).encode() if isinstance(lines, list) else lines
                path = tmp_path / f"{name}.{side}.txt"
                path.write_bytes(gzip.compress(content) if zipped else content)
                files[name][side] = [path.name]
        defaults = {"root": str(tmp_path), "vocabulary_size": 120} if settings.get("tokenizer") != "word" else {}
        return DataSettings(**{"root": str(tmp_path), **defaults, **files, **settings})

    return write


def ids(corpus, name, side):
    file = getattr(corpus.split(name), side)
    return [file[index].tolist() for index in range(len(file))]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("split_punctuation", [False, True])
def test_every_sentence_comes_back(raw, tmp_path, zipped, joint, split_punctuation):
    settings = raw(test=(SOURCE[4:7], TARGET[4:7]), zipped=zipped, joint=joint, split_punctuation=split_punctuation)
    summary = prepare(settings, tmp_path / "out", QUIET)
    corpus = PreparedCorpus.open(tmp_path / "out")
    assert corpus.splits == ["train", "valid", "test"]
    assert corpus.tokenizer.joint is joint
    for name, sides in (("train", (SOURCE, TARGET)), ("valid", (SOURCE[:4], TARGET[:4]))):
        for side, lines in zip(("source", "target"), sides):
            vocabulary = getattr(corpus.tokenizer, side)
            assert isinstance(vocabulary, BpeVocabulary)
            assert [vocabulary.decode(sentence) for sentence in ids(corpus, name, side)] == lines
            assert ids(corpus, name, side) == [vocabulary.encode(line) for line in lines]
    assert corpus.split("valid").source_text == SOURCE[:4]
    assert corpus.split("test").target_text == TARGET[4:7]
    with pytest.raises(CorpusError, match=r"train\.source\.txt is missing; only the text of what is scored is kept"):
        _ = corpus.split("train").source_text
    train = summary.splits["train"]
    assert (train.read, train.kept, sum(train.dropped.values())) == (20, 20, 0)
    assert train.source.tokens == sum(map(len, ids(corpus, "train", "source")))
    assert summary.source_vocabulary == corpus.tokenizer.source.size
    assert summary.pairs_per_second > 0
    with pytest.raises(CorpusError, match="no split 'dev'; it has train, valid, test"):
        corpus.split("dev")


def test_manifest_names_every_file_and_its_checksum(raw, tmp_path):
    prepare(raw(), tmp_path / "out", QUIET)
    manifest = json.loads((tmp_path / "out" / "corpus.json").read_text("utf-8"))
    files = {path.name for path in (tmp_path / "out").iterdir()} - {"corpus.json", LOCK}
    assert manifest["files"].keys() == files
    for name, file in manifest["files"].items():
        assert file["sha256"] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()
    # the same text gives the same bytes
    prepare(raw(), tmp_path / "again", QUIET)
    assert json.loads((tmp_path / "again" / "corpus.json").read_text("utf-8")) == manifest
    (tmp_path / "out" / "train.source.tokens").write_bytes(b"short")
    with pytest.raises(CorpusError, match=r"train\.source\.tokens: expected \d+ bytes, found 5"):
        PreparedCorpus.open(tmp_path / "out")


def test_filters_drop_and_count_training_pairs_only(raw, tmp_path):
    odd = [("a b", "a"), ("a b c d e", "a"), ("a", "a " * 9), ("x " * 50, "x " * 50), ("", "a"), ("a", " ")]
    sides = [line for line, _ in odd], [line for _, line in odd]
    train = [line + "\n" for line in sides[0]], [line + "\n" for line in sides[1]]
    content = ["".join(lines).encode() for lines in train]
    settings = raw(
        train=(content[0] + b"\xff\n", content[1] + b"a\n"),
        valid=sides,
        tokenizer="word",
        minimum_frequency=1,
        max_length=20,
        max_ratio=4.0,
        on_bad_line="drop",
    )
    summary = prepare(settings, tmp_path / "out", QUIET)
    train = summary.splits["train"]
    assert (train.read, train.kept) == (7, 1)
    assert train.dropped == {"bad": 1, "empty": 2, "length": 1, "ratio": 2}
    corpus = PreparedCorpus.open(tmp_path / "out")
    # what is scored keeps every line, in its place
    assert len(corpus.split("valid")) == 6
    assert corpus.split("valid").source_text == [" ".join(line.split()) for line in sides[0]]
    assert corpus.split("valid").source.lengths.tolist() == [2, 5, 1, 50, 0, 1]
    output = io.StringIO()
    Console(file=output, width=100).print(summary.table())
    for expected in ("dropped: too long", "dropped: an empty side", "pairs/s", "peak memory", "vocabularies 10 and 6"):
        assert expected in output.getvalue()


def test_lengths_are_counted_in_pieces_and_the_limit_is_allowed(raw, tmp_path):
    settings = raw(train=(["a " * n for n in range(1, 9)],) * 2, tokenizer="word", minimum_frequency=1, max_length=5)
    assert prepare(settings, tmp_path / "out", QUIET).splits["train"].kept == 5
    settings = raw(train=(["a " * n for n in range(1, 9)], ["a a"] * 8), tokenizer="word", max_ratio=2.0)
    assert prepare(settings, tmp_path / "out", QUIET).splits["train"].kept == 4


def test_word_vocabularies(raw, tmp_path):
    rules = {"lowercase": True, "unescape": True}
    train = (["It &apos;s red", "it &quot;is&quot; red"], ["rot", "ROT"])
    prepare(raw(train=train, tokenizer="word", minimum_frequency=2, **rules), tmp_path / "out", QUIET)
    corpus = PreparedCorpus.open(tmp_path / "out")
    assert corpus.tokenizer.source.pieces[4:] == ("it", "red")
    assert corpus.tokenizer.target.pieces[4:] == ("rot",)
    assert ids(corpus, "train", "source")[0] == [4, UNK, 5]
    assert corpus.manifest["splits"]["train"]["source"] == {"tokens": 6, "unknown": 2}

    for name, word in (("vocab.en", "&apos;s"), ("vocab.vi", "Rot")):
        (tmp_path / name).write_text(f"<unk>\n<s>\n</s>\n{word}\n", "utf-8")
    files = {"source_vocabulary": "vocab.en", "target_vocabulary": "vocab.vi"}
    prepare(raw(train=train, tokenizer="word", **files, **rules), tmp_path / "out", QUIET)
    corpus = PreparedCorpus.open(tmp_path / "out")
    assert isinstance(corpus.tokenizer.source, WordVocabulary)
    assert corpus.tokenizer.source.pieces[4:] == ("'s",)
    assert ids(corpus, "train", "source")[0] == [UNK, 4, UNK]
    (tmp_path / "vocab.vi").write_text("Rot\n", "utf-8")
    with pytest.raises(UserError, match=r"vocab\.vi"):
        prepare(raw(train=train, tokenizer="word", **files), tmp_path / "out", QUIET)


def test_scored_text_is_kept_as_it_was_given_so_that_the_rules_apply_once(raw, tmp_path):
    settings = raw(valid=(["  A&amp;quot;B\u00a0 C "], ["It &apos;s"]), lowercase=True, unescape=True)
    prepare(settings, tmp_path / "out", QUIET)
    corpus = PreparedCorpus.open(tmp_path / "out")
    split, tokenizer = corpus.split("valid"), corpus.tokenizer
    assert (split.source_text, split.target_text) == (["A&amp;quot;B C"], ["It &apos;s"])
    assert split.source[0].tolist() == tokenizer.source.encode(split.source_text[0])
    assert split.target[0].tolist() == tokenizer.target.encode(split.target_text[0])
    assert tokenizer.rules.text(split.source_text[0]) == "a&quot;b c"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"train": (SOURCE, TARGET[:-1])}, UserError, r"train\.source.* has 20 lines and .*train\.target.* has 19"),
        ({"valid": (SOURCE[:3], TARGET[:2])}, UserError, r"valid\.source.* has 3 lines and .*valid\.target.* has 2"),
        ({"train": (b"\xff\n", b"a\n")}, UserError, r"train\.source\.txt, line 1: not UTF-8"),
        # a line that is scored is never dropped
        (
            {"valid": (b"a\n\xff\n", b"a\na\n"), "on_bad_line": "drop"},
            UserError,
            r"valid\.source\.txt, line 2: not UTF-8",
        ),
        ({"valid": (["a", ""], ["a", "b"]), "on_empty": "error"}, UserError, r"valid\.source\.txt, line 2: empty"),
        (
            {"train": ([""] * 3, ["a"] * 3)},
            UserError,
            r"data\.train: no pair is left of 3 read \(dropped: 3 empty\)",
        ),
        ({"max_length": 1}, UserError, r"no pair is left of 20 read \(dropped: 20 length\).*max_length"),
        ({"train": None, "valid": None}, UserError, r"data\.train\.source: expected at least one file"),
    ],
)
def test_text_that_cannot_be_used(raw, tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        prepare(raw(**change), tmp_path / "out", QUIET)
    # nothing is left, not even what was written so far
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {LOCK}


def test_missing_file(raw, tmp_path):
    settings = raw()
    (tmp_path / "valid.target.txt").unlink()
    with pytest.raises(UserError, match=r"valid\.target\.txt: cannot be read"):
        prepare(settings, tmp_path / "out", QUIET)


def test_a_failed_run_leaves_the_older_corpus(raw, tmp_path):
    prepare(raw(test=(SOURCE[:1], TARGET[:1])), tmp_path / "out", QUIET)
    with pytest.raises(UserError):
        prepare(raw(max_length=1), tmp_path / "out", QUIET)
    assert PreparedCorpus.open(tmp_path / "out").splits == ["train", "valid", "test"]
    # and a good one takes its place, files that it does not have included
    prepare(raw(), tmp_path / "out", QUIET)
    assert PreparedCorpus.open(tmp_path / "out").splits == ["train", "valid"]
    assert not list((tmp_path / "out").glob("test.*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("older", [False, True])
def test_killed_at_any_step_leaves_nothing_half_done(raw, tmp_path, older, monkeypatch):
    out = tmp_path / "out"
    old = raw(train=(SOURCE[:8], TARGET[:8]), tokenizer="word", minimum_frequency=1)
    if older:
        prepare(old, out, QUIET)
    new = raw(tokenizer="word", minimum_frequency=1)
    outcomes = set()
    for step in range(100):
        process = os.fork()
        if process == 0:
            _die_at(step, monkeypatch)
            prepare(new, out, QUIET)
            os._exit(0)
        finished = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        try:
            sentences = len(PreparedCorpus.open(out).split("train"))
            assert sentences == 20 or (older and sentences == 8)
            outcomes.add(sentences)
        except CorpusError as error:
            outcomes.add(str(error).partition("(")[2].partition(")")[0])
        if finished:
            break
        if older:
            prepare(old, out, QUIET)
    assert finished
    assert step > 8
    assert outcomes == ({8} if older else set()) | {20, "corpus.json is missing"}
    prepare(new, out, QUIET)
    assert not list(out.glob(f"{PARTIAL}*"))


def _die_at(step, monkeypatch):
    """End the process, without any clean-up, before its step-th change of a file's name."""
    left = [step]

    def deadly(function):
        def wrapper(*arguments, **options):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return function(*arguments, **options)

        return wrapper

    for name in ("replace", "unlink", "fsync"):
        monkeypatch.setattr(os, name, deadly(getattr(os, name)))


def test_two_do_not_prepare_one_folder(raw, tmp_path):
    out = tmp_path / "out"
    with locked(out, UserError("busy")), pytest.raises(UserError, match="another process is preparing"):
        prepare(raw(), out, QUIET)
    prepare(raw(), out, QUIET)
    assert len(PreparedCorpus.open(out).split("train")) == 20


@pytest.mark.parametrize(
    "manifest",
    ["[]", "{", '{"format": "gma-corpus", "version": 1}', '{"format": "gma-corpus", "version": 1, "files": []}'],
)
def test_a_damaged_manifest_is_named_and_prepared_anew(raw, tmp_path, manifest):
    out = tmp_path / "out"
    prepare(raw(), out, QUIET)
    (out / "corpus.json").write_text(manifest)
    with pytest.raises(CorpusError, match="run `gma prepare` again"):
        PreparedCorpus.open(out)
    prepare(raw(), out, QUIET)
    assert len(PreparedCorpus.open(out).split("train")) == 20


def test_generated_corpus(tmp_path):
    settings = DataSettings(generated=50, tokenizer="word", minimum_frequency=1)
    prepare(settings, tmp_path / "out", QUIET)
    corpus = PreparedCorpus.open(tmp_path / "out")
    splits = generated.splits(50)
    assert len(corpus.split("train")) == 50
    for name in ("valid", "test"):
        assert corpus.split(name).source_text == [pair.source for pair in splits[name]]
        lines = (tmp_path / "out" / f"{name}.align").read_text("utf-8").splitlines()
        links = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines]
        assert links == [pair.alignment for pair in splits[name]]
    assert not (tmp_path / "out" / "generated").exists()


def test_quiet_unless_on_a_terminal(raw, tmp_path):
    output = io.StringIO()
    prepare(raw(), tmp_path / "out", Console(file=output))
    assert output.getvalue() == ""


def test_command(raw, tmp_path):
    raw(lowercase=True)
    (tmp_path / "own.toml").write_text(
        f"""[data]
root = {json.dumps(str(tmp_path))}
train = {{source = ["train.source.txt"], target = ["train.target.txt"]}}
valid = {{source = ["valid.source.txt"], target = ["valid.target.txt"]}}
vocabulary_size = 120
"""
    )
    arguments = ["prepare", str(tmp_path / "own.toml"), "data.lowercase=true", "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "pairs kept" in result.output
    assert PreparedCorpus.open(tmp_path / "out").tokenizer.rules.lowercase


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Of the lines themselves nothing is kept: ten times the text, of the same words, takes no more memory."""
    import tracemalloc

    peaks = []
    for repeats in (1, 5):
        generator = random.Random(0)
        lines = [" ".join(f"w{generator.randrange(300)}" for _ in range(20)) for _ in range(1500)] * repeats
        for side in ("de", "en"):
            (tmp_path / f"train.{side}").write_text("".join(line + "\n" for line in lines), "utf-8")
        del lines
        files = {"source": ["train.de"], "target": ["train.en"]}
        settings = DataSettings(root=str(tmp_path), train=files, valid=files, tokenizer="word", minimum_frequency=1)
        tracemalloc.start()
        prepare(settings, tmp_path / "out", QUIET)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 2e5
