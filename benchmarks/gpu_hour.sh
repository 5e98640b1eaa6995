#!/usr/bin/env bash
# For whoever has an NVIDIA GPU and an hour: installs, tests both GPU backends, looks for bad memory accesses, times
# forward and backward beside PyTorch's attention, FlexAttention and FlashAttention, and writes one page to send back.
#
#     bash benchmarks/gpu_hour.sh [PAGE]      (gpu-hour.md unless given)
#
# GMA_DRY=1 stops before the first step that needs a GPU, and says what would follow.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-gpu-hour.md}
python=build/gpu-hour/bin/python

step() {  # step TITLE COMMAND...: runs it, or names it; what fails is noted, and the rest goes on
  local title=$1
  shift
  if [ "${GMA_DRY:-0}" = 1 ]; then
    echo "would run: $*"
    return
  fi
  echo "== $title"
  { echo; echo "## $title"; echo; echo '```'; } >> "$page"
  "$@" 2>&1 | tee build/gpu-hour.log || echo "FAILED" | tee -a build/gpu-hour.log
  tail -40 build/gpu-hour.log >> "$page"
  echo '```' >> "$page"
}

mkdir -p build
if [ "${GMA_DRY:-0}" != 1 ]; then
  nvidia-smi > /dev/null || { echo "nvidia-smi finds no GPU; this script needs one, or GMA_DRY=1 to see what it does"; exit 1; }
  { echo "# GMA on a GPU"; echo; date -u; git log -1 --format='commit %h'; } > "$page"
fi
step "Machine" nvidia-smi
step "Environment" python3 -m venv build/gpu-hour
step "PyTorch" $python -m pip install --quiet "torch===2.13.0" "setuptools>=77" ninja
step "GMA with its CUDA kernels" env GMA_CUDA=1 $python -m pip install --quiet --no-build-isolation --editable .
step "Test tools" $python -m pip install --quiet --requirement tests/requirements.txt
step "Installation" $python tests/support/cuda_installation.py
step "Numeric tests" $python -m pytest -m gpu tests/gma_kernels/test_gpu.py --benchmark-disable
step "Memory accesses" compute-sanitizer --tool memcheck $python tests/support/cuda_installation.py
step "Races in shared memory" compute-sanitizer --tool racecheck $python tests/support/cuda_installation.py
step "Times" $python -m benchmarks.gpu.times
step "Times with measured Triton tiles" env GMA_TRITON_AUTOTUNE=1 $python -m benchmarks.gpu.times
[ "${GMA_DRY:-0}" = 1 ] || echo "please send $page"
