"""What a hub shows of a model: a card, whose header is filled from the run, and a config.json."""

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from gma.evaluation.sweep import Point
from gma.model.directory import Loaded

HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def config_json(loaded: Loaded) -> str:
    """For hubs, which count downloads by this file, and for whoever reads no TOML; loading takes config.toml."""
    content = {"model_type": "gma", "library_name": "gma", "gma_version": version("gma"), **loaded.config.model_dump()}
    return json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"


def datasets(loaded: Loaded) -> list[str]:
    """The corpora a model was trained on: the folders of its training files below data.root."""
    if loaded.config.data.generated:
        return ["generated"]
    return list(dict.fromkeys(PurePath(file).parts[0] for file in loaded.config.data.train.source if "/" in file))


def card(name: str, loaded: Loaded, licence: str, points: Sequence[Point], text: str, written: str = "") -> str:
    """A card in Markdown.

    Args:
        name: organisation/name on the hub.
        points: of a sweep over this model, on `text`.
        written: the text of a card that is there already; it keeps its words and gets another header.
    """
    body = HEADER.sub("", written).strip() or _body(name, loaded, points, text)
    return f"---\n{_header(name, loaded, licence, points, text)}---\n\n{body}\n"


def _header(name: str, loaded: Loaded, licence: str, points: Sequence[Point], text: str) -> str:
    # also writes the YAML
    from huggingface_hub import EvalResult, ModelCardData

    data = loaded.config.data
    results = [
        EvalResult("translation", text, text, kind, round(value, 2), metric_name=f"{label}{_latency(loaded, point)}")
        for point in points
        for kind, label, value in (("bleu", "BLEU", point.bleu), ("chrf", "chrF", point.chrf))
    ]
    header = ModelCardData(
        language=[data.source, data.target],
        license=licence,
        library_name="gma",
        pipeline_tag="translation",
        tags=["simultaneous-translation", "gma", loaded.model.policy.name],
        datasets=datasets(loaded) or None,
        metrics=["bleu", "chrf"] if points else None,
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return str(header.to_yaml()) + "\n"


def _latency(loaded: Loaded, point: Point) -> str:
    symbol = "" if point.delta is None else f"{loaded.model.policy.latency_symbol} = {point.delta:g}, "
    return f" at {symbol}AL {point.al:.2f} words"


def _body(name: str, loaded: Loaded, points: Sequence[Point], text: str) -> str:
    data, model = loaded.config.data, loaded.config.model
    parameters = sum(tensor.numel() for tensor in loaded.model.parameters())
    lines = [
        f"# {name.rpartition('/')[2]}: {data.source} into {data.target} while it is being heard",
        "",
        f"A simultaneous translator, policy `{loaded.model.policy.name}`: {model.encoder_layers} "
        f"and {model.decoder_layers} layers of width {model.width}, {parameters / 1e6:.1f} million "
        f"parameters, by gma {version('gma')}.",
        "",
        "```python",
        "from gma import StreamingTranslator",
        "",
        f'translator = StreamingTranslator.load("hf://{name}")',
        "```",
        "",
        f"On the command line: `gma stream hf://{name}`.",
    ]
    if trained := datasets(loaded):
        lines += ["", f"Trained on: {', '.join(trained)}."]
    if points:
        lines += ["", f"On {text}:", "", *_table(loaded, points)]
    return "\n".join(lines)


def _table(loaded: Loaded, points: Sequence[Point]) -> list[str]:
    rows: list[tuple[Any, ...]] = [(loaded.model.policy.latency_symbol or "", "BLEU", "chrF", "AL (word), words")]
    rows += [("---:",) * 4]
    for point in points:
        latency = "" if point.delta is None else f"{point.delta:g}"
        rows.append((latency, f"{point.bleu:.1f}", f"{point.chrf:.1f}", f"{point.al:.2f}"))
    table = [f"| {' | '.join(row)} |" for row in rows]
    return [*table, "", f"*sacreBLEU `{points[0].bleu_signature}`; {points[0].latency_convention}.*"]
