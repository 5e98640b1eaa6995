"""The native CPU backend: loads the compiled extension, or says why it is missing."""

import functools
from pathlib import Path

REASON_FILE = Path(__file__).with_name("_native_missing.txt")
REMEDY = "reinstall with a C++ compiler: pip install --no-build-isolation --force-reinstall --no-deps ."


@functools.cache
def status() -> tuple[bool, str]:
    """Whether the extension can be used, and how it was built or why it is missing."""
    try:
        from gma_kernels import _C
    except ImportError as error:
        reason = REASON_FILE.read_text().strip() if REASON_FILE.exists() else f"the extension is not built ({error})"
        return False, f"{reason}; {REMEDY}"
    return True, f"{_C.simd_level()} on {_C.build_facts()['compiler']}"
