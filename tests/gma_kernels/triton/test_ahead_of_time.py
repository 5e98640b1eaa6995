"""Every kernel compiled for real parts with no GPU: no spills, shared memory within limits, tensor cores used."""

import itertools

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import compile_matrix, triton_resources, triton_roofline
from benchmarks.gpu.occupancy import PARTS, occupancy
from benchmarks.gpu.traffic import diagonal, traffic
from benchmarks.gpu.triton_resources import DTYPES, Compiled, compile_launch, example, launches

NVIDIA = ("8.0", "9.0", "10.0", "12.0")
TRAINING = ("forward", "backward_rows", "backward_keys")


def compiled(dtype: str, size: int, part: str, rows: int = 256, keys: int = 256, **settings) -> dict[str, Compiled]:
    steps = launches(example(DTYPES[dtype], size, rows, keys, **settings), part)
    return {name: compile_launch(step, name, dtype, size, part) for name, step in steps}


def assert_fits(found: dict[str, Compiled]) -> None:
    for name, (resources, _) in found.items():
        limit = PARTS[resources.capability].largest_shared_bytes
        assert resources.shared_bytes <= limit, f"{name} takes {resources.shared_bytes} of {limit} bytes"
        shape = (resources.capability, resources.threads, resources.registers, resources.shared_bytes)
        assert occupancy(*shape) > 0, name


# in every change one of each part; all by `make test-all`
CORNERS = {
    ("8.0", "float16", 64, 0.1),
    ("9.0", "bfloat16", 128, 0.0),
    ("10.0", "float16", 64, 0.0),
    ("12.0", "bfloat16", 128, 0.1),
}
KINDS = [
    pytest.param(*kind, marks=() if kind in CORNERS else pytest.mark.slow)
    for kind in itertools.product(NVIDIA, ("float16", "bfloat16"), (64, 128), (0.0, 0.1))
]


@pytest.mark.parametrize(("part", "dtype", "size", "dropout_p"), KINDS)
def test_16_bit_training_kernels_use_tensor_cores_and_spill_nothing_in_main_loops(part, dtype, size, dropout_p):
    found = compiled(dtype, size, part, dropout_p=dropout_p)
    assert_fits(found)
    for name in TRAINING:
        assert found[name].tensor_cores, f"{name} has no tensor-core instructions"
    assert_spills_in_main_loops(example(DTYPES[dtype], size, 256, 256, dropout_p), size, part, 0)


@pytest.mark.parametrize("size", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_a_window_spills_next_to_nothing(size):
    windowed = example(DTYPES["float16"], size, 256, 256, features=("first",))
    assert_spills_in_main_loops(windowed, size, "8.0", 0.01)


def assert_spills_in_main_loops(problem, size: int, part: str, share: float) -> None:
    """share: of what they issue, at most."""
    for name, step in launches(problem, part):
        if name in TRAINING:
            classes = triton_roofline.measure(name, step, size, part).classes
            assert classes["spill"] <= share * classes.total(), f"{name} has {classes['spill']} spills in its main loop"


def test_main_loops_of_the_oldest_part_issue_no_more_than_they_do():
    """Of warp instructions for a logit; FlashAttention-2 has 12.6 and 19.0 forward, 25 and 37 backward."""
    found = triton_roofline.rows()
    most = {"forward, D = 64": 18.2, "forward, D = 128": 24.0, "backward, D = 64": 60.5, "backward, D = 128": 90.0}
    assert {name: x.issued for name, x in found.items() if x.issued > most[name]} == {}
    least = {"forward, D = 64": 0.74, "forward, D = 128": 0.77, "backward, D = 64": 0.545, "backward, D = 128": 0.36}
    assert {name: x.roofline for name, x in found.items() if x.roofline < least[name]} == {}
    assert [name for name, x in found.items() if x.spills] == []


@pytest.mark.parametrize("kind", compile_matrix.SAMPLE, ids=lambda kind: "-".join(map(str, kind)))
def test_a_sample_of_all_kinds_of_calls_compiles(kind):
    assert compile_matrix.refusals(kind) == []


def test_the_sample_has_every_head_size_dtype_prior_row_count_and_part():
    for values, sampled in zip(zip(*compile_matrix.MATRIX), zip(*compile_matrix.SAMPLE)):
        assert set(sampled) == set(values)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_small_value_heads_can_be_trained(dtype):
    assert set(TRAINING) <= set(compiled(dtype, 8, "8.0", rows=32, keys=32))


@pytest.mark.slow
@pytest.mark.parametrize("prior", range(4))
@pytest.mark.parametrize("rows", [16, 32, 64])
def test_short_rows_and_every_prior_spill_next_to_nothing_in_main_loops(prior, rows):
    for size in (64, 128):
        assert_fits(compiled("float16", size, "8.0", rows=rows, prior=prior))
        assert_spills_in_main_loops(example(DTYPES["float16"], size, rows, 256, prior=prior), size, "8.0", 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("part", NVIDIA)
@pytest.mark.parametrize(("dtype", "size"), [("float16", 256), ("float32", 64), ("float32", 128), ("float32", 256)])
def test_every_other_kind_fits(part, dtype, size):
    assert_fits(compiled(dtype, size, part))


@pytest.mark.slow
@pytest.mark.parametrize("part", NVIDIA)
def test_odd_head_sizes_and_decoding_compile(part):
    assert_fits(compiled("bfloat16", 100, part))
    for keys in (100, 4096):
        found = compiled("bfloat16", 64, part, rows=1, keys=keys)
        assert set(found) == ({"decode"} if keys == 100 else {"decode", "join"})
        assert_fits(found)
        assert not any(x.resources.spills_bytes for x in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 128, 256])
def test_every_tile_that_autotuning_may_try_fits_the_smallest_part(columns):
    for dtype in ("float16", "float32"):
        problem = example(DTYPES[dtype], columns, 256, 256)
        for index in range(3):
            steps = launches(problem, "12.0", lambda kernel, options, i=index: options[min(i, len(options) - 1)])
            for name, step in steps:
                assert_fits({name: compile_launch(step, name, dtype, columns, "12.0")})


@pytest.mark.slow
def test_amd_code_objects_are_made():
    found = compiled("float16", 64, "gfx942")
    assert_fits(found)
    assert all(found[name].tensor_cores for name in TRAINING)


def test_traffic_is_at_least_the_least_and_grows_with_the_source_tiles_shared():
    for shape in ((2, 8, 32, 32), (1, 8, 512, 512)):
        for step in traffic(*shape, 64, triton_resources.DTYPES["float16"]):
            assert step.moved >= step.least > 0
    assert diagonal(4, 4) == [2, 3, 4, 4]
    short, long = (traffic(1, 1, n, n, 64, DTYPES["float16"])[0] for n in (32, 2048))
    assert short.moved == short.least
    assert long.moved > 4 * long.least


def test_occupancy_of_known_kernels():
    """By hand: 64 registers and 128 threads fill half of 65,536; shared memory of 99 KiB leaves one block."""
    assert occupancy("8.0", 128, 64, 0) == 0.5
    assert occupancy("9.0", 256, 32, 0) == 1.0
    assert occupancy("12.0", 128, 64, 99 * 1024) == 128 / 1536
    assert occupancy("12.0", 128, 64, 100 * 1024) == 0.0
    assert occupancy("8.0", 1024, 255, 0) == 0.0
