"""The native CPU backend: loads the compiled library, or says why it is missing."""

from pathlib import Path

import torch

from gma_kernels.library import Library

LIBRARY_FILE = Path(__file__).with_name("_kernels.so")

extension: Library | None = None
failure = "there is no compiled library"
if LIBRARY_FILE.exists():
    try:
        extension = Library(LIBRARY_FILE)
    except (OSError, AttributeError) as error:  # for another machine, for another version of this package
        failure = f"it cannot be loaded ({error})"

TORCH_VERSION = torch.__version__.partition("+")[0]
AUTOGRAD_FILE = Path(__file__).with_name(f"_autograd_torch_{TORCH_VERSION}.so")
REASON_FILE = Path(__file__).with_name("_native_missing.txt")
REMEDY = (
    "to have it, reinstall where there is a C++ compiler, from the source folder: "
    "pip install --force-reinstall --no-deps ."
)


def _load_autograd() -> bool:
    if extension is None or not AUTOGRAD_FILE.exists():
        return False
    try:
        torch.ops.load_library(AUTOGRAD_FILE)
    except OSError:
        return False
    return True


# Whether autograd is in C++, too. The extension serves any torch since 2.10, csrc/torch/autograd.cpp only the version
# it was built with.
has_autograd: bool = _load_autograd()


def status() -> tuple[bool, str]:
    """Whether the extension can be used, and how it was built or why it is missing."""
    if extension is not None:
        try:
            built = f"{extension.simd_level()}, compiled by {extension.build_facts()['compiler']}"
            slower = f"; short calls with gradients take longer, until reinstalled with torch {TORCH_VERSION}"
            return True, built if has_autograd else built + slower
        except ValueError as error:
            return False, f"{error}; set the environment variable GMA_SIMD to one of these, or unset it"
    reason = REASON_FILE.read_text().strip() if REASON_FILE.exists() else failure
    return False, f"{reason}; {REMEDY}"
