"""Where each target word looks: aligned positions, prior widths and how much source each row may use (paper, 3.1).

Δp_i = exp(v · tanh(W q_i/√d))      p_i = p_{i−1} + Δp_i, p_0 = 1      g_i = ⌊p_i + δ⌋          (Eq. 4–6)

The √d is that of the authors' code; the paper leaves it out. d: features of a head.
"""

import math
import numbers
from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gma.attention.packing import Packing
from gma_kernels.contract import accumulation_dtype, full_precision

WIDTHS_PER_POSITION = {"whole": 1.0, "half": 1 / 2, "third": 1 / 3}
WIDTH_RULES = (*WIDTHS_PER_POSITION, "predicted")
POSITIONS = ("incremental", "absolute")
CONVENTIONS = ("paper", "reference")

# stands for the length of a source that has not ended: more than any row can need, and exact in int32
UNKNOWN_LENGTH = 2**30
# keeps exp() finite: e¹⁵ is three million source words in one step
LARGEST_EXPONENT = 15.0
PREDICTED_WIDTH_RANGE = (0.1, 1e4)
# the authors' code clamps its 0-based positions to this, never to the source length
REFERENCE_RANGE = (0.9, 1100.0)


class Alignment(NamedTuple):
    """The prior of every target row. All [B, 1 or H, T]; positions are 1-based.

    `position` is what the next row goes on from, in float64; here the running sum behind `center`, neither rounded nor
    clamped. Pass `position[..., -1]` as `previous` to `align` to go on from the last row.
    """

    center: Tensor
    width: Tensor
    visible: Tensor
    position: Tensor = None  # type: ignore[assignment]  # only a user's own lacks it, and no row goes on from there


class PositivePredictor(nn.Module):
    """exp(v · tanh(W q/√d)), no biases (Eq. 5): one positive number per row, or one per row and head.

    Always computed in float32 (float64 for float64): under autocast, bfloat16 positions would drift by whole words.
    """

    def __init__(
        self,
        embed_dim: int,
        outputs: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.hidden = nn.Linear(embed_dim, embed_dim, bias=False, device=device, dtype=dtype)
        self.output = nn.Linear(embed_dim, outputs, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, scaled_query: Tensor) -> Tensor:
        """[B, T, E] → [B, 1 or H, T]"""
        dtype = accumulation_dtype(scaled_query.dtype)
        with full_precision(scaled_query.device.type):
            hidden = torch.tanh(nn.functional.linear(scaled_query.to(dtype), self.hidden.weight.to(dtype)))
            exponent = nn.functional.linear(hidden, self.output.weight.to(dtype))
            return exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp().transpose(1, 2)


class Aligner(nn.Module):
    """Predicts the alignment of every row from the scaled queries of all heads together.

    Args:
        outputs: 1 if the heads share one alignment, else the number of heads.
        width_rule: the prior's width: 'whole' p, 'half' p/2 (the paper's), 'third' p/3, or 'predicted' by its own
            MLP, clamped to [0.1, 10⁴] (our reading; the paper does not define it).
        positions: 'incremental' (the paper's), or 'absolute' p = 1 + exp(…), our reading: not monotone, without |x|.
        convention: 'paper', or 'reference' for what the authors' code does: the first step is zero, positions are
            clamped, the width comes from the 0-based position, and ⌈·⌉ counts the source words.
    """

    def __init__(
        self,
        embed_dim: int,
        outputs: int,
        delta: float,
        width_rule: str,
        positions: str,
        convention: str,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_choice("width_rule", width_rule, WIDTH_RULES)
        check_choice("positions", positions, POSITIONS)
        check_choice("convention", convention, CONVENTIONS)
        self.delta = checked_delta(delta)
        self.width_rule, self.positions, self.convention = width_rule, positions, convention
        self.step = PositivePredictor(embed_dim, outputs, device, dtype)
        self.width = PositivePredictor(embed_dim, outputs, device, dtype) if width_rule == "predicted" else None

    def reset_parameters(self) -> None:
        self.step.reset_parameters()
        if self.width is not None:
            self.width.reset_parameters()

    def extra_repr(self) -> str:
        return (
            f"delta={self.delta}, width_rule={self.width_rule!r}, "
            f"positions={self.positions!r}, convention={self.convention!r}"
        )

    def forward(
        self,
        scaled_query: Tensor,
        source_lengths: Tensor,
        previous: Tensor | None = None,
        delta: float | Tensor | None = None,
    ) -> Alignment:
        """The alignment of every row.

        Args:
            scaled_query: [B, T, E]
            source_lengths: [B]
            previous: [B, 1 or H], the position before the first row; NaN, or None for all, where there is none.
            delta: another δ than the module's own, one for all, one per sentence [B], or one per row [B, T].
        """
        position = self._positions(self.step(scaled_query), previous)
        return self._alignment(position, scaled_query, source_lengths[:, None, None], delta)

    def packed(self, scaled_query: Tensor, rows: Packing, source_lengths: Tensor) -> Alignment:
        """The alignment of every row of sentences that lie one behind the other, [1, 1 or H, N] each.

        Args:
            scaled_query: [N, E]
            rows: where the sentences lie.
            source_lengths: [B]
        """
        scaled_query = scaled_query[None]
        # one number for each row is padded, so that positions are summed as in a padded batch
        position = rows.unpad(self._positions(rows.pad(self.step(scaled_query)), None))
        return self._alignment(position, scaled_query, source_lengths[rows.sentence], None)

    def _alignment(
        self, position: Tensor, scaled_query: Tensor, limit: Tensor, delta: float | Tensor | None
    ) -> Alignment:
        """limit: how much source there is for each row, [B, 1, 1 or T]"""
        dtype = accumulation_dtype(scaled_query.dtype)
        # 0-based in the authors' code, 1-based in the paper: the width depends on it
        counted_from_zero = self.convention == "reference"
        place = (position - 1.0).clamp(*REFERENCE_RANGE) if counted_from_zero else position
        center = (place + 1.0 if counted_from_zero else place).to(dtype)
        if self.width is None:
            width = (place * WIDTHS_PER_POSITION[self.width_rule]).to(dtype)
        else:
            width = self.width(scaled_query).clamp(*PREDICTED_WIDTH_RANGE)
        return Alignment(center, width, self._visible(center, limit, delta), position)

    def _positions(self, steps: Tensor, previous: Tensor | None) -> Tensor:
        """[B, 1 or H, T] float64"""
        steps = steps.double()
        if self.positions == "absolute":
            return 1.0 + steps
        if previous is None:
            previous = steps.new_full(steps.shape[:2], math.nan)
        at_start = previous.isnan()[..., None]
        if self.convention == "reference":
            first = torch.arange(steps.shape[2], device=steps.device) == 0
            steps = steps.masked_fill(first & at_start, 0.0)
        return previous.double()[..., None].masked_fill(at_start, 1.0) + steps.cumsum(dim=2)

    def _visible(self, center: Tensor, limit: Tensor, delta: float | Tensor | None) -> Tensor:
        """How many source positions each row waits for and may use."""
        if delta is None:
            delta = self.delta
        elif isinstance(delta, Tensor):
            delta = delta.double().reshape(len(delta), 1, -1)
        with torch.no_grad():
            heard = center.double() + delta
            heard = torch.ceil(heard - 1.0) if self.convention == "reference" else torch.floor(heard)
            # a NaN sees everything, so that the operator meets it and names it
            heard = heard.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
            return _limited(heard, limit)


def within_source(heard: Tensor, source_lengths: Tensor) -> Tensor:
    """Numbers of source tokens, whole or infinite, limited to 0 … |x|: [B, 1 or H, T] float64 → int32."""
    return _limited(heard, source_lengths[:, None, None])


def _limited(heard: Tensor, limit: Tensor) -> Tensor:
    # limited before the cast: a float past the int32 range casts to garbage
    return torch.minimum(heard, limit.to(heard.dtype)).clamp(min=0.0).int()


def window_start(center: Tensor, visible: Tensor, window: int) -> Tensor:
    """How many leading source words each row may not use: int32 [B, 1 or H, T].

    What a row sees begins `window` words before the one it stands on, ⌊center⌋, or before the last that it sees if that
    comes first: a row that sees anything keeps something to look at.
    """
    # a NaN hides nothing, so that the operator meets it and names it
    standing = center.detach().double().nan_to_num(nan=0.0).floor()
    return (torch.minimum(standing, visible.double()) - (1 + window)).clamp(min=0.0).int()


def without_prior(query: Tensor, visible: Tensor) -> Alignment:
    """The alignment of rows that know no position: for prior="none". visible: [B, 1 or H, T]."""
    one = torch.ones((), dtype=accumulation_dtype(query.dtype), device=query.device).expand(visible.shape)
    return Alignment(one, one, visible, one.double())


def checked_delta(delta: float) -> float:
    if isinstance(delta, bool) or not isinstance(delta, numbers.Real):
        raise TypeError(f"delta is a {type(delta).__name__}; expected a number of source words, or inf for all")
    if math.isnan(delta) or delta == -math.inf:
        raise ValueError(f"delta is {delta}; expected a number of source words, or inf for all")
    return float(delta)


def check_choice(name: str, given: str, choices: Collection[str]) -> None:
    if not isinstance(given, str) or given not in choices:
        raise ValueError(f"{name} is {given!r}; expected one of {', '.join(map(repr, choices))}")
