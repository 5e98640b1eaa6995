"""Random cases of what the operator takes beyond the plain call: grouped heads, a left bound, packed batches, and the
logsumexp with its gradient, alone and together."""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import gma_kernels
from gma_kernels.backends import FEATURES
from tests.support.numerics import (
    GRADIENTS,
    Case,
    Inputs,
    allowed,
    error,
    general_yardstick,
    lay_out,
    real_dtype,
    spoil_dead_rows,
)
from tests.support.random_cases import kept_weights

FIRST_KINDS = ("window", "window", "window", "ragged", "narrow", "zeros", "past visible", "past the end")
HEADS = ((2, 1), (4, 1), (4, 2), (6, 2), (6, 3), (12, 4), (5, 1))  # of query, of key


class Problem(NamedTuple):
    """One sentence of a case, or a batch of them: what goes in, and gradients of what comes out."""

    inputs: Inputs
    first: Tensor | None
    grad: Tensor  # of the context
    grad_logsumexp: Tensor | None


@dataclass(frozen=True)
class FeatureCase:
    """One call; its repr is everything needed to build it again."""

    case: Case
    features: tuple[str, ...]
    key_heads: int
    first_kind: str
    first_heads: int
    lengths: tuple[tuple[int, int], ...]  # packed: rows and keys of each sentence
    packed_layout: str

    @classmethod
    def draw(
        cls, seed: int, features: tuple[str, ...] = FEATURES, dtype: torch.dtype | None = None, ordinary: bool = False
    ) -> "FeatureCase":
        """features: what a backend has; a case asks for one or two of them, or now and then for all. ordinary: no
        centers and widths with which plain formulas lose their digits."""
        pick = random.Random(f"features {seed}")
        case = Case.draw(seed, dtype)
        if ordinary:
            case = dataclasses.replace(case, center_kind="inside", width_kind="ordinary")
        count = pick.choice((1, 2, 2, 2, len(features)))
        asked = tuple(pick.sample(features, min(count, len(features))))
        heads, key_heads = pick.choice(HEADS) if "grouped heads" in asked else (case.heads, case.heads)
        shared = {name: pick.choice((1, heads)) for name in ("center_heads", "width_heads", "visible_heads")}
        lengths: tuple[tuple[int, int], ...] = ()
        if "packed batches" in asked:
            longest = pick.choice((3, 20, 70))
            lengths = tuple((pick.randint(0, longest), pick.randint(0, longest)) for _ in range(pick.randint(0, 7)))
        return cls(
            case=dataclasses.replace(case, heads=heads, **shared),
            features=asked,
            key_heads=key_heads,
            first_kind=pick.choice(FIRST_KINDS) if "first" in asked else "none",
            first_heads=pick.choice((1, heads)),
            lengths=lengths,
            packed_layout=pick.choice(("rows first", "heads first", "gaps")),
        )

    @property
    def dtype(self) -> torch.dtype:
        return self.case.dtype

    @property
    def packed(self) -> bool:
        return "packed batches" in self.features

    def sentences(self) -> list[Problem]:
        """The problems that make up the case: each sentence of a packed one, otherwise one batch."""
        if not self.packed:
            return [self._problem(self.case)]
        cases = (
            dataclasses.replace(self.case, seed=self.case.seed + 7919 * b, batch=1, rows=rows, keys=keys)
            for b, (rows, keys) in enumerate(self.lengths)
        )
        return [self._problem(case) for case in cases]

    def keep(self) -> list[Tensor | None]:
        """What dropout multiplies the weights of each problem with."""
        if not self.packed:
            return [kept_weights(self.case)]
        rows, keys = (max((pair[n] for pair in self.lengths), default=0) for n in (0, 1))
        padded = kept_weights(dataclasses.replace(self.case, batch=len(self.lengths), rows=rows, keys=keys))
        if padded is None:
            return [None] * len(self.lengths)
        return [padded[b : b + 1, :, :rows, :keys] for b, (rows, keys) in enumerate(self.lengths)]

    def _problem(self, case: Case) -> Problem:
        inputs, grad = case.build()
        # views: the strides of the case are kept
        inputs = inputs._replace(key=inputs.key[:, : self.key_heads], value=inputs.value[:, : self.key_heads])
        make = torch.Generator().manual_seed(case.seed + 1)
        first = self._first(case, inputs.visible, make)
        if first is not None:
            sees = torch.where(first < inputs.visible, inputs.visible, 0)
            center, width = spoil_dead_rows(inputs.center, inputs.width, sees)
            inputs = inputs._replace(center=center, width=width)
        grad_logsumexp = None
        if "logsumexp" in self.features:
            grad_logsumexp = torch.randn(grad.shape[:3], generator=make, dtype=torch.float64)
        real = real_dtype(case.dtype)
        return Problem(inputs, first, grad, None if grad_logsumexp is None else grad_logsumexp.to(real))

    def _first(self, case: Case, visible: Tensor, make: torch.Generator) -> Tensor | None:
        if self.first_kind == "none":
            return None
        shape = (case.batch, self.first_heads, case.rows)
        heard = (visible[:, :1] if self.first_heads == 1 else visible).clamp(max=case.keys).expand(shape)
        by_kind = {
            "window": lambda: heard - torch.randint(1, 20, (), generator=make),
            "ragged": lambda: torch.randint(0, case.keys + 2, shape, generator=make),
            "narrow": lambda: heard - 1,
            "zeros": lambda: torch.zeros(shape),
            "past visible": lambda: heard + torch.randint(-3, 4, shape, generator=make),
            "past the end": lambda: torch.full(shape, 2**31 - 1),
        }
        return by_kind[self.first_kind]().clamp(min=0).int()


class Packed(NamedTuple):
    """A packed call's tensors, [N, H, D] and [N, 1 or H]."""

    inputs: Inputs
    first: Tensor | None
    grad: Tensor
    grad_logsumexp: Tensor | None
    offsets: tuple[Tensor, Tensor]


def packed(case: FeatureCase) -> Packed:
    # one without rows more, so that there is something to join where there is no sentence
    empty = dataclasses.replace(case.case, batch=1, rows=0, keys=0)
    problems = [*case.sentences(), case._problem(empty)]

    def join(parts: list[Tensor | None]) -> Tensor | None:
        return None if parts[0] is None else torch.cat([x[0].transpose(0, 1) for x in parts])

    inputs = Inputs(*(join(list(parts)) for parts in zip(*(problem.inputs for problem in problems))))
    lay = {
        "rows first": lambda x: x,
        "heads first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "gaps": lambda x: lay_out(x[None], "packed")[0],
    }[case.packed_layout]
    inputs = Inputs(*(lay(x) for x in inputs[:3]), *inputs[3:])
    ends = torch.tensor([(0, 0), *case.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rest = (join([getattr(problem, name) for problem in problems]) for name in ("first", "grad", "grad_logsumexp"))
    return Packed(inputs, *rest, (ends[:, 0].contiguous(), ends[:, 1].contiguous()))


def run_features(
    case: FeatureCase, backend: str, dtype: torch.dtype | None = None, place: Callable[[Tensor], Tensor] = lambda x: x
) -> dict[str, Tensor]:
    """Every result of the case on a backend, from inputs rounded to the case's dtype and then computed in `dtype`.
    place: moves what goes in to the backend's device."""
    dtype = dtype or case.dtype
    settings = {**case.case.settings(), **case.case.dropout(), "backend": backend}
    asks = "logsumexp" in case.features
    offsets: Sequence[Tensor] = ()
    function = gma_kernels.gaussian_attention
    if case.packed:
        inputs, first, grad, grad_logsumexp, offsets = packed(case)
        function = gma_kernels.gaussian_attention_packed
    else:
        ((inputs, first, grad, grad_logsumexp),) = case.sentences()
    first, grad, grad_logsumexp, *offsets = (
        None if x is None else place(x) for x in (first, grad, grad_logsumexp, *offsets)
    )
    leaves = Inputs(*map(place, inputs if dtype == case.dtype else inputs.to(dtype))).leaves()
    found = function(*leaves, *offsets, first=first, return_logsumexp=asks, **settings)
    outputs, grads = (found, (grad.to(dtype), grad_logsumexp)) if asks else ((found,), (grad.to(dtype),))
    results = {"context": outputs[0].detach()}
    if asks:
        results["logsumexp"] = finite(outputs[1].detach())
        # a row that sees nothing ignores its gradient
        grads = (grads[0], grads[1].to(real_dtype(dtype)).masked_fill(outputs[1].detach() == -math.inf, math.nan))
    results |= dict(zip(GRADIENTS, torch.autograd.grad(outputs, leaves[:5], grads)))
    if not case.packed:
        weights = gma_kernels.attention_weights(
            *leaves.without_value(), first=first, **case.case.settings(), backend=backend
        )
        results["weights"] = weights.detach()
    return {name: x.cpu() for name, x in results.items()}


def run_general_yardstick(case: FeatureCase, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The same by plain PyTorch and its autograd, with every [T, S] intermediate rounded."""
    dtype = dtype or case.dtype
    parts: list[dict[str, Tensor]] = []
    problems = case.sentences()
    if case.packed:
        problems.append(case._problem(dataclasses.replace(case.case, batch=1, rows=0, keys=0)))
    for (inputs, first, grad, grad_logsumexp), keep in zip(problems, [*case.keep(), None]):
        leaves = (inputs if dtype == case.dtype else inputs.to(dtype)).leaves()
        context, weights, logsumexp = general_yardstick(leaves, first, case.case.prior, case.case.scale, keep)
        dead = logsumexp == -math.inf
        loss = (context * grad.to(dtype).masked_fill(dead[..., None], 0.0)).sum()
        results = {"context": context.detach()}
        if grad_logsumexp is not None:
            results["logsumexp"] = finite(logsumexp.detach())
            loss = loss + (logsumexp.masked_fill(dead, 0.0) * grad_logsumexp.to(logsumexp.dtype)).sum()
        grads = torch.autograd.grad(loss, leaves[:5], allow_unused=True)
        results |= {name: torch.zeros_like(x) if g is None else g for name, x, g in zip(GRADIENTS, leaves, grads)}
        if not case.packed:
            results["weights"] = weights.detach()
        parts.append(results)
    if not case.packed:
        return parts[0]
    return {name: torch.cat([part[name][0].transpose(0, 1) for part in parts]) for name in parts[0]}


def finite(logsumexp: Tensor) -> Tensor:
    """With a number that no row that sees something has in place of −∞."""
    return logsumexp.masked_fill(logsumexp == -math.inf, -math.pi)


def feature_failures(case: FeatureCase, backend: str, place: Callable[[Tensor], Tensor] = lambda x: x) -> list[str]:
    """A line for every result that is out of tolerance, or for the exception. place: see `run_features`."""
    try:
        # the oracle itself is held against plain formulas and autograd
        oracle = backend == "reference"
        exact = run_general_yardstick(case, torch.float64) if oracle else run_features(case, "reference", torch.float64)
        plain = run_general_yardstick(case)
        got = run_features(case, backend, place=place)
    except Exception as exception:
        return [f"{type(exception).__name__}: {exception} in {case}"]
    found = []
    for name, x in got.items():
        limit = allowed(error(plain[name], exact[name]), case.dtype)
        seen = error(x, exact[name])
        if not seen <= limit:
            found.append(f"{name}: error {seen:.3g} > {limit:.3g} in {case}")
    return found
