"""Evaluation of models and logs: scores against their definitions, defaults, comparisons, and every wrong call."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gma.corpus import generated
from gma.decoding.translate import translate
from gma.errors import UserError
from gma.evaluation import forced
from gma.evaluation.evaluate import compare_logs, evaluate, evaluate_alignment, evaluate_log
from gma.evaluation.inputs import load_gold
from gma.evaluation.instances import Instance, write_instances
from gma.evaluation.text import EvaluationText, load_text
from gma.metrics import GoldLinks, latency
from gma.model import directory
from gma.policies import LatencyError
from gma.text.rules import TextRules
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import BpeVocabulary
from tests.support import tiny_model, tiny_run
from tests.support.small_models import small_loaded, small_model

PAIRS = generated.generate(30, seed=5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return tiny_run.make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def model(tmp_path_factory, corpus) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"), corpus)


@pytest.fixture(scope="module")
def loaded(model):
    return directory.load(model)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path, Path]:
    return generated.write(tmp_path_factory.mktemp("text"), PAIRS, "test")


@pytest.fixture(scope="module")
def text(loaded, files) -> EvaluationText:
    return load_text(loaded, *files[:2])


@pytest.fixture(scope="module")
def result(loaded, text, files):
    return evaluate(loaded, text, system="tiny", delta=1.0, gold=load_gold(files[2]), words_per_second=2.0)


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def test_both_conventions_are_those_of_the_translations(loaded, text, result):
    translations = translate(loaded, text.sources, delta=1.0)
    paper = [latency(one.needed, one.source_tokens, len(one.needed)) for one in translations]
    word = [
        latency(one.delays, len(source.split()), len(reference.split()))
        for one, source, reference in zip(translations, text.sources, text.references)
    ]
    for name in ("al", "laal", "ap", "dal", "cw"):
        assert getattr(result.paper, name) == pytest.approx(mean(getattr(one, name) for one in paper))
        assert getattr(result.scores.latency, name) == pytest.approx(mean(getattr(one, name) for one in word))
    assert result.paper.convention == "paper"
    past = [p > one.source_tokens for one in translations for step in one.positions for p in step]
    assert result.past_the_end == pytest.approx(mean(past))
    assert result.cut_off == sum(not one.complete for one in translations)


def test_computing_time_only_adds(result):
    assert result.scores.computation_aware.al > result.scores.latency.al
    for instance in result.instances:
        assert instance.timed


def test_the_log_has_the_same_scores(result, tmp_path):
    path = tmp_path / "instances.log"
    write_instances(path, result.instances)
    assert evaluate_log(path).scores == result.scores


def test_scores_are_json(result):
    scores = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert scores["bleu"]["signature"].startswith("nrefs:1")
    assert scores["latency"]["word"]["convention"] == "word"
    assert scores["latency"]["paper"]["label"].startswith("paper convention")
    assert scores["latency"]["computation_aware"]["cw"] is None
    assert scores["delta"] == 1.0
    assert len(scores["alignment"]["by_position"]) == len(scores["alignment"]["by_posterior"]) == 2
    forever = replace(result, delta=float("inf"))
    assert json.loads(json.dumps(forever.to_dict(), allow_nan=False))["delta"] == "inf"


@pytest.mark.parametrize(("how", "layer"), [("position", 0), ("position", 1), ("posterior", 0), ("posterior", 1)])
def test_links_that_are_the_models_own_have_no_error(loaded, text, how, layer):
    pairs = forced.read(loaded, text.sources, text.targets)
    own = [getattr(pair, f"links_by_{how}")(layer) for pair in pairs]
    scores = evaluate_alignment(loaded, text, [GoldLinks(links, links) for links in own])
    assert getattr(scores, f"by_{how}")[layer].error_rate == 0
    assert scores.best[2].error_rate == 0
    assert scores.sentences == len(PAIRS)


def test_the_diagonal_and_coverage(loaded, text, files, result):
    guess = [forced.diagonal(len(p.source.split()), len(p.target.split())) for p in PAIRS]
    scores = evaluate_alignment(loaded, text, [GoldLinks(links, links) for links in guess])
    assert scores.diagonal.error_rate == 0
    aligned = {(place, target) for place, pair in enumerate(PAIRS) for _, target in pair.alignment}
    assert result.alignment.coverage.aligned == len(aligned)
    everything = evaluate_alignment(loaded, text, load_gold(files[2]), delta=float("inf"))
    assert everything.coverage.share == 1
    # an earlier word has heard less
    shares = [
        evaluate_alignment(loaded, text, load_gold(files[2]), delta=delta).coverage.share
        for delta in (-2.0, 0.0, 2.0, 5.0)
    ]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_an_offline_model_has_no_positions(tmp_path, corpus, text, files):
    offline = directory.load(tiny_model.make(tmp_path, corpus, offline=True))
    result = evaluate(offline, text, system="offline", gold=load_gold(files[2]))
    assert result.delta is result.past_the_end is None
    assert result.alignment.by_position == ()
    assert result.alignment.best[0] == "posterior"
    assert result.scores.latency.cw == pytest.approx(mean(len(pair.source.split()) for pair in PAIRS))
    with pytest.raises(LatencyError, match="policy 'offline' has none"):
        evaluate(offline, text, system="offline", delta=1.0)


def test_the_test_split_is_the_default(loaded):
    text = load_text(loaded)
    assert text.sources == tuple(pair.source for pair in generated.splits(0)["test"])
    assert text.name.startswith("test split")


def test_no_corpus_and_no_files(loaded, tmp_path):
    data = loaded.config.data.model_copy(update={"folder": str(tmp_path / "gone")})
    lost = loaded._replace(config=loaded.config.model_copy(update={"data": data}))
    with pytest.raises(UserError, match="give the two files"):
        load_text(lost)


def test_pairs_without_a_source_are_left_out_and_keep_their_place(loaded, tmp_path):
    source, reference = tmp_path / "s", tmp_path / "r"
    source.write_text(f"{PAIRS[0].source}\n \n{PAIRS[1].source.replace(' ', '  ')}\n", encoding="utf-8")
    reference.write_text(f"{PAIRS[0].target}\nsomething\n\n", encoding="utf-8")
    text = load_text(loaded, source, reference)
    assert text.sources == (PAIRS[0].source, PAIRS[1].source)
    assert (text.indices, text.lines) == ((0, 2), 3)
    gold = [GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0)}))] * 2 + [GoldLinks(frozenset(), frozenset())]
    result = evaluate(loaded, text, system="tiny", gold=gold)
    assert [instance.index for instance in result.instances] == [0, 2]
    assert result.left_out == 1
    assert result.alignment.sentences == 1


def test_the_rules_of_the_tokenizer_hold_for_references(tmp_path, files):
    corpus = tiny_run.make_corpus(tmp_path / "corpus", "data.lowercase=true")
    loaded = directory.load(tiny_model.make(tmp_path / "model", corpus, "data.lowercase=true"))
    text = load_text(loaded, *files[:2])
    assert text.sources == tuple(pair.source for pair in PAIRS)
    assert text.references == tuple(pair.target.lower() for pair in PAIRS)
    assert "lower-cased" in text.name


def test_the_rules_of_the_tokenizer_are_applied_once(tmp_path):
    rules = TextRules(lowercase=True, unescape=True)
    source, target = (
        BpeVocabulary([letter + end for letter in letters for end in ("", "</w>")], [], rules)
        for letters in ("derhun&;lt<amp1234", "derhun&;lt<amp123456789")
    )
    loaded = small_loaded(small_model(0))._replace(tokenizer=Tokenizer(source, target))
    for name in ("source", "target"):
        (tmp_path / name).write_text("Der &amp;lt;  Hund\n", encoding="utf-8")
    text = load_text(loaded, tmp_path / "source", tmp_path / "target")
    assert (text.sources, text.references) == (("Der &amp;lt; Hund",), ("der &lt; hund",))
    (pair,) = forced.read(loaded, text.sources, text.targets)
    assert pair.source_pieces == pair.target_pieces == (3, 4, 4)
    instance = evaluate(loaded, text, system="tiny").instances[0]
    assert (instance.source, instance.reference) == ("Der &amp;lt; Hund", "der &lt; hund")


def instances(words: str = "a b c d", delays=(1, 2, 3, 4), indices=range(20), reference="a b c e") -> list[Instance]:
    return [Instance(index, words, tuple(delays), reference, 4) for index in indices]


def test_comparing_a_system_with_itself_and_with_a_better_one():
    same = compare_logs(instances(), instances()[::-1])
    assert same["bleu"].difference == same["al"].difference == 0
    assert same["bleu"].p_value == same["al"].p_value == 1
    better = compare_logs(instances(), instances("a b c e", (1, 1, 2, 3)))
    assert better["bleu"].low > 0
    assert better["al"].high < 0


@pytest.mark.parametrize(
    ("other", "message"),
    [(instances(indices=range(19)), "only the system has index 19"), (instances(reference="x"), "index 0 has the ref")],
)
def test_logs_of_other_sentences_are_not_compared(other, message):
    with pytest.raises(UserError, match=message):
        compare_logs(other, instances())


def test_the_command(monkeypatch, capsys, model, files, tmp_path):
    options = ["--source", files[0], "--reference", files[1], "--alignments", files[2]]
    assert tiny_model.command(monkeypatch, "evaluate", model, *options, "--delta", "1", "--output", tmp_path / "a") == 0
    printed = capsys.readouterr().out
    for part in (
        "δ = 1",
        "word convention",
        "paper convention",
        "nrefs:1",
        "diagonal",
        "AER",
        "p > |x|",
        "within g(i)",
    ):
        assert part in printed
    log = tmp_path / "a" / "instances.log"
    assert tiny_model.command(monkeypatch, "evaluate", "--instances", log, "--compare", log) == 0
    assert "paired bootstrap" in capsys.readouterr().out
    assert json.loads((tmp_path / "a" / "scores.json").read_text())["sentences"] == len(PAIRS)


WRONG = {
    "nothing to evaluate": ([], "got neither"),
    "a model and a log": (["{model}", "--instances", "{log}"], "got both"),
    "no model there": (["{tmp}"], "config.toml is missing"),
    "no such log": (["--instances", "{tmp}/none"], "cannot be read"),
    "no log at all": (["--instances", "{source}"], "not JSON"),
    "no such log to compare with": (["{model}", "--compare", "{tmp}/none"], "cannot be read"),
    "options of a model": (["--instances", "{log}", "--delta", "1"], "--delta needs a model"),
    "one file only": (["{model}", "--source", "{source}"], "without --reference"),
    "no such source": (["{model}", "--source", "{tmp}/none", "--reference", "{reference}"], "cannot be read"),
    "different line counts": (["{model}", "--source", "{source}", "--reference", "{short}"], "has 30 lines and"),
    "no words": (["{model}", "--source", "{empty}", "--reference", "{empty}"], "no sentence with words"),
    "no δ": (["{model}", "{files}", "--delta", "nan"], "nan; expected a number"),
    "no rate": (["{model}", "{files}", "--words-per-second", "0"], "words_per_second"),
    "no finite rate": (["{model}", "{files}", "--words-per-second", "inf"], "words_per_second"),
    "no such links": (["{model}", "{files}", "--alignments", "{tmp}/none"], "cannot be read"),
    "no links": (["{model}", "{files}", "--alignments", "{source}"], "is not a link"),
    "links counted from 0": (["{model}", "{files}", "--alignments", "{links}", "--one-based"], "counts from 0"),
    "links of no sentence": (["{model}", "{files}", "--alignments", "{no_links}"], "no link in any sentence"),
    "fewer links": (["{model}", "{files}", "--alignments", "{short_links}"], "has 30"),
    "links of another text": (["{model}", "{files}", "--alignments", "{far_links}"], "does the file belong to this"),
    "another text's log": (["{model}", "{files}", "--compare", "{log}"], "same sentences"),
    "no such device": (["{model}", "{files}", "--device", "abacus"], "expected auto, cpu, cuda"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls(monkeypatch, capsys, tmp_path, model, files, arguments, message):
    names = {"tmp": tmp_path, "model": model, "source": files[0], "reference": files[1], "links": files[2]}
    contents = {
        "short": "one\n",
        "empty": "\n\n",
        "short_links": "0-0\n",
        "no_links": "\n" * len(PAIRS),
        "far_links": "90-0\n" + "0-0\n" * (len(PAIRS) - 1),
    }
    for name, content in contents.items():
        names[name] = tmp_path / name
        names[name].write_text(content)
    names["log"] = tmp_path / "log"
    write_instances(names["log"], instances())
    filled = [part for argument in arguments for part in ([argument] if argument != "{files}" else FILES)]
    assert tiny_model.command(monkeypatch, "evaluate", *(part.format(**names) for part in filled)) == 2
    assert message in capsys.readouterr().err


FILES = ["--source", "{source}", "--reference", "{reference}"]
