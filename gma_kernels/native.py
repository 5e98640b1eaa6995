"""The native CPU backend: loads the compiled extension, or says why it is missing."""

from pathlib import Path

try:
    # importing it registers its kernels, also for exported programs that never come through our functions
    from gma_kernels import _C as extension
except ImportError as error:
    extension, failure = None, error

REASON_FILE = Path(__file__).with_name("_native_missing.txt")
REMEDY = (
    "to have it, reinstall where there is a C++ compiler, from the source folder: "
    "pip install 'setuptools>=77' 'pybind11>=2.13' && pip install --no-build-isolation --force-reinstall --no-deps ."
)


def status() -> tuple[bool, str]:
    """Whether the extension can be used, and how it was built or why it is missing."""
    if extension is not None:
        try:
            return True, f"{extension.simd_level()}, compiled by {extension.build_facts()['compiler']}"
        except ValueError as error:
            return False, f"{error}; set the environment variable GMA_SIMD to one of these, or unset it"
    reason = REASON_FILE.read_text().strip() if REASON_FILE.exists() else f"it cannot be loaded ({failure})"
    return False, f"{reason}; {REMEDY}"
