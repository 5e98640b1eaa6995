"""Wrong calls and the words of their errors: the argument, what was given and what is expected."""

import math

import pytest
import torch

import gma_kernels
from tests.support.numerics import simple_inputs

B, H, T, S, D, DV = 2, 3, 5, 7, 4, 6
QUERY = torch.zeros(B, H, T, D)
KEY = torch.zeros(B, H, S, D)
VALUE = torch.zeros(B, H, S, DV)
ROW = torch.ones(B, 1, T)
VISIBLE = torch.full((B, 1, T), S, dtype=torch.int32)
GOOD = {"query": QUERY, "key": KEY, "value": VALUE, "center": ROW, "width": ROW, "visible": VISIBLE}


def last_stride_2(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, dim=-1)[..., ::2]


def row(bad: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.ones(B, 1, T, dtype=dtype)
    x[1, 0, 3] = bad
    return x


# what is replaced, the error, words its message must hold besides the argument's name
WRONG_TENSORS = [
    ({"query": None}, TypeError, "NoneType torch.Tensor"),
    ({"query": [[1.0]]}, TypeError, "list torch.Tensor"),
    ({"query": torch.zeros(T, D)}, ValueError, "(5, 4) [B, H, T, D]"),
    ({"query": torch.zeros(B, T, D)}, ValueError, "(2, 5, 4) [B, H, T, D]"),
    ({"query": QUERY[None]}, ValueError, "(1, 2, 3, 5, 4) [B, H, T, D]"),
    ({"query": QUERY.int()}, TypeError, "torch.int32 torch.float32"),
    ({"query": QUERY.bool()}, TypeError, "torch.bool torch.float32"),
    ({"query": QUERY.to(torch.complex64)}, TypeError, "torch.complex64 torch.float32"),
    ({"query": QUERY.to(torch.float8_e4m3fn)}, TypeError, "torch.float8_e4m3fn torch.float32"),
    ({"query": torch.zeros(B, 0, T, D)}, ValueError, "(2, 0, 5, 4) head"),
    ({"query": torch.zeros(B, H, T, 0)}, ValueError, "D = 0 1 to 256"),
    ({"query": torch.zeros(B, H, T, 257)}, ValueError, "D = 257 1 to 256"),
    ({"query": last_stride_2(QUERY)}, ValueError, "stride 2 1 .contiguous()"),
    ({"query": QUERY.mT.contiguous().mT}, ValueError, "stride 5 1 .contiguous()"),
    ({"query": QUERY.to_sparse()}, TypeError, "torch.sparse_coo dense"),
    ({"key": 3.0}, TypeError, "float torch.Tensor"),
    ({"key": torch.zeros(B, S, D)}, ValueError, "(2, 7, 4) [B, H_kv, S, D]"),
    ({"key": KEY.double()}, TypeError, "torch.float64 torch.float32 query"),
    ({"key": KEY.half()}, TypeError, "torch.float16 torch.float32 query"),
    ({"key": KEY.to("meta")}, ValueError, "meta cpu query"),
    ({"key": torch.zeros(B + 1, H, S, D)}, ValueError, "(3, 3, 7, 4) [2, 1 or 3, S, 4]"),
    ({"key": torch.zeros(1, H, S, D)}, ValueError, "(1, 3, 7, 4) [2, 1 or 3, S, 4]"),
    ({"key": torch.zeros(B, 2, S, D)}, ValueError, "(2, 2, 7, 4) [2, 1 or 3, S, 4]"),
    ({"key": torch.zeros(B, H, S, D + 1)}, ValueError, "(2, 3, 7, 5) [2, 1 or 3, S, 4]"),
    ({"key": last_stride_2(KEY)}, ValueError, "stride 2 1 .contiguous()"),
    ({"key": KEY.to_sparse()}, TypeError, "torch.sparse_coo dense"),
    ({"center": 1.5}, TypeError, "float torch.Tensor"),
    ({"center": torch.ones(B, T)}, ValueError, "(2, 5) [2, 1 or 3, 5]"),
    ({"center": torch.ones(B, 2, T)}, ValueError, "(2, 2, 5) [2, 1 or 3, 5]"),
    ({"center": torch.ones(1, 1, T)}, ValueError, "(1, 1, 5) [2, 1 or 3, 5]"),
    ({"center": torch.ones(B, 1, T + 1)}, ValueError, "(2, 1, 6) [2, 1 or 3, 5]"),
    ({"center": torch.ones(B, 1, T, 1)}, ValueError, "(2, 1, 5, 1) [2, 1 or 3, 5]"),
    ({"center": ROW.double()}, TypeError, "torch.float64 torch.float32"),
    ({"center": ROW.half()}, TypeError, "torch.float16 torch.float32"),
    ({"center": ROW.long()}, TypeError, "torch.int64 torch.float32"),
    ({"center": ROW.to("meta")}, ValueError, "meta cpu query"),
    ({"center": ROW.to_sparse()}, TypeError, "torch.sparse_coo dense"),
    ({"center": row(math.nan)}, ValueError, "b=1 i=3 nan finite"),
    ({"center": row(math.inf)}, ValueError, "b=1 i=3 inf finite"),
    ({"width": "half"}, TypeError, "str torch.Tensor"),
    ({"width": torch.ones(B, 1, 1)}, ValueError, "(2, 1, 1) [2, 1 or 3, 5]"),
    ({"width": torch.ones(B, H + 1, T)}, ValueError, "(2, 4, 5) [2, 1 or 3, 5]"),
    ({"width": ROW.bfloat16()}, TypeError, "torch.bfloat16 torch.float32"),
    ({"width": ROW.to("meta")}, ValueError, "meta cpu query"),
    ({"width": row(0.0)}, ValueError, "b=1 i=3 0 positive"),
    ({"width": row(-1.5)}, ValueError, "b=1 i=3 -1.5 positive"),
    ({"width": row(math.nan)}, ValueError, "b=1 i=3 nan positive"),
    ({"width": row(math.inf)}, ValueError, "b=1 i=3 inf finite"),
    ({"visible": 4}, TypeError, "int torch.Tensor"),
    ({"visible": VISIBLE.long()}, TypeError, "torch.int64 torch.int32"),
    ({"visible": VISIBLE.float()}, TypeError, "torch.float32 torch.int32"),
    ({"visible": VISIBLE.bool()}, TypeError, "torch.bool torch.int32"),
    ({"visible": VISIBLE[0]}, ValueError, "(1, 5) [2, 1 or 3, 5]"),
    ({"visible": torch.ones(B, 1, S, dtype=torch.int32)}, ValueError, "(2, 1, 7) [2, 1 or 3, 5]"),
    ({"visible": VISIBLE.to("meta")}, ValueError, "meta cpu query"),
    ({"visible": row(-1, torch.int32)}, ValueError, "b=1 i=3 -1 0 or more"),
    ({"visible": row(-(2**31), torch.int32)}, ValueError, "b=1 i=3 -2147483648 0 or more"),
]
WRONG_VALUES = [
    ({"value": None}, TypeError, "NoneType torch.Tensor"),
    ({"value": torch.zeros(B, S, DV)}, ValueError, "(2, 7, 6) [B, H_kv, S, Dv]"),
    ({"value": torch.zeros(B, H, S + 1, DV)}, ValueError, "(2, 3, 8, 6) [2, 3, 7, Dv]"),
    ({"value": torch.zeros(B, 1, S, DV)}, ValueError, "(2, 1, 7, 6) [2, 3, 7, Dv]"),
    ({"value": torch.zeros(B, H, S, 0)}, ValueError, "Dv = 0 1 to 256"),
    ({"value": torch.zeros(B, H, S, 300)}, ValueError, "Dv = 300 1 to 256"),
    ({"value": VALUE.double()}, TypeError, "torch.float64 torch.float32 query"),
    ({"value": VALUE.to("meta")}, ValueError, "meta cpu query"),
    ({"value": last_stride_2(VALUE)}, ValueError, "stride 2 1 .contiguous()"),
]
WRONG_SETTINGS = [
    ({"prior": "gausian"}, ValueError, "'gausian' 'gaussian' 'laplace' 'linear' 'none'"),
    ({"prior": None}, ValueError, "None 'gaussian'"),
    ({"prior": 0}, ValueError, "0 'gaussian'"),
    ({"scale": math.nan}, ValueError, "nan finite"),
    ({"scale": math.inf}, ValueError, "inf finite"),
    ({"scale": "1"}, TypeError, "str number"),
    ({"scale": torch.ones(2)}, TypeError, "Tensor number"),
    ({"scale": True}, TypeError, "bool number"),
    ({"backend": "cudnn"}, ValueError, "'cudnn' 'auto' 'reference' 'native' 'triton' 'cuda'"),
    ({"backend": ""}, ValueError, "'' 'auto'"),
    ({"backend": None}, ValueError, "None 'auto'"),
    ({"backend": ["native"]}, (TypeError, ValueError), "native 'auto'"),
]
WRONG_DROPOUT = [
    ({"dropout_p": -0.1}, ValueError, "-0.1 0 <= dropout_p < 1"),
    ({"dropout_p": 1.0}, ValueError, "1.0 0 <= dropout_p < 1"),
    ({"dropout_p": math.nan}, ValueError, "nan 0 <= dropout_p < 1"),
    ({"dropout_p": "0.1"}, TypeError, "str number"),
    ({"dropout_p": None}, TypeError, "NoneType number"),
    ({"seed": 1.5, "dropout_p": 0.1}, TypeError, "seed float int"),
    ({"seed": "x", "dropout_p": 0.1}, TypeError, "seed str int"),
    ({"seed": True, "dropout_p": 0.1}, TypeError, "seed bool int"),
    ({"seed": 2**63, "dropout_p": 0.1}, ValueError, "seed 9223372036854775808 64-bit"),
    ({"seed": -(2**63) - 1, "dropout_p": 0.1}, ValueError, "seed 64-bit"),
    ({"seed": torch.tensor([1]), "dropout_p": 0.1}, ValueError, "seed (1,) 0-d int64"),
    ({"seed": torch.tensor(1, dtype=torch.int32), "dropout_p": 0.1}, ValueError, "seed torch.int32 0-d int64"),
    ({"seed": torch.tensor(1.0), "dropout_p": 0.1}, ValueError, "seed torch.float32 0-d int64"),
    ({"seed": torch.tensor(1, device="meta"), "dropout_p": 0.1}, ValueError, "seed meta cpu query"),
    ({"seed": "x"}, TypeError, "seed str int"),
]


def describe(case: tuple) -> str:
    changes, kind, words = case
    return f"{'_'.join(changes)}-{getattr(kind, '__name__', 'error')}-{words}".replace(" ", "_")


def assert_refused(function, changes: dict, kind: type[Exception], words: str, arguments: dict) -> None:
    with pytest.raises(kind) as refusal:
        function(**{**arguments, **changes})
    message = str(refusal.value)
    missing = [word for word in (next(iter(changes)), *words.split(" ")) if word not in message]
    assert not missing, f"{message!r} lacks {missing}"


def without_value() -> dict:
    return {name: x for name, x in GOOD.items() if name != "value"}


def test_the_good_call_is_good(backend):
    assert gma_kernels.gaussian_attention(**GOOD, backend=backend).shape == (B, H, T, DV)
    assert gma_kernels.attention_weights(**without_value(), backend=backend).shape == (B, H, T, S)


@pytest.mark.parametrize("case", WRONG_TENSORS + WRONG_VALUES + WRONG_SETTINGS + WRONG_DROPOUT, ids=describe)
def test_gaussian_attention_refuses(backend, case):
    assert_refused(gma_kernels.gaussian_attention, *case, {**GOOD, "backend": backend})


@pytest.mark.parametrize("case", WRONG_TENSORS + WRONG_SETTINGS, ids=describe)
def test_attention_weights_refuses(backend, case):
    assert_refused(gma_kernels.attention_weights, *case, {**without_value(), "backend": backend})


@pytest.mark.parametrize("name", ["center", "width"])
def test_rows_of_a_float64_query_must_be_float64(backend, name):
    inputs = simple_inputs()._asdict()
    inputs[name] = inputs[name].float()
    with pytest.raises(TypeError, match=rf"{name}.*torch.float32.*torch.float64"):
        gma_kernels.gaussian_attention(**inputs, backend=backend)


def test_options_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        gma_kernels.gaussian_attention(*GOOD.values(), "gaussian")
