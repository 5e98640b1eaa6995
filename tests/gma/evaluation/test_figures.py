"""Figures that can be read: size, letters, nothing cut off; and that they show what they are given."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from gma.cli import plot
from gma.corpus import generated
from gma.errors import UserError
from gma.evaluation import figures, sweep
from gma.evaluation.figures import CurvePoint
from gma.training import history
from tests.support import tiny_model, tiny_run
from tests.support.points import made_up_point

SMALLEST = 7.0
PAIRS = generated.generate(8, seed=6)


def sentence(rows: int = 12, columns: int = 14, **options) -> Figure:
    generator = np.random.default_rng(0)
    weights = generator.dirichlet(np.ones(columns), rows)
    center = 1 + np.cumsum(generator.exponential(1.2, rows))
    heard = np.minimum(np.floor(center + 1), columns)
    words = [pair.source for pair in PAIRS]
    source, target = (" ".join(words).split()[:count] for count in (columns, rows))
    return figures.sentence(weights, source, target, heard, center=center, width=center / 2, **options)


def curve(systems: int = 2) -> Figure:
    points = {
        f"system-{number}": [CurvePoint(1.0 + number, 20.0 + number, "0.5"), CurvePoint(5.0, 30.0 - number, "∞")]
        for number in range(systems)
    }
    return figures.quality_latency({**points, "whole sentence": [CurvePoint(9.0, 31.0)]})


def learning(updates=(1, 50, 100)) -> Figure:
    training = [{"kind": "training", "update": update, "loss": 5.0 / update} for update in updates]
    valid = [{"kind": "validation", "update": u, "loss": 6.0 / u, "bleu": 0.2 * u, "al": 3.0} for u in updates]
    return figures.learning([*training, *valid])


def steps(layers: int = 6) -> Figure:
    return figures.steps([np.random.default_rng(layer).exponential(1 + layer / 9, 500) for layer in range(layers)])


FIGURES = {
    "sentence": lambda: sentence(gold=[(0, 0), (3, 5)], title="δ = 1, decoder layer 2 of 2"),
    "short sentence": lambda: sentence(2, 2),
    "curve": curve,
    "curve of six": lambda: curve(6),
    "learning": learning,
    "steps": steps,
}


def drawn(figure: Figure) -> Figure:
    with matplotlib.rc_context(figures.STYLE):
        figure.draw_without_rendering()
        FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_readable_at_column_width(make, tmp_path):
    figure = make()
    assert figure.get_figwidth() == pytest.approx(figures.COLUMN)
    image = matplotlib.image.imread(figures.save(figure, tmp_path / "figure")[0])[..., :3]
    assert image.shape[1] == round(figures.COLUMN * figures.STYLE["savefig.dpi"])
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert texts
    for text in texts:
        assert text.get_fontsize() >= SMALLEST, text.get_text()
    # what is cut off touches the edge
    for edge in (image[0], image[-1], image[:, 0], image[:, -1]):
        assert (edge == 1).all()


def test_a_long_sentence_grows_wider_and_its_words_do_not_overlap():
    figure = drawn(sentence(40, 45))
    assert figures.COLUMN < figure.get_figwidth() <= figures.PAGE
    renderer = FigureCanvasAgg(figure).get_renderer()
    ax = figure.axes[0]
    boxes = [label.get_window_extent(renderer) for label in ax.get_xticklabels()]
    assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))
    boxes = [label.get_window_extent(renderer) for label in ax.get_yticklabels()]
    assert all(below.y1 <= above.y0 + 1 for above, below in pairwise(boxes))


def test_the_path_reads_before_it_writes():
    heard = np.array([2, 2, 5, 6])
    figure = figures.sentence(np.full((4, 6), 1 / 6), list("abcdef"), list("wxyz"), heard)
    path = max(figure.axes[0].lines, key=lambda line: len(line.get_xdata()))
    across, down = np.array(path.get_xdata()), np.array(path.get_ydata())
    assert (across[0], down[0], across[-1], down[-1]) == (0.5, 0.5, 6.5, 4.5)
    moves = [(right > left, lower > upper) for left, right, upper, lower in zip(across, across[1:], down, down[1:])]
    assert (True, True) not in moves
    # each row is left at g(i)
    assert [across[down == row + 1.5].min() - 0.5 for row in range(4)] == heard.tolist()


def test_gold_links_are_at_their_words():
    figure = sentence(gold=[(3, 5)])
    marks = next(line for line in figure.axes[0].lines if line.get_label() == "gold link")
    assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([4], [6])


def test_a_policy_without_positions_has_no_marks():
    weights = np.full((2, 3), 1 / 3)
    figure = figures.sentence(weights, list("abc"), list("xy"), np.array([3, 3]))
    assert not figure.axes[0].containers


@pytest.mark.parametrize(("convention", "unit"), [("word", "words"), ("paper", "model tokens")])
def test_the_axes_say_which_convention(convention, unit):
    label = figures.quality_latency({"a": [CurvePoint(1.0, 2.0)]}, convention).axes[0].get_xlabel()
    assert convention in label
    assert unit in label


def test_the_histogram_counts_every_step_once():
    sizes = [np.array([0.5] * 60 + [1.5] * 40)]
    patch = figures.steps(sizes).axes[0].patches[0]
    assert sum(patch.get_data().values) == pytest.approx(1)


def test_learning_without_translations_has_one_panel():
    assert len(figures.learning([{"kind": "validation", "update": 1, "loss": 2.0}]).axes) == 1
    assert len(learning().axes) == 3


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("figure", ["figure.png", "figure.pdf"]),
        ("figure.svg", ["figure.png", "figure.svg"]),
        ("delta-0.5", ["delta-0.5.png", "delta-0.5.pdf"]),
        ("figure.png", ["figure.png", "figure.pdf"]),
    ],
)
def test_saving(tmp_path, name, names):
    paths = figures.save(curve(), tmp_path / "new" / name)
    assert [path.name for path in paths] == names
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for path in paths:
        assert path.read_bytes().startswith(starts[path.suffix])


def test_the_same_figure_is_the_same_file(tmp_path):
    one, other = (figures.save(curve(), tmp_path / name) for name in ("one", "other"))
    for left, right in zip(one, other):
        assert left.read_bytes() == right.read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model of pieces, an offline one, a text, and the history of a run."""
    folder = tmp_path_factory.mktemp("plot")
    corpus = tiny_run.make_corpus(folder / "corpus", *tiny_model.BPE)
    tiny_model.make(folder / "model", corpus, *tiny_model.BPE)
    tiny_model.make(folder / "offline", corpus, *tiny_model.BPE, offline=True)
    generated.write(folder, PAIRS, "text")
    (folder / "run").mkdir()
    records = [{"kind": "training", "update": update, "loss": 1 / update} for update in (1, 2, 3)]
    (folder / "run" / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert history.read(folder / "run" / "history.jsonl") == records
    return folder


FILES = ["--source-file", "{folder}/text.de", "--reference-file", "{folder}/text.en"]
COMMANDS = {
    "a line": ["attention", "{folder}/model", *FILES, "--line", "3", "--alignments", "{folder}/text.align"],
    "a given sentence": ["attention", "{folder}/model", "--source", PAIRS[0].source, "--target", PAIRS[0].target],
    "an offline model": ["attention", "{folder}/offline", *FILES, "--layer", "1"],
    "steps": ["steps", "{folder}/model", "--source", "{folder}/text.de", "--reference", "{folder}/text.en"],
    "learning": ["learning", "{folder}/run"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_commands(monkeypatch, tmp_path, folder, arguments):
    filled = [argument.format(folder=folder) for argument in arguments]
    assert tiny_model.command(monkeypatch, "plot", *filled, "--output", tmp_path / "figure.svg") == 0
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    if arguments[0] == "attention":
        assert "&lt;/s&gt;" in svg
        # a piece inside a word
        assert "·" in svg
        assert ("gold link" in svg) == ("--alignments" in arguments)
        assert ("p ± σ" in svg) == ("{folder}/model" in arguments)


def test_labels_are_no_formulas():
    figure = figures.sentence(np.ones((1, 2)), ["$$", r"a$\x$"], ["$5$"], [2])
    figure.canvas.draw()
    (ax, *_) = figure.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["$$", r"a$\x$"]


WRONG = {
    "no such line": (["attention", "{folder}/model", *FILES, "--line", "99"], "expected 1 to 8"),
    "no such layer": (["attention", "{folder}/model", *FILES, "--layer", "3"], "expected 1 to 2"),
    "no words": (["attention", "{folder}/model", "--source", " ", "--target", "x"], "words on both sides"),
    "links of no file": (["attention", "{folder}/model", "--source", "a", "--alignments", "x"], "leave out --source"),
    "a file and a sentence": (["attention", "{folder}/model", *FILES, "--source", "a"], "leave out --source"),
    "half a text": (["attention", "{folder}/model", *FILES[:2]], "--source-file was given without --reference-file"),
    "links to another target": (
        ["attention", "{folder}/model", *FILES, "--target", "a", "--alignments", "x"],
        "links to the reference's words",
    ),
    "a book": (["attention", "{folder}/model", "--source", "a " * 201], "201 words; expected at most 200"),
    "no δ": (["attention", "{folder}/model", *FILES, "--delta", "nan"], "nan; expected a number"),
    "steps of an offline model": (["steps", "{folder}/offline"], "'gaussian' with 'incremental'"),
    "no run": (["learning", "{folder}/model"], "no records"),
    "no curve": (["curve", "{folder}/none"], "cannot be read"),
    "no convention": (["curve", "{folder}", "--convention", "mine"], "expected word or paper"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_calls(monkeypatch, capsys, folder, tmp_path, arguments, message):
    filled = [argument.format(folder=folder) for argument in arguments]
    assert tiny_model.command(monkeypatch, "plot", *filled, "--output", tmp_path / "figure") == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_curves_of_different_texts_do_not_mix(tmp_path):
    content = {"format": "gma-sweep", "version": sweep.VERSION}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        points = [asdict(made_up_point(delta=1.0, text=name))]
        (tmp_path / name / "curve.json").write_text(json.dumps({**content, "points": points}))
    with pytest.raises(UserError, match="different texts"):
        plot.curve([tmp_path / "a", tmp_path / "b"], tmp_path / "figure", convention="word")


def test_systems_of_one_name_are_all_drawn(tmp_path, monkeypatch):
    """Three sweeps in folders of one name, each of a model of one name."""
    folders = [tmp_path / run / "sweep" for run in "abc"]
    for place, folder in enumerate(folders):
        folder.mkdir(parents=True)
        point = made_up_point(system="model", bleu=float(place), delta=1.0, text="t")
        content = {"format": "gma-sweep", "version": sweep.VERSION, "points": [asdict(point)]}
        (folder / "curve.json").write_text(json.dumps(content))
    drawn = []
    monkeypatch.setattr(figures, "quality_latency", lambda curves, convention: drawn.append(curves))
    monkeypatch.setattr(figures, "save", lambda figure, path: [])
    plot.curve(folders, tmp_path / "figure", convention="word")
    assert [points[0].quality for points in drawn[0].values()] == [0, 1, 2]
    assert list(drawn[0])[:2] == ["model", "sweep/model"]


def test_step_shares_has_a_line_per_system_and_names_the_last_step():
    figure = figures.step_shares({"one": (0.5, 0.25, 0.25), "two": (1.0, 0.0, 0.0)})
    (ax,) = figure.axes
    assert [list(line.get_ydata()) for line in ax.lines] == [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "≥ 2"]
