"""A sentence goes straight down through the rooms: one push of a stream enters every room once."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import gma
from gma.decoding.streaming import StreamingTranslator
from tests.support.small_models import small_loaded, small_model

PACKAGE = Path(gma.__file__).parent
KERNELS = "gma_kernels"
# a decorator, which calls what it decorates in the name of whoever called it
PASSES_ON = PACKAGE / "attention" / "uncompiled.py"


def room_of(filename: str) -> str | None:
    path = Path(filename)
    if PACKAGE in path.parents and path != PASSES_ON:
        return path.relative_to(PACKAGE).parts[0]
    return KERNELS if KERNELS in path.parts else None


def entrances(call: Callable[[], object]) -> list[tuple[str, str]]:
    """(room that calls, room that is called) for every pair of rooms, in the order of their first call."""
    found: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        callee, caller = room_of(frame.f_code.co_filename), frame.f_back
        while caller is not None and room_of(caller.f_code.co_filename) is None:
            caller = caller.f_back  # torch and the standard library lie in between
        if callee is not None and caller is not None:
            origin = room_of(caller.f_code.co_filename)
            if origin is not None and origin != callee:
                found.setdefault((origin, callee))

    before = sys.getprofile()  # of a debugger or a coverage tool
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(found)


@pytest.mark.parametrize("policy", ["gaussian", "gain", "wait_k", "monotonic", "itst", "offline"])
def test_a_push_enters_every_room_once(policy):
    stream = StreamingTranslator(small_loaded(small_model(0, policy=policy))).open()
    found = entrances(lambda: [*stream.push("ab c de f "), *stream.finish()])
    assert {("decoding", "text"), ("decoding", "model"), ("model", "policies"), ("attention", KERNELS)} <= set(found)
    entered = [room for _, room in found if room not in ("attention", KERNELS)]
    assert len(entered) == len(set(entered)), found
