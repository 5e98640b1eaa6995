"""The paper's own numbers (Zhang and Feng, Findings of ACL 2022), as printed in its tables.

BLEU is tokenised; latency is in the `paper` convention, in model tokens. The curves of Wait-k, MU, MMA and Offline are
printed as figures only, so that there are no numbers of theirs here.
"""

from typing import NamedTuple

PAPER = "https://aclanthology.org/2022.findings-acl.238/"


class CurveRow(NamedTuple):
    """GMA at one δ: tables 4, 5 and 6."""

    delta: float
    cw: float
    ap: float
    al: float
    dal: float
    bleu: float


class Variant(NamedTuple):
    """WMT15 De→En, base, δ = 1: tables 1 and 2."""

    al: float
    bleu: float


class AlignmentRow(NamedTuple):
    """RWTH De→En, base: table 3; `within` is the share of gold-aligned source words within g(i)."""

    level: str
    aer: float
    within: float


CURVES = {
    "IWSLT15 En→Vi, small": (
        CurveRow(0.9, 1.20, 0.65, 3.05, 4.08, 27.95),
        CurveRow(1.0, 1.27, 0.68, 4.01, 4.77, 28.20),
        CurveRow(2.0, 1.49, 0.74, 5.47, 6.37, 28.44),
        CurveRow(2.2, 1.60, 0.77, 6.04, 6.96, 28.56),
        CurveRow(2.5, 1.74, 0.78, 6.55, 7.55, 28.72),
    ),
    "WMT15 De→En, base": (
        CurveRow(0.9, 1.33, 0.64, 3.87, 4.61, 28.12),
        CurveRow(1.0, 1.49, 0.67, 4.66, 5.56, 28.50),
        CurveRow(2.0, 1.85, 0.72, 5.79, 7.75, 28.71),
        CurveRow(2.2, 2.01, 0.73, 6.13, 8.43, 29.23),
        CurveRow(2.4, 5.89, 0.96, 14.05, 25.76, 31.31),
    ),
    "WMT15 De→En, big": (
        CurveRow(1.0, 1.54, 0.68, 4.60, 5.89, 30.20),
        CurveRow(2.0, 1.98, 0.74, 6.34, 8.18, 30.64),
        CurveRow(2.2, 2.13, 0.75, 6.86, 8.91, 31.33),
        CurveRow(2.4, 2.28, 0.76, 7.28, 9.59, 31.62),
        CurveRow(2.5, 3.10, 0.88, 12.06, 20.43, 31.91),
    ),
}
# later systems of the same authors and others, on the same data and in the same convention, as (AL, BLEU)
SUCCESSORS = {
    "GMA 2022": ((3.87, 28.12), (4.66, 28.50), (6.13, 29.23), (14.05, 31.31)),
    "Wait-info 2022": ((3.00, 27.55), (3.78, 28.89), (4.68, 29.66), (5.71, 30.12), (15.32, 32.05)),
    "ITST 2022": ((2.27, 26.44), (3.83, 29.65), (5.47, 30.63), (7.60, 31.58), (12.72, 32.00)),
    "HMT 2023": ((0.27, 22.52), (3.46, 29.29), (4.74, 30.29), (6.43, 30.90), (11.80, 31.71)),
}
REFERENCE = Variant(4.66, 28.50)
# by the names of `gma.paper.systems`
ABLATIONS = {
    "ablation-gma": REFERENCE,
    "positions-absolute": Variant(7.33, 25.61),
    "width-whole": Variant(6.87, 28.96),
    "width-third": Variant(4.55, 27.61),
    "width-predicted": Variant(5.34, 27.12),
    "prior-laplace": Variant(8.14, 29.19),
    "prior-linear": Variant(12.83, 27.86),
    "prior-none": Variant(1.48, 20.84),
    "sharing-none": Variant(7.85, 29.18),
    "sharing-layers": Variant(4.46, 27.82),
    "sharing-all": Variant(3.07, 27.26),
}
ALIGNMENT = (AlignmentRow("low", 0.49, 0.8100), AlignmentRow("mid", 0.61, 0.8827), AlignmentRow("high", 0.76, 0.9558))
# what the paper's step-size figure shows, in words, at AL ≈ 4.5
STEPS = {
    "Wait-k": "k once, then 1, then 0 when the source has ended (k = 5)",
    "MMA": "mostly 0, and a large share above 5 (λ = 0.4)",
    "GMA": "between 0 and 4 (δ = 1)",
}
