"""What a command that translates need not wait for."""

import subprocess
import sys

PROGRAM = """
import sys
import torch

state = torch.get_rng_state()
from gma.decoding.streaming import StreamingTranslator

with StreamingTranslator.load().open_talk() as talk:
    print(len(talk.push("Guten Morgen. ")))
names = ("torch._dynamo", "sympy", "pandas", "matplotlib", "uvicorn", "gma.training")
print([name for name in names if name in sys.modules])
print(torch.equal(state, torch.get_rng_state()))
"""


def test_a_stream_starts_without_compiler_training_or_random_numbers():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    events, imported, same_state = run.stdout.splitlines()
    assert int(events) >= 3
    assert imported == "[]"
    assert same_state == "True"
