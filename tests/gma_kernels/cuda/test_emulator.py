"""The emulator itself: right kernels give the right results in every order, planted bugs are noticed by name."""

import pytest

from tests.support.cuda_emulator import EXIT_CODES, ORDERS, build, execute, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

RIGHT = ("neighbour", "neighbour in warp", "copied neighbour", "matrix", "product", "rounding")
NOTICED = {
    "divergent barrier": "threads reach __syncthreads on different lines",
    "lane left": "threads wait for each other for ever",
    "different masks": "lanes meet with different masks",
    "different operations": "lanes meet in different operations",
    "foreign lane": "shuffle from a lane that does not take part",
    "too much shared memory": "bytes of shared memory",
    "misaligned copy": "cp.async to a misaligned address",
    "misaligned matrix": "ldmatrix from a misaligned address",
}
RACES = ("no barrier", "shuffle for a fence", "copy without barrier", "blocks write one place")


def run(name: str, flavour: str = "plain", **settings) -> tuple[str | int, str]:
    """Who ended the program ('emulator', 'address', 'thread') or its exit code, and what it said."""
    done = execute(build("planted", flavour, 64), name, **settings)
    return EXIT_CODES.get(done.returncode, done.returncode), done.stderr


@pytest.mark.parametrize("flavour", ["plain", "address", "thread"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_are_right_in_every_order_and_clean(name, order, flavour):
    assert run(name, flavour, order=order) == (0, "")


@pytest.mark.parametrize("name", NOTICED)
def test_misuse_is_noticed_and_named(name):
    by, said = run(name)
    assert by == "emulator"
    assert NOTICED[name] in said


def test_what_was_not_waited_for_is_not_there():
    assert [run("copy without wait", order=order)[0] for order in ORDERS] == [1, 1, 1, 1]


@pytest.mark.parametrize("name", RACES)
def test_races_are_seen_by_thread_sanitizer(name):
    by, said = run(name, "thread", threads=2)
    assert by == "thread"
    assert "data race" in said


def test_a_missing_barrier_shows_in_some_order():
    assert {run("no barrier", order=order)[0] for order in ORDERS} != {0}


def test_leaving_shared_memory_is_seen_by_address_sanitizer():
    by, said = run("past shared memory", "address")
    assert by == "address"
    assert "heap-buffer-overflow" in said
