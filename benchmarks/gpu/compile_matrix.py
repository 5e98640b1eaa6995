"""Every kind of Triton kernel compiled for every part with no GPU: what the interpreter runs the compiler may refuse.

python -m benchmarks.gpu.compile_matrix compiles the whole matrix, more than an hour's work of two cores; tests compile
a sample.
"""

import itertools
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from rich.progress import track

from benchmarks.gpu.triton_resources import DTYPES, compile_launch, example, launches
from gma_kernels.backends import FEATURES

HEAD_SIZES = (8, 32, 64, 128, 256)  # padded to 16, 32, …
PRIORS = range(4)
ROWS = (1, 16, 128)
CAPABILITIES = ("8.0", "9.0", "10.0", "12.0")
KEYS = 128


class Kind(NamedTuple):
    """One point of the matrix."""

    head_size: int
    dtype: str
    prior: int
    dropout_p: float
    rows: int
    capability: str
    features: tuple[str, ...] = ()


PLAIN = tuple(Kind(*kind) for kind in itertools.product(HEAD_SIZES, DTYPES, PRIORS, (0.0, 0.1), ROWS, CAPABILITIES))
# each alone and all together; parts, priors and dropout take turns
WITH_FEATURES = tuple(
    Kind(size, dtype, count // 4 % 4, (0.0, 0.1)[count // 16 % 2], rows, CAPABILITIES[count % 4], features)
    for count, (features, size, dtype, rows) in enumerate(
        itertools.product((*((x,) for x in FEATURES), FEATURES), HEAD_SIZES, DTYPES, ROWS)
    )
)
MATRIX = PLAIN + WITH_FEATURES
# every value of every dimension, in few kinds
SAMPLE = PLAIN[::131] + WITH_FEATURES[::29]


def refusals(kind: Kind) -> list[str]:
    """What the compiler says of the kernels it refuses."""
    found = []
    dtype = DTYPES[kind.dtype]
    problem = example(dtype, kind.head_size, kind.rows, KEYS, kind.dropout_p, kind.prior, kind.features)
    for name, step in launches(problem, kind.capability, with_logsumexp="logsumexp" in kind.features):
        try:
            compile_launch(step, name, kind.dtype, kind.head_size, kind.capability)
        except Exception as error:
            complaint = str(error).strip().splitlines() or [type(error).__name__]
            found.append(f"{name} of {kind}: {complaint[-1]}")
    return found


def main(kinds: Iterable[Kind] = MATRIX) -> None:
    found = []
    kinds = tuple(kinds)
    with ProcessPoolExecutor() as pool:
        for complaints in track(pool.map(refusals, kinds), "compiling", total=len(kinds)):
            found += complaints
    print(*found, sep="\n")
    print(f"{len(kinds)} kinds of calls compiled, {len(found)} kernels refused")


if __name__ == "__main__":
    main()
