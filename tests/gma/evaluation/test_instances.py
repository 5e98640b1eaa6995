"""Instance logs: round trips, damaged files, scores without a model."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.errors import UserError
from gma.evaluation.instances import Instance, read_instances, score_instances, write_instances
from gma.metrics import bleu, chrf, corpus_latency


def instance(index=0, prediction="a b c", delays=(1, 2, 3), reference="a b d", source_length=3, **others) -> Instance:
    return Instance(index, prediction, delays, reference, source_length, **others)


RECORD = {
    "index": 0,
    "prediction": "a b",
    "delays": [1, 2],
    "elapsed": [0, 0],
    "prediction_length": 2,
    "reference": "a b",
    "source": "x y",
    "source_length": 2,
}
SECOND = {**RECORD, "index": 1}


def log(tmp_path, *records):
    path = tmp_path / "instances.log"
    path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
    return path


@st.composite
def instances(draw, index):
    text = st.text(st.characters(codec="utf-8"), max_size=20)
    prediction = draw(text)
    length = draw(st.integers(1, 30))
    words = len(prediction.split())
    delays = tuple(sorted(draw(st.lists(st.integers(0, length), min_size=words, max_size=words))))
    elapsed = draw(st.sampled_from([(), (0,) * words, tuple(delay + 0.25 for delay in delays)]))
    return Instance(index, prediction, delays, draw(text), length, elapsed, draw(text))


class TestFile:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 5).flatmap(lambda count: st.tuples(*(instances(index) for index in range(count)))))
    def test_round_trip(self, tmp_path_factory, written):
        path = tmp_path_factory.mktemp("log") / "deeper" / "instances.log"
        write_instances(path, written)
        assert read_instances(path) == list(written)

    def test_a_line_is_laid_out_as_simuleval_does(self, tmp_path):
        path = tmp_path / "instances.log"
        write_instances(path, [instance(elapsed=(0, 0, 0), source="x y  z", reference="ä \tb")])
        record = json.loads(path.read_text(encoding="ascii"))
        assert list(record) == list(RECORD)
        assert (record["source"], record["reference"], record["prediction_length"]) == ("x y z", "ä b", 3)

    def test_a_failed_write_leaves_the_old_file(self, tmp_path):
        path = tmp_path / "instances.log"
        write_instances(path, [instance()])

        def fails():
            yield instance(1)
            raise RuntimeError("the model broke")

        with pytest.raises(RuntimeError, match="the model broke"):
            write_instances(path, fails())
        assert [item.index for item in read_instances(path)] == [0]
        assert list(tmp_path.iterdir()) == [path]

    def test_unknown_keys_and_blank_lines_are_left_alone(self, tmp_path):
        path = log(tmp_path, {**RECORD, "metric": {"AL": 1}}, "", {**RECORD, "index": 7})
        assert [item.index for item in read_instances(path)] == [0, 7]

    def test_a_speech_log(self, tmp_path):
        """Milliseconds, no elapsed times, and a description of the audio in place of the source."""
        record = {**RECORD, "delays": [320.5, 640.0], "source_length": 640.0, "source": ["file.wav", "samplerate: 16"]}
        del record["elapsed"]
        (read,) = read_instances(log(tmp_path, record))
        assert (read.delays, read.elapsed, read.source) == ((320.5, 640.0), (), "file.wav samplerate: 16")

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"index": 1, "prediction": "a', "not JSON.*cut off"),
            ("[" * 100_000, "not JSON"),
            ('{"index": ' + "1" * 5000 + "}", "not JSON"),
            ("[1, 2]", "expected a JSON object, got list"),
            ({"index": 1, "prediction": "a"}, "missing delays, reference, source_length: expected the keys index,"),
            ({**SECOND, "index": "1"}, "index must be a whole number, got '1'"),
            (RECORD, "index 0 occurred in line 1 already"),
            ({**SECOND, "prediction": None}, "prediction must be a string, got NoneType"),
            ({**SECOND, "reference": ["a"]}, "reference must be a string, got list"),
            ({**SECOND, "delays": 3}, "delays must be a list of numbers, got int"),
            ({**SECOND, "delays": [1]}, "prediction has 2 words but delays has 1 entries"),
            ({**SECOND, "delays": [1, 2, 2]}, "prediction has 2 words but delays has 3 entries"),
            ({**SECOND, "delays": [1, "2"]}, "delays must be finite numbers of at least 0, got '2' for word 2"),
            ({**SECOND, "delays": [True, 2]}, ".*got True for word 1"),
            ({**SECOND, "delays": [-1, 2]}, ".*got -1 for word 1"),
            ({**SECOND, "delays": [1, float("nan")]}, ".*got nan for word 2"),
            ({**SECOND, "delays": [1, 10**400]}, ".*got 1000.* for word 2"),
            ({**SECOND, "delays": [2, 1]}, "delays must not decrease, got 1 after 2 for word 2"),
            ({**SECOND, "delays": [1, 3]}, "a delay of 3 lies beyond source_length 2"),
            ({**SECOND, "elapsed": [1]}, "prediction has 2 words but elapsed has 1 entries"),
            ({**SECOND, "elapsed": [2, 1]}, "elapsed must not decrease"),
            ({**SECOND, "source_length": 0}, "source_length must be a positive number, got 0"),
            ({**SECOND, "source_length": None}, "source_length must be a positive number, got None"),
        ],
    )
    def test_damaged_lines_are_named_with_file_and_line(self, tmp_path, line, message):
        with pytest.raises(UserError, match=rf"instances\.log, line 2: {message}"):
            read_instances(log(tmp_path, RECORD, line))

    def test_text_that_is_not_utf8(self, tmp_path):
        path = tmp_path / "instances.log"
        path.write_bytes(json.dumps(RECORD).encode() + b'\n{"index": "\xff"}\n')
        with pytest.raises(UserError, match="line 2: not UTF-8 text"):
            read_instances(path)

    def test_an_empty_file(self, tmp_path):
        with pytest.raises(UserError, match="holds no instances"):
            read_instances(log(tmp_path))

    def test_no_file(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read_instances(tmp_path / "instances.log")


class TestScores:
    LOG = (
        instance(0, "the cat sat", (1, 2, 4), "The cat sat down", 4),
        instance(1, "", (), "nothing was said", 5),
        instance(2, "a dog ran off", (2, 2, 3, 3), "a dog ran", 3),
    )

    def test_from_the_parts(self):
        scores = score_instances(self.LOG)
        predictions, references = [item.prediction for item in self.LOG], [item.reference for item in self.LOG]
        assert scores.bleu == bleu(predictions, references)
        assert scores.chrf == chrf(predictions, references)
        delays = [item.delays for item in self.LOG]
        assert scores.latency == corpus_latency(delays, [4, 5, 3], [4, 3, 3], convention="word")
        assert (scores.latency.convention, scores.latency.empty, scores.latency.sentences) == ("word", 1, 3)
        assert scores.computation_aware is None

    def test_settings_of_the_quality_scores(self):
        scores = score_instances(self.LOG, lowercase=True, tokenize="none")
        assert scores.bleu.lowercase
        assert scores.chrf.lowercase
        assert "tok:none" in scores.bleu.signature
        assert scores.chrf.score > score_instances(self.LOG).chrf.score

    def test_nothing_but_empty_predictions(self):
        scores = score_instances([instance(0, "", (), "a b", 6), instance(1, "", (), "", 2)])
        assert scores.latency.al == scores.latency.dal == 4
        assert scores.latency.empty == 2
        assert scores.bleu.score == 0

    def test_an_empty_reference_counts_as_one_word(self):
        one, none = (score_instances([instance(reference=text)]).latency for text in ("a", ""))
        assert one == none

    def test_computing_time(self):
        delays = (1, 2, 3)
        timed = instance(delays=delays, elapsed=(1.5, 3.0, 4.5))
        scores = score_instances([timed, instance(1, "", ())])
        assert scores.computation_aware.al > scores.latency.al
        expected = corpus_latency([timed.elapsed, ()], [3, 3], [3, 3], convention="word")
        assert scores.computation_aware == expected

    @pytest.mark.parametrize("elapsed", [(), (0, 0, 0), (0.5, 1.5, 2.5)])
    def test_times_that_were_not_measured_are_not_scored(self, elapsed):
        """None at all, SimulEval's zeros, or times of another unit, below the delays they should include."""
        timed = instance(1, elapsed=(2.0, 3.0, 4.0))
        assert score_instances([timed]).computation_aware is not None
        assert score_instances([timed, instance(elapsed=elapsed)]).computation_aware is None

    def test_no_instances(self):
        with pytest.raises(UserError, match="at least one sentence"):
            score_instances([])
