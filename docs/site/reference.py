"""The reference of Python names: which of them are public, page by page. mkdocstrings reads their docstrings."""

import re
from pathlib import Path

HOLDS_ONE = re.compile(r"^class \w+\(CrossAttention\)|^class Segmenter", re.MULTILINE)

ROOT = Path(__file__).resolve().parents[2]


def policies() -> list[str]:
    """The files that hold one."""
    found = sorted(path.stem for path in (ROOT / "gma" / "policies").glob("*.py") if HOLDS_ONE.search(path.read_text()))
    return [f"gma.policies.{name}" for name in found]


# title → what the page says first, and what it documents
PAGES = {
    "Attention": (
        "The drop-in module, and the operator below it.",
        [
            "gma.attention.module",
            "gma.attention.alignment",
            "gma.attention.source_cache",
            "gma_kernels.api",
            "gma_kernels.logsumexp",
            "gma_kernels.moments",
        ],
    ),
    "Backends": ("Which implementation of the operator serves.", ["gma_kernels.backends"]),
    "Streaming": (
        "Sentences, and text without end, while they arrive.",
        ["gma.decoding.streaming", "gma.decoding.course.Emission", "gma.decoding.talk"],
    ),
    "Client": ("A speaker's side of `gma serve`.", ["gma.client.talk", "gma.client.held"]),
    "Server": ("Messages of the protocol.", ["gma.serve.protocol"]),
    "Models": (
        "Loading a model, and the Transformer that it is.",
        ["gma.model.directory", "gma.model.hub", "gma.decoding.translate", "gma.model.transformer"],
    ),
    "Policies": ("What a new policy derives from, and the ones that are there.", ["gma.policies.base", *policies()]),
    "Metrics": (
        "Plain functions of numbers and strings.",
        ["gma.metrics.latency", "gma.metrics.quality", "gma.metrics.alignment", "gma.metrics.bootstrap"],
    ),
    "Evaluation": ("Scores of a translator on a text.", ["gma.evaluation.evaluate"]),
}


def reference_pages() -> dict[str, str]:
    """Place on the site → Markdown with the directives of mkdocstrings."""
    return {f"api/{title.lower()}.md": page(title, *content) for title, content in PAGES.items()}


def page(title: str, first: str, names: list[str]) -> str:
    return f"# {title}\n\n{first}\n\n" + "".join(f"::: {name}\n\n" for name in names)
