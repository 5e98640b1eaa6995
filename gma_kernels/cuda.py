"""The CUDA backend: whether its kernels are in the compiled extension, and which GPUs of this machine they fit."""

import re
from pathlib import Path

import torch

from gma_kernels.native import extension

REASON_FILE = Path(__file__).with_name("_cuda_missing.txt")
REMEDY = (
    "to have it, reinstall where there is a CUDA toolkit, from the source folder: "
    "GMA_CUDA=1 pip install --force-reinstall --no-deps ."
)

# compute capabilities of Jetson and its like
ON_A_CHIP = {(8, 7), (10, 1)}


def status() -> tuple[str, int, dict[int, str]]:
    """What is there or why nothing is, the number of GPUs, and why some are not served. Takes no memory on a device."""
    if extension is None:
        return "the compiled extension is missing, see backend 'native'; install that first", 0, {}
    architectures = extension.build_facts()["cuda_architectures"]
    if not architectures:
        reason = REASON_FILE.read_text().strip() if REASON_FILE.exists() else "it is not in the compiled extension"
        return f"{reason}; {REMEDY}", 0, {}
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA; install one of https://pytorch.org with it", 0, {}
    try:
        devices = extension.cuda_devices()
    except RuntimeError as error:
        return str(error), 0, {}
    unfit = {}
    for index, (name, major, minor) in enumerate(devices):
        if not fits((major, minor), architectures):
            device = f"cuda:{index} ({name}) has compute capability {major}.{minor}"
            unfit[index] = f"{device}, and the extension was built for {architectures}; {_unfit_remedy(major, minor)}"
    names = ", ".join(name for index, (name, *_) in enumerate(devices) if index not in unfit)
    return f"{names}; built for compute capability {architectures}", len(devices), unfit


def _unfit_remedy(major: int, minor: int) -> str:
    hide = "leave the device out of CUDA_VISIBLE_DEVICES, or use backend='auto'"
    return hide if major < 8 else f"reinstall with TORCH_CUDA_ARCH_LIST={major}.{minor}, or {hide}"


def fits(capability: tuple[int, int], architectures: str) -> bool:
    """Whether a device runs what was built: machine code of its major version, or PTX, not newer than itself."""
    for major, minor, specific, ptx in re.findall(r"(\d+)\.(\d)([af]?)(\+PTX)?", architectures):
        built = int(major), int(minor)
        # code for the features of one version, or for a system on a chip, runs on that version alone
        alone = specific or {built, capability} & ON_A_CHIP
        same = built == capability or (not alone and built[0] == capability[0])
        if built <= capability and (same or (ptx and not specific)):
            return True
    return False
