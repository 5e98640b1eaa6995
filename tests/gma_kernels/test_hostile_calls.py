"""Direct calls of the torch operators with impossible arguments: an exception, never a crash.

All calls of a backend run in one child process, so that a crash is one failed test that names the call it died in.
"""

import importlib.util
import json
import os
import subprocess
import sys

from gma_kernels.native import extension
from tests.support.processes import ROOT

PROGRAM = """
import json, sys, torch
import gma_kernels
from tests.support.hostile_calls import hostile_calls

gma_kernels.backends()
for name, operator, arguments in hostile_calls(sys.argv[1]):
    print(json.dumps([name, "started"]), flush=True)
    try:
        operator(*arguments)
        print(json.dumps([name, "returned"]), flush=True)
    except Exception as error:
        print(json.dumps([name, type(error).__name__]), flush=True)
"""


def assert_all_raise(backend: str, **environment: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, f"died with {result.returncode} in {events[-1:]}\n{result.stderr[-2000:]}"
    outcome = dict(events)
    assert len(outcome) >= 50
    # the dispatcher sends a call with any meta tensor to the fake, which has nothing to read
    silent = [name for name, what in outcome.items() if what == "returned" and "on meta" not in name]
    assert not silent, "returned instead of raising:\n" + "\n".join(silent)


def test_every_hostile_call_raises_and_none_crashes(backend):
    assert_all_raise(backend, **({"GMA_SIMD": extension.simd_level()} if backend == "native" else {}))


def test_hostile_calls_of_the_gpu_backends_on_the_cpu():
    assert_all_raise("cuda")
    assert_all_raise("triton")
    if importlib.util.find_spec("triton"):
        assert_all_raise("triton", TRITON_INTERPRET="1")
