"""Triton decides when it is imported whether it compiles kernels or interprets them, for the whole process.

So the tests in `interpreted` are collected only where TRITON_INTERPRET=1 is set, and test_interpreter.py runs them in a
process of their own. To run one by hand: TRITON_INTERPRET=1 pytest tests/gma_kernels/triton/interpreted
"""

import os

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore = ["test_interpreter.py", "test_ahead_of_time.py"] if interpreted else ["interpreted"]
