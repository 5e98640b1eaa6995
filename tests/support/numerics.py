"""Random cases, independent formulas and error bounds shared by the tests of the operator."""

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import gma_kernels
from gma_kernels.native import extension

PRIORS = ("gaussian", "laplace", "linear", "none")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
GRADIENTS = ("query", "key", "value", "center", "width")
# what is allowed beyond twice the yardstick's error; float64 has no floor in the contract, this is float64 noise
FLOOR = {torch.float32: 2e-6, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float64: 1e-12}
SMALLEST_WIDTH = 2.0**-40
LINEAR_FLOOR = 2.0**-10

SIZES = {
    "batch": (1, 1, 1, 2, 2, 3),
    "heads": (1, 1, 2, 3, 4),
    "rows": (1, 1, 1, 2, 3, 5, 6, 7, 12, 13, 17, 33),
    "keys": (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 100, 131),
    "head": (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100, 128, 255, 256),
}
HEAD_LAYOUTS = (
    "contiguous", "rows_first", "cache", "cache_rows_first", "packed", "rows_outermost", "one_batch", "one_head",
)  # fmt: skip
ROW_LAYOUTS = ("contiguous", "expanded_batch", "expanded_rows", "permuted", "every_second")
GRAD_LAYOUTS = ("contiguous", "rows_first", "cache", "expanded")
VISIBLE_KINDS = ("ragged", "ragged", "ragged", "diagonal", "all", "none", "one", "lengths", "past_the_end")
CENTER_KINDS = ("inside", "inside", "inside", "outside", "integer", "half", "huge", "tiny", "mixed")
WIDTH_KINDS = ("ordinary", "ordinary", "ordinary", "half_center", "tiny", "huge", "mixed")


# 'native' stands for each SIMD level this machine has, best first: 'native avx512_bf16', 'native avx512', …
CPU_BACKENDS = ("reference", *(f"native {level}" for level in (extension.simd_levels() if extension else ("missing",))))


@contextlib.contextmanager
def using(backend: str) -> Iterator[str]:
    """The name of a backend of CPU_BACKENDS as the operator takes it, with its SIMD level in force."""
    name, _, level = backend.partition(" ")
    if extension is None or not level:
        yield name
        return
    before = extension.simd_level()
    extension.use_simd(level)
    try:
        yield name
    finally:
        extension.use_simd(before)


def dtype_to_draw() -> torch.dtype | None:
    """The one dtype that the SIMD level in force has kernels of its own for, or None for any."""
    return torch.bfloat16 if extension is not None and extension.simd_level() == "avx512_bf16" else None


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of centers, widths and all arithmetic for queries of this dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Inputs(NamedTuple):
    query: Tensor
    key: Tensor
    value: Tensor
    center: Tensor
    width: Tensor
    visible: Tensor

    def to(self, dtype: torch.dtype) -> "Inputs":
        real = real_dtype(dtype)
        heads = (x.to(dtype) for x in self[:3])
        return Inputs(*heads, self.center.to(real), self.width.to(real), self.visible)

    def leaves(self) -> "Inputs":
        """The same values and strides, wanting gradients."""
        return Inputs(*(x.detach().requires_grad_() for x in self[:5]), self.visible)

    def without_value(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.center, self.width, self.visible


@dataclass(frozen=True)
class Case:
    """One call of the operator, drawn from a seed; its repr is everything needed to build it again."""

    seed: int
    dtype: torch.dtype
    prior: str
    scale: float | None
    dropout_p: float
    magnitude: float
    batch: int
    heads: int
    rows: int
    keys: int
    size: int
    value_size: int
    center_heads: int
    width_heads: int
    visible_heads: int
    center_kind: str
    width_kind: str
    visible_kind: str
    layouts: tuple[str, ...]

    @classmethod
    def draw(cls, seed: int, dtype: torch.dtype | None = None) -> "Case":
        pick = random.Random(seed)
        sizes = {name: pick.choice(SIZES[name]) for name in ("batch", "heads", "rows", "keys")}
        if pick.random() < 0.05:
            sizes[pick.choice(("batch", "rows", "keys"))] = 0
        shared = [pick.choice((1, sizes["heads"])) for _ in range(3)]
        size = pick.choice(SIZES["head"])
        return cls(
            seed=seed,
            dtype=dtype or pick.choice(DTYPES),
            prior=pick.choice(PRIORS),
            # scores stay of ordinary size: rounding errors of huge ones would make the yardstick a matter of luck
            scale=pick.choice((None, None, None, 0.5 * size**-0.5, 2 * size**-0.5, 0.0, -(size**-0.5))),
            dropout_p=pick.choice((0.0, 0.0, 0.1, 0.5, 0.95)),
            magnitude=pick.choice((1.0, 1.0, 1.0, 0.1, 3.0)),
            **sizes,
            size=size,
            value_size=pick.choice(SIZES["head"]),
            center_heads=shared[0],
            width_heads=shared[1],
            visible_heads=shared[2],
            center_kind=pick.choice(CENTER_KINDS),
            width_kind=pick.choice(WIDTH_KINDS),
            visible_kind=pick.choice(VISIBLE_KINDS),
            layouts=(
                *(pick.choice(HEAD_LAYOUTS) for _ in range(3)),
                *(pick.choice(ROW_LAYOUTS) for _ in range(3)),
                pick.choice(GRAD_LAYOUTS),
            ),
        )

    def build(self) -> tuple[Inputs, Tensor]:
        """The operator's inputs and a gradient of its output, in the case's dtype and memory layouts."""
        make = torch.Generator().manual_seed(self.seed)
        real = real_dtype(self.dtype)

        def normal(rows: int, size: int, layout: str, magnitude: float = 1.0) -> Tensor:
            x = magnitude * torch.randn(self.batch, self.heads, rows, size, generator=make)
            return lay_out(x.to(self.dtype), layout)

        query = normal(self.rows, self.size, self.layouts[0], self.magnitude)
        key = normal(self.keys, self.size, self.layouts[1])
        value = normal(self.keys, self.value_size, self.layouts[2])
        grad = normal(self.rows, self.value_size, self.layouts[6])
        visible = lay_out_rows(self._visible(make), self.layouts[5])
        center = self._center(make)
        width = self._width(make, center)
        center = lay_out_rows(center.to(real), self.layouts[3])
        width = lay_out_rows(width.to(real).clamp(min=2.0**-140), self.layouts[4])
        return Inputs(query, key, value, *spoil_dead_rows(center, width, visible), visible), grad

    def settings(self) -> dict:
        return {"prior": self.prior, "scale": self.scale}

    def dropout(self) -> dict:
        return {"dropout_p": self.dropout_p, "seed": self.seed * 2654435761 % 2**63}

    def _visible(self, make: torch.Generator) -> Tensor:
        shape = (self.batch, self.visible_heads, self.rows)
        if self.visible_kind == "diagonal":
            return torch.arange(1, self.rows + 1, dtype=torch.int32).expand(shape).contiguous()
        if self.visible_kind == "lengths":
            return torch.randint(0, self.keys + 1, (self.batch, 1, 1), generator=make, dtype=torch.int32).repeat(
                1, *shape[1:]
            )
        constant = {"all": self.keys, "none": 0, "one": 1, "past_the_end": 2**31 - 1}.get(self.visible_kind)
        if constant is not None:
            return torch.full(shape, constant, dtype=torch.int32)
        return torch.randint(0, self.keys + 3, shape, generator=make, dtype=torch.int32)

    def _center(self, make: torch.Generator) -> Tensor:
        shape = (self.batch, self.center_heads, self.rows)
        uniform = torch.rand(shape, generator=make, dtype=torch.float64)
        power = 10.0 ** (3 + 30 * torch.rand(shape, generator=make, dtype=torch.float64))
        sign = torch.randint(0, 2, shape, generator=make) * 2.0 - 1.0
        inside = 1 + uniform * self.keys
        by_kind = {
            "inside": inside,
            "outside": (4 * uniform - 1.5) * (self.keys + 2),
            "integer": inside.floor(),
            "half": inside.floor() + 0.5,
            "huge": sign * power,
            "tiny": sign / power,
        }
        return _mix(self.center_kind, by_kind, shape, make)

    def _width(self, make: torch.Generator, center: Tensor) -> Tensor:
        shape = (self.batch, self.width_heads, self.rows)
        uniform = torch.rand(shape, generator=make, dtype=torch.float64)
        power = 10.0 ** (1 + 34 * torch.rand(shape, generator=make, dtype=torch.float64))
        by_kind = {
            "ordinary": torch.exp(3 * uniform - 1),
            "half_center": (center[:, :1] / 2).abs().clamp(0.1, 1e30).expand(shape),
            "tiny": 1.0 / power,
            "huge": power,
        }
        return _mix(self.width_kind, by_kind, shape, make)


def _mix(kind: str, by_kind: dict[str, Tensor], shape: tuple[int, ...], make: torch.Generator) -> Tensor:
    """The values of one kind, or for 'mixed' those of a random kind for each row."""
    if kind != "mixed":
        return by_kind[kind].clone()
    choice = torch.randint(0, len(by_kind), shape, generator=make)
    return torch.stack([x.expand(shape) for x in by_kind.values()]).gather(0, choice[None])[0]


def lay_out(x: Tensor, layout: str) -> Tensor:
    """[B, H, N, D] with the same values in another memory layout, NaN wherever the layout leaves a gap.

    one_batch and one_head have stride 0 there and so repeat the first batch entry or head. expanded is what the
    gradient of a sum looks like: one element, stride 0 everywhere.
    """
    batch, heads, rows, size = x.shape
    if layout == "expanded":
        return torch.full((), 0.75, dtype=x.dtype).expand(x.shape)
    if layout == "one_batch":
        return x[:1].expand(x.shape)
    if layout == "one_head":
        return x[:, :1].expand(x.shape)
    if layout == "rows_first":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "rows_outermost":
        return x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    if layout == "cache":
        return _inside(x, x.new_full((batch, heads, rows + 3, size), math.nan)[:, :, 1 : rows + 1])
    if layout == "cache_rows_first":
        return _inside(x, x.new_full((batch, rows + 3, heads, size), math.nan)[:, 2 : rows + 2].transpose(1, 2))
    if layout == "packed":
        gap = x.new_full((batch, rows, heads, size + 5), math.nan)
        return _inside(x, gap[..., 3 : size + 3].transpose(1, 2))
    return x.contiguous()


def _inside(x: Tensor, place: Tensor) -> Tensor:
    return place.copy_(x)


def lay_out_rows(x: Tensor, layout: str) -> Tensor:
    """[B, 1 or H, T] in another memory layout; the expanded ones repeat the first entry with stride 0."""
    if layout == "expanded_batch":
        return x[:1].expand(x.shape)
    if layout == "expanded_rows":
        return x[..., :1].expand(x.shape)
    if layout == "permuted":
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if layout == "every_second":
        return torch.stack((x, torch.zeros_like(x)), dim=-1).flatten(-2)[..., ::2]
    return x.contiguous()


def spoil_dead_rows(center: Tensor, width: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Impossible values wherever no head that uses them sees anything: the operator must not look at them."""

    def spoil(x: Tensor, bad: float) -> Tensor:
        dead = (visible <= 0).expand(-1, max(x.shape[1], visible.shape[1]), -1)
        dead = dead.all(dim=1, keepdim=True) if x.shape[1] == 1 else dead
        return x if 0 in x.stride() and x.numel() > 1 else x.masked_fill_(dead, bad)

    return spoil(center, math.nan), spoil(width, -1.0)


def poison_blind_rows(inputs: Inputs, grad: Tensor) -> tuple[Inputs, Tensor]:
    """The same with NaN in all there is of rows that see nothing: query, center, width and incoming gradient."""
    blind = inputs.visible == 0
    query, grad = (x.masked_fill(blind[..., None], math.nan) for x in (inputs.query, grad))
    center, width = (x.masked_fill(blind, math.nan) for x in (inputs.center, inputs.width))
    return inputs._replace(query=query, center=center, width=width), grad


def literal_three_steps(inputs: Inputs, prior: str, scale: float | None = None) -> Tensor:
    """The paper's posterior as it is written: soft attention, times the normalised truncated prior, renormalised."""
    position = torch.arange(1, inputs.key.shape[2] + 1, dtype=inputs.center.dtype)
    center, width = inputs.center[..., None], inputs.width[..., None]
    scale = inputs.query.shape[3] ** -0.5 if scale is None else scale
    soft = torch.softmax(scale * inputs.query @ inputs.key.mT, dim=-1)
    density = {
        "gaussian": lambda: torch.exp(-((position - center) ** 2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi)),
        "laplace": lambda: torch.exp(-math.sqrt(2) * (position - center).abs() / width) / (width * math.sqrt(2)),
        "linear": lambda: (1 - (position - center).abs() / (2 * width)).clamp(min=LINEAR_FLOOR) / (2 * width),
        "none": lambda: torch.ones_like(position - center),
    }[prior]()
    density = density * (position <= inputs.visible[..., None])
    product = soft * (density / density.sum(dim=-1, keepdim=True))
    return product / product.sum(dim=-1, keepdim=True)


class _Round(torch.autograd.Function):
    """Rounds the value on the way forward and the gradient on the way back, as a tensor kept in `dtype` would be."""

    @staticmethod
    def forward(ctx, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype).to(grad.dtype), None


def yardstick(inputs: Inputs, prior: str, scale: float | None, keep: Tensor | None) -> tuple[Tensor, Tensor]:
    """Context and weights by plain PyTorch with every [T, S] intermediate rounded to the input dtype."""
    return general_yardstick(inputs, None, prior, scale, keep)[:2]


def general_yardstick(
    inputs: Inputs, first: Tensor | None, prior: str, scale: float | None, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Context, weights and logsumexp, with grouped heads and a left bound."""
    dtype = inputs.query.dtype
    real = real_dtype(dtype)

    def rounded(x: Tensor) -> Tensor:
        return _Round.apply(x, dtype)

    group = inputs.query.shape[1] // inputs.key.shape[1]
    key, value = (x.to(real).repeat_interleave(group, dim=1) for x in (inputs.key, inputs.value))
    position = torch.arange(1, key.shape[2] + 1, dtype=real)
    begin = torch.zeros_like(inputs.visible) if first is None else first
    dead = (inputs.visible.clamp(max=key.shape[2]) <= begin)[..., None]
    center = torch.where(dead, 1.0, inputs.center[..., None])
    width = torch.where(dead, 1.0, inputs.width[..., None]).clamp(min=SMALLEST_WIDTH)
    distance = rounded(position - center)
    log_prior: Callable[[], Tensor] = {
        "gaussian": lambda: rounded(-0.5 * rounded(rounded(distance / width) ** 2)),
        "laplace": lambda: rounded(-math.sqrt(2) * rounded(distance.abs() / width)),
        "linear": lambda: rounded(
            torch.log(rounded(1 - rounded(distance.abs() / (2 * width))).clamp(min=LINEAR_FLOOR))
        ),
        "none": lambda: torch.zeros_like(distance),
    }[prior]
    scale = inputs.query.shape[3] ** -0.5 if scale is None else scale
    query = torch.where(dead, 0.0, inputs.query.to(real))
    scores = rounded(scale * rounded(query @ key.mT))
    logits = rounded(scores + log_prior())
    hidden = (position > inputs.visible[..., None]) | (position <= begin[..., None])
    logits = logits.masked_fill(hidden & ~dead, -math.inf)
    weights = rounded(torch.softmax(logits, dim=-1)).masked_fill(dead, 0.0)
    used = weights if keep is None else rounded(weights * keep.to(real))
    logsumexp = torch.logsumexp(logits, dim=-1).masked_fill(dead[..., 0], -math.inf)
    return (used @ value).to(dtype), weights.to(dtype), logsumexp


def error(x: Tensor, exact: Tensor) -> float:
    """max|x − exact| / max(1, max|exact|); infinite if x is not finite."""
    assert x.shape == exact.shape
    if exact.numel() == 0:
        return 0.0
    assert exact.isfinite().all(), "the float64 oracle itself is not finite"
    if not x.isfinite().all():
        return math.inf
    return ((x.double() - exact).abs().max() / exact.abs().max().clamp(min=1)).item()


def allowed(yardstick_error: float, dtype: torch.dtype) -> float:
    """Twice the yardstick's error plus the floor; a yardstick that overflowed allows nothing beyond the floor."""
    return (2 * yardstick_error if math.isfinite(yardstick_error) else 0.0) + FLOOR[dtype]


def run(case: Case, inputs: Inputs, grad: Tensor, backend: str) -> dict[str, Tensor]:
    """Context, weights and the five gradients of one case."""
    leaves = inputs.leaves()
    context = gma_kernels.gaussian_attention(*leaves, **case.settings(), **case.dropout(), backend=backend)
    weights = gma_kernels.attention_weights(*inputs.without_value(), **case.settings(), backend=backend)
    grads = torch.autograd.grad(context, leaves[:5], grad)
    return {"context": context.detach(), "weights": weights, **dict(zip(GRADIENTS, grads))}


def run_yardstick(case: Case, inputs: Inputs, grad: Tensor, keep: Tensor | None) -> dict[str, Tensor]:
    leaves = inputs.leaves()
    context, weights = yardstick(leaves, case.prior, case.scale, keep)
    grads = torch.autograd.grad(context, leaves[:5], grad, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves)]
    return {"context": context.detach(), "weights": weights.detach(), **dict(zip(GRADIENTS, grads))}


def simple_inputs(
    batch: int = 2,
    heads: int = 3,
    rows: int = 5,
    keys: int = 7,
    size: int = 4,
    value_size: int = 6,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    center_heads: int = 1,
    visible: Tensor | None = None,
) -> Inputs:
    """Well-behaved inputs: centers inside the source and at least 1e-3 from every kink, everything visible."""
    make = torch.Generator().manual_seed(seed)
    real = real_dtype(dtype)
    query, key, value = (
        torch.randn(batch, heads, n, d, generator=make, dtype=torch.float64).to(dtype)
        for n, d in ((rows, size), (keys, size), (keys, value_size))
    )
    shape = (batch, center_heads, rows)
    center = torch.randint(1, max(keys, 1) + 1, shape, generator=make) + 0.1 + 0.3 * torch.rand(shape, generator=make)
    width = 0.8 + 1.5 * torch.rand(shape, generator=make)
    width = width + 2e-3 * _near_linear_kink(center, width, keys)
    if visible is None:
        visible = torch.full((batch, 1, rows), keys, dtype=torch.int32)
    return Inputs(query, key, value, center.to(real), width.to(real), visible)


def _near_linear_kink(center: Tensor, width: Tensor, keys: int) -> Tensor:
    """1 where some position is within 1e-3 of the point where the linear prior meets its floor."""
    distance = (torch.arange(1, keys + 1) - center[..., None]).abs()
    return ((distance - 2 * (1 - LINEAR_FLOOR) * width[..., None]).abs() < 2e-3).any(dim=-1)
