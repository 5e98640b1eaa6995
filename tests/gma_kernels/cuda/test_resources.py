"""The report on the CUDA kernels reads what ptxas says."""

from benchmarks.gpu import cuda_resources

PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN3gma14forward_kernelIfLi64EEEvi' for 'sm_80'
ptxas info    : Function properties for _ZN3gma14forward_kernelIfLi64EEEvi
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 64 bytes smem, 720 bytes cmem[0]
ptxas info    : Compile time = 293.444 ms
ptxas info    : Compiling entry function '_ZN3gma14forward_kernelIfLi64EEEvi' for 'sm_120'
ptxas info    : Function properties for _ZN3gma14forward_kernelIfLi64EEEvi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 720 bytes cmem[0]
"""


def test_registers_spills_and_shared_memory_are_read():
    name = "_ZN3gma14forward_kernelIfLi64EEEvi"
    assert cuda_resources.parse_ptxas(PTXAS) == [(name, "8.0", 32, 28, 64), (name, "12.0", 40, 0, 0)]
