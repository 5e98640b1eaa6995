"""What ninja compiles and links, with which flags: `native` and `autograd`, and of the first the part `cuda`."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from build_support.cuda_toolkit import Toolkit

# the kernels need infinities and NaN to behave, so no -ffast-math
FLAGS = ["-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
# the oldest torch whose stable ABI the library may rely on: 2.10
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# a library of its own, because it relies on all of the torch it is built with; without it the package is only slower
AUTOGRAD = Path("csrc/torch/autograd.cpp")
# with CUDA the first is compiled beside the kernels, without it the second
CUDA_BINDING, CUDA_STAND_IN = Path("csrc/torch/binding_cuda.cpp"), Path("csrc/cuda/absent.cpp")
# one unit per SIMD level, chosen from at run time; nothing else may use these flags, or it would die on older CPUs
AVX2 = ["-mavx2", "-mfma"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVEL_FLAGS = {"avx2": AVX2, "avx512": AVX512} if IS_X86 else {}
LEVEL_FLAGS |= {f"avx512_{name}": [*AVX512, f"-mavx512{name}"] for name in ("bf16", "vnni") if IS_X86}
# stays where it is, so that the next build compiles what has changed
FOLDER = Path("build", f"ninja-{platform.system()}-{platform.machine()}")
RULES = f"""builddir = {FOLDER}
rule compile
  command = $compiler -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = $in
rule link
  command = $linker -o $out
  description = $out
"""


class Failure(Exception):
    """The first complaint of what ninja ran."""


def write(compiler: list[str], includes: list[str], libraries: list[str], toolkit: Toolkit | None) -> None:
    """The plan of a build with CUDA or, without a toolkit, without."""
    extra = {name: shlex.split(os.environ.get(name, "")) for name in ("CXXFLAGS", "LDFLAGS")}
    base = [*compiler, *FLAGS, *extra["CXXFLAGS"], f'-DGMA_BUILD_FLAGS="{" ".join(FLAGS)}"', *includes]
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if platform.system() == "Darwin" else ["-shared"]
    link = [*compiler, *shared, *extra["CXXFLAGS"], *extra["LDFLAGS"]]
    plan = [RULES]

    def compiled(source: Path, command: list[str]) -> str:
        target = FOLDER / f"{'_'.join(source.parts)}.o"
        plan.append(f"build {target}: compile {source}\n  compiler = {quoted(command)}")
        return str(target)

    def linked(name: str, objects: list[str], flags: list[str], beside: str = "") -> str:
        target = FOLDER / f"{name}.so"
        plan.append(f"build {target}: link {' '.join(objects)}{beside}\n  linker = {quoted([*link, *objects, *flags])}")
        return str(target)

    cuda, runtime = [], []
    if toolkit:
        # first: they take longest
        cuda = [compiled(source, toolkit.compile_command()) for source in sorted(Path("csrc/cuda").glob("*.cu"))]
        cuda.append(compiled(CUDA_BINDING, [*base, STABLE_ABI]))
        runtime = toolkit.libraries()
        # some toolkits come without the static runtime, which must not cost the CPU part
        plan.append(f"build cuda: phony {' '.join(cuda)} {linked('cuda_runtime', [], runtime)}")
    sources = set(Path("csrc").glob("**/*.cpp")) - {AUTOGRAD, CUDA_BINDING, *([CUDA_STAND_IN] if toolkit else [])}
    objects = [compiled(source, [*base, *LEVEL_FLAGS.get(source.stem, []), STABLE_ABI]) for source in sorted(sources)]
    autograd = [compiled(AUTOGRAD, [*base, "-std=c++20"])]
    native = linked("native", [*objects, *cuda], [*libraries, *runtime], " | cuda" if toolkit else "")
    plan.append(f"build native: phony {native}")
    plan.append(f"build autograd: phony {linked('autograd', autograd, [*libraries, '-lc10'])}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "build.ninja").write_text("\n".join([*plan, ""]))


def build_what_can_be() -> None:
    """Everything in the plan, past failures."""
    run("-k", "0")


def build(target: str) -> Path:
    """Bring one target up to date."""
    done = run(target)
    if done.returncode:
        complaint = re.search(r"^.*(\berror\b|cannot find).*$", done.stdout, re.MULTILINE)
        raise Failure(complaint.group().strip() if complaint else done.stdout[-200:])
    return FOLDER / f"{target}.so"


def run(*arguments: str) -> subprocess.CompletedProcess:
    on_path = shutil.which("ninja")
    program = [on_path] if on_path else [sys.executable, "-m", "ninja"]
    jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count())
    command = [*program, "-f", str(FOLDER / "build.ninja"), "-j", jobs, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    return done


def quoted(command: list[str]) -> str:
    return shlex.join(command).replace("$", "$$")
