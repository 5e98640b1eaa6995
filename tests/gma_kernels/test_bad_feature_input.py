"""Wrong calls of what the operator takes beyond the plain call: a left bound, packed batches, `merge`."""

import math

import pytest
import torch

import gma_kernels
from tests.gma_kernels.test_bad_input import (
    DV,
    GOOD,
    WRONG_DROPOUT,
    WRONG_SETTINGS,
    WRONG_TENSORS,
    WRONG_VALUES,
    B,
    D,
    H,
    S,
    T,
    assert_refused,
    describe,
    last_stride_2,
    row,
    without_value,
)

INT32 = torch.int32
FIRST = torch.zeros(B, 1, T, dtype=INT32)
WRONG_FIRST = [
    ({"first": 3}, TypeError, "int torch.Tensor"),
    ({"first": [[0] * T] * B}, TypeError, "list torch.Tensor"),
    ({"first": FIRST.long()}, TypeError, "torch.int64 torch.int32"),
    ({"first": FIRST.float()}, TypeError, "torch.float32 torch.int32"),
    ({"first": FIRST.bool()}, TypeError, "torch.bool torch.int32"),
    ({"first": FIRST[0]}, ValueError, "(1, 5) [2, 1 or 3, 5]"),
    ({"first": FIRST[:1]}, ValueError, "(1, 1, 5) [2, 1 or 3, 5]"),
    ({"first": FIRST[..., :1]}, ValueError, "(2, 1, 1) [2, 1 or 3, 5]"),
    ({"first": torch.zeros(B, 2, T, dtype=INT32)}, ValueError, "(2, 2, 5) [2, 1 or 3, 5]"),
    ({"first": torch.zeros(B, 1, S, dtype=INT32)}, ValueError, "(2, 1, 7) [2, 1 or 3, 5]"),
    ({"first": FIRST.to("meta")}, ValueError, "meta cpu query"),
    ({"first": FIRST.to_sparse()}, TypeError, "torch.sparse_coo dense"),
    ({"first": row(-1, INT32)}, ValueError, "b=1 i=3 -1 0 or more"),
    ({"first": row(-(2**31), INT32)}, ValueError, "b=1 i=3 -2147483648 0 or more"),
]
# seen behind the bound only
BOUNDED_VALUES = [
    ({"center": row(math.nan)}, ValueError, "b=1 i=3 nan finite visible > first"),
    ({"width": row(-1.0)}, ValueError, "b=1 i=3 -1 positive visible > first"),
]
N, M = 4, 6
PACKED = {
    "query": torch.zeros(N, H, D),
    "key": torch.zeros(M, H, D),
    "value": torch.zeros(M, H, DV),
    "center": torch.ones(N, 1),
    "width": torch.ones(N, 1),
    "visible": torch.full((N, 1), 3, dtype=INT32),
    "cu_query": torch.tensor([0, 1, N], dtype=INT32),
    "cu_key": torch.tensor([0, 3, M], dtype=INT32),
}


def ends(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=INT32)


WRONG_PACKED = [
    ({"query": None}, TypeError, "NoneType torch.Tensor"),
    ({"query": torch.zeros(1, N, H, D)}, ValueError, "(1, 4, 3, 4) [N, H, D]"),
    ({"query": torch.zeros(N, 0, D)}, ValueError, "(4, 0, 4) head"),
    ({"query": torch.zeros(N, H, 300)}, ValueError, "D = 300 1 to 256"),
    ({"query": torch.zeros(N, H, D, dtype=torch.int64)}, TypeError, "torch.int64 torch.float32"),
    ({"query": last_stride_2(torch.zeros(N, H, D))}, ValueError, "stride 2 1 .contiguous()"),
    ({"key": torch.zeros(M, D)}, ValueError, "(6, 4) [M, H_kv, D]"),
    ({"key": torch.zeros(M, 2, D)}, ValueError, "(6, 2, 4) [M, 1 or 3, 4]"),
    ({"key": torch.zeros(M, H, D + 1)}, ValueError, "(6, 3, 5) [M, 1 or 3, 4]"),
    ({"key": torch.zeros(M, H, D).double()}, TypeError, "torch.float64 torch.float32 query"),
    ({"value": torch.zeros(M + 1, H, DV)}, ValueError, "(7, 3, 6) [6, 3, Dv]"),
    ({"value": torch.zeros(M, 1, DV)}, ValueError, "(6, 1, 6) [6, 3, Dv]"),
    ({"value": torch.zeros(M, H, 257)}, ValueError, "Dv = 257 1 to 256"),
    ({"value": torch.zeros(M, H, DV).half()}, TypeError, "torch.float16 torch.float32 query"),
    ({"center": torch.ones(N)}, ValueError, "(4,) [4, 1 or 3]"),
    ({"center": torch.ones(N, 2)}, ValueError, "(4, 2) [4, 1 or 3]"),
    ({"center": torch.ones(M, 1)}, ValueError, "(6, 1) [4, 1 or 3]"),
    ({"center": torch.ones(N, 1).double()}, TypeError, "torch.float64 torch.float32"),
    ({"width": torch.ones(N, 1, 1)}, ValueError, "(4, 1, 1) [4, 1 or 3]"),
    ({"width": torch.zeros(N, 1)}, ValueError, "0 positive"),
    ({"visible": torch.ones(N, 1)}, TypeError, "torch.float32 torch.int32"),
    ({"visible": torch.full((N, 1), -1, dtype=INT32)}, ValueError, "-1 0 or more"),
    ({"first": torch.zeros(N, 2, dtype=INT32)}, ValueError, "(4, 2) [4, 1 or 3]"),
    ({"first": torch.zeros(N, 1)}, TypeError, "torch.float32 torch.int32"),
    ({"first": torch.full((N, 1), -1, dtype=INT32)}, ValueError, "-1 0 or more"),
    ({"cu_query": None}, TypeError, "NoneType torch.Tensor"),
    ({"cu_query": [0, 1, N]}, TypeError, "list torch.Tensor"),
    ({"cu_query": ends()}, ValueError, "(0,) [sentences + 1]"),
    ({"cu_query": torch.tensor(0, dtype=INT32)}, ValueError, "() [sentences + 1]"),
    ({"cu_query": ends(0, 1, N)[None]}, ValueError, "(1, 3) [sentences + 1]"),
    ({"cu_query": ends(0, 1, N).long()}, TypeError, "torch.int64 torch.int32"),
    ({"cu_query": ends(0, 1, N).to("meta")}, ValueError, "meta cpu query"),
    ({"cu_query": ends(1, 1, N)}, ValueError, "1 4 from 0 to 4"),
    ({"cu_query": ends(0, 1, N - 1)}, ValueError, "0 3 from 0 to 4"),
    ({"cu_query": ends(0, 1, N + 1)}, ValueError, "0 5 from 0 to 4"),
    ({"cu_query": ends(0, 5, N)}, ValueError, "5 4 never to fall"),
    ({"cu_query": ends(0, -1, N)}, ValueError, "0 -1 never to fall"),
    ({"cu_key": 7}, TypeError, "int torch.Tensor"),
    ({"cu_key": ends(0, M)}, ValueError, "(2,) [3] cu_query"),
    ({"cu_key": ends(0, 3, M).float()}, TypeError, "torch.float32 torch.int32"),
    ({"cu_key": ends(0, 7, M)}, ValueError, "7 6 never to fall"),
    ({"cu_key": ends(-1, 3, M)}, ValueError, "-1 6 from 0 to 6"),
    ({"cu_key": ends(0, 3, 2**31 - 1)}, ValueError, "0 2147483647 from 0 to 6"),
]
PART, FOUND = torch.zeros(B, H, T, DV), torch.zeros(B, H, T)
WRONG_PARTS = [
    ({"contexts": PART}, TypeError, "torch.Tensor list"),
    ({"contexts": []}, ValueError, "0 parts 2 1 or more"),
    ({"contexts": [PART]}, ValueError, "1 parts 2"),
    ({"contexts": [PART, None]}, TypeError, "contexts[1] NoneType torch.Tensor"),
    ({"contexts": [PART, PART[..., :2]]}, ValueError, "contexts[1] [2, 3, 5, 2] [2, 3, 5, 6]"),
    ({"contexts": [PART, PART.half()]}, ValueError, "contexts[1] torch.float16 torch.float32"),
    ({"logsumexps": [FOUND[0], FOUND[0]]}, ValueError, "logsumexps[0] (3, 5) [2, 3, 5]"),
    ({"logsumexps": FOUND}, TypeError, "torch.Tensor list"),
    ({"logsumexps": [FOUND]}, ValueError, "2 parts 1"),
    ({"logsumexps": [FOUND, 0.0]}, TypeError, "logsumexps[1] float torch.Tensor"),
    ({"logsumexps": [FOUND, FOUND[..., :2]]}, ValueError, "logsumexps[1] (2, 3, 2) [2, 3, 5]"),
    ({"logsumexps": [FOUND, FOUND.double()]}, TypeError, "logsumexps[1] torch.float64 torch.float32"),
    ({"logsumexps": [FOUND.int(), FOUND.int()]}, TypeError, "logsumexps[0] torch.int32 floating-point"),
]


@pytest.mark.parametrize(
    "case", WRONG_FIRST + WRONG_TENSORS + WRONG_VALUES + WRONG_SETTINGS + WRONG_DROPOUT, ids=describe
)
def test_gaussian_attention_with_a_left_bound_refuses(backend, case):
    assert_refused(gma_kernels.gaussian_attention, *case, {**GOOD, "first": FIRST, "backend": backend})


@pytest.mark.parametrize("case", WRONG_FIRST + BOUNDED_VALUES, ids=describe)
def test_weights_and_moments_with_a_left_bound_refuse(backend, case):
    for function in (gma_kernels.attention_weights, gma_kernels.position_moments):
        assert_refused(function, *case, {**without_value(), "first": FIRST, "backend": backend})


@pytest.mark.parametrize("case", WRONG_PACKED + WRONG_SETTINGS + WRONG_DROPOUT, ids=describe)
def test_packed_batches_refuse(backend, case):
    assert_refused(gma_kernels.gaussian_attention_packed, *case, {**PACKED, "backend": backend})


def test_the_good_packed_call_is_good(backend):
    assert gma_kernels.gaussian_attention_packed(**PACKED, backend=backend).shape == (N, H, DV)


@pytest.mark.parametrize("case", WRONG_PARTS, ids=describe)
def test_merge_refuses(case):
    assert_refused(gma_kernels.merge, *case, {"contexts": [PART, PART], "logsumexps": [FOUND, FOUND]})
