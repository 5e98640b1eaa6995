"""The scores of SimulEval 1.1.4's own scorers, and the places where it behaves unlike its definitions.

Skipped unless it is installed: `pip install "gma[simuleval]"`.
"""

import json
import statistics
import subprocess
import sys

import pytest

from gma.evaluation.instances import Instance, score_instances, write_instances
from gma.metrics import latency
from tests.support.delay_sequences import RECORDED, policy_sentence, random_sentence

simuleval = pytest.importorskip("simuleval", reason='SimulEval is not installed: pip install "gma[simuleval]"')

METRICS = ("AL", "LAAL", "AP", "DAL")


def log_line(delays, source_length, reference_length, elapsed=None, reference=None) -> str:
    return json.dumps(
        {
            "index": 0,
            "prediction": " ".join(["w"] * len(delays)),
            "delays": delays,
            "elapsed": [0] * len(delays) if elapsed is None else elapsed,
            "reference": " ".join(["w"] * reference_length) if reference is None else reference,
            "source": " ".join(["w"] * int(source_length)),
            "source_length": source_length,
        }
    )


def scorer(metric: str, **settings):
    from simuleval.evaluator.scorers.latency_scorer import LATENCY_SCORERS_DICT

    return LATENCY_SCORERS_DICT[metric](**settings)


def theirs(*lines: str, **settings) -> list[float]:
    """AL, LAAL, AP and DAL of a log, as SimulEval scores it."""
    from simuleval.evaluator.instance import LogInstance

    instances = dict(enumerate(LogInstance(line) for line in lines))
    return [scorer(metric, **settings)(instances) for metric in METRICS]


def ours(*sentence) -> list[float]:
    return list(latency(*sentence)[:4])


@pytest.mark.parametrize("make", [random_sentence, policy_sentence])
def test_a_thousand_delay_sequences(make):
    for seed in range(1000):
        sentence = make(seed)
        assert ours(*sentence) == pytest.approx(theirs(log_line(*sentence)), abs=1e-9, rel=0), seed


def test_fractional_times_that_pass_the_end_of_the_source():
    for seed in range(1000):
        delays, source_length, reference_length = policy_sentence(seed)
        elapsed = [delay + 0.37 * (i + 1) for i, delay in enumerate(delays)]
        expected = theirs(log_line(delays, source_length, reference_length, elapsed), computation_aware=True)
        assert ours(elapsed, source_length, reference_length) == pytest.approx(expected, abs=1e-9, rel=0), seed


def test_the_recorded_table_is_what_it_returns():
    for seed, *_, al, laal, ap, dal in RECORDED:
        assert theirs(log_line(*random_sentence(seed))) == [al, laal, ap, dal]


def test_corpus_scores_from_our_log(tmp_path):
    """`simuleval --score-only` on a log of ours prints our scores, rounded to three places."""
    generated = [policy_sentence(seed) for seed in range(50)]
    instances = [
        Instance(
            index=index,
            prediction=" ".join(f"w{(index + i) % 7}" for i in range(len(delays))),
            delays=tuple(delays),
            elapsed=(0,) * len(delays),
            reference=" ".join(f"w{(index + i) % 7}" for i in range(reference_length)),
            source=" ".join(["s"] * source_length),
            source_length=source_length,
        )
        for index, (delays, source_length, reference_length) in enumerate(generated)
    ]
    write_instances(tmp_path / "instances.log", instances)
    (tmp_path / "config.yaml").write_text("source_type: text\ntarget_type: text\n")
    command = [sys.executable, "-m", "simuleval.cli", "--score-only", "--output", tmp_path]
    command += ["--latency-metrics", *METRICS, "--quality-metrics", "BLEU"]
    done = subprocess.run([str(part) for part in command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # a data frame of one row: names, then the row's number and its values
    names, (_, *values) = (line.split() for line in done.stdout.splitlines()[-2:])
    printed = dict(zip(names, map(float, values)))
    scores = score_instances(instances)
    assert printed == pytest.approx(
        {"BLEU": scores.bleu.score, **{name: getattr(scores.latency, name.lower()) for name in METRICS}}, abs=6e-4
    )


class TestQuirks:
    """Where SimulEval departs from the formulas or from common sense, and what we do there."""

    def test_average_lagging_stops_at_the_first_unit_with_all_the_source(self):
        """The tail written after the whole source was read does not count, in ours as well."""
        short, long = ([2, 4], 4, 4), ([2, 4, 4, 4, 4], 4, 4)
        assert theirs(log_line(*short))[0] == theirs(log_line(*long))[0] == ours(*long)[0]

    def test_average_proportion_is_not_capped(self):
        sentence = ([4] * 8, 4, 4)
        assert theirs(log_line(*sentence))[2] == ours(*sentence)[2] == 2

    def test_average_lagging_can_be_negative(self):
        sentence = ([1] * 12, 6, 6)
        assert theirs(log_line(*sentence))[0] == ours(*sentence)[0] == -4.5

    def test_differentiable_average_lagging_ignores_the_reference(self):
        assert len({theirs(log_line([1, 2, 3], 5, r))[3] for r in (1, 3, 9)}) == 1
        assert len({ours([1, 2, 3], 5, r)[3] for r in (1, 3, 9)}) == 1

    def test_empty_hypotheses_are_skipped(self):
        """A system that says nothing for its hard sentences looks faster; ours counts them as offline."""
        full, empty = ([1, 2], 2, 2), ([], 9, 3)
        assert theirs(log_line(*full), log_line(*empty)) == theirs(log_line(*full))
        assert ours(*empty) == [9, 9, 1, 9]

    def test_nothing_but_empty_hypotheses_crashes(self):
        with pytest.raises(statistics.StatisticsError):
            theirs(log_line([], 9, 3))

    @pytest.mark.parametrize(("reference", "counted"), [("a b", 2), ("a  b", 3), ("a b ", 3), ("a\tb", 1), ("", 1)])
    def test_the_reference_is_split_at_single_blanks(self, reference, counted):
        """So a second or a trailing blank adds a word; our instances normalise white space, and agree for "" alone."""
        assert theirs(log_line([1, 2], 3, 0, reference=reference)) == theirs(log_line([1, 2], 3, counted))
        ours = Instance(0, "x y", (1, 2), reference, 3)
        expected = latency([1, 2], 3, max(1, len(reference.split())))
        assert score_instances([ours]).latency[:5] == expected

    def test_decreasing_delays_are_taken(self):
        """They cannot come from a stream; ours refuses them."""
        assert theirs(log_line([3, 1, 2], 3, 3))[0] == 3
        with pytest.raises(ValueError, match="must not decrease"):
            latency([3, 1, 2], 3, 3)

    def test_delays_beyond_the_source_are_taken(self):
        """Usually a mix-up of units; ours takes them for times, not for the delays of a log."""
        sentence = ([5, 6], 3, 3)
        assert theirs(log_line(*sentence)) == pytest.approx(ours(*sentence))
        with pytest.raises(ValueError, match="beyond source_length"):
            Instance(0, "x y", (5, 6), "a b c", 3)

    def test_unmeasured_times_are_scored_as_zero(self):
        """Text agents log zeros, and the computation-aware AL of that is below every possible AL; ours is None."""
        assert theirs(log_line([1, 2, 3], 3, 3, elapsed=[0, 0, 0]), computation_aware=True)[0] == -1
        instance = Instance(0, "x y z", (1, 2, 3), "a b c", 3, elapsed=(0, 0, 0))
        assert score_instances([instance]).computation_aware is None

    def test_asking_for_computation_aware_latency_replaces_the_plain_one(self):
        """With --computation-aware the column AL is computed from elapsed times too, as AL_CA is; ours keeps both."""
        from argparse import Namespace

        from simuleval.evaluator.scorers.latency_scorer import ALScorer

        plain = ALScorer.from_args(Namespace(computation_aware=True, no_use_ref_len=False))
        assert plain.timestamp_type == "elapsed"
        instance = Instance(0, "x y", (1, 2), "a b", 2, elapsed=(3, 5))
        scores = score_instances([instance])
        assert scores.latency.al == latency([1, 2], 2, 2).al
        assert scores.computation_aware.al == latency([3, 5], 2, 2).al
