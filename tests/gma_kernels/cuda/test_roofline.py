"""What the compiler makes of the main loops stays as good as it is: counted in machine code, nothing runs on a GPU."""

import shutil

import pytest

from benchmarks.gpu import roofline

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc, of the CUDA toolkit, is not on the PATH")


def test_main_loops_issue_no_more_than_they_do_and_spill_nothing():
    pytest.importorskip("triton")  # brings the disassembler
    found = roofline.rows(roofline.PLAN | roofline.OTHER_PRIORS)
    issued = {name: x.issued for name, x in found.items()}
    most = {"forward, D = 64": 15.0, "forward, D = 128": 23.6, "backward, D = 64": 45.0, "backward, D = 128": 66.0}
    assert {name: issued[name] for name in most if issued[name] > most[name]} == {}
    # a logarithm for each logit costs most where there are fewest columns to multiply
    of_another = {name: issued[name] / issued[name.rpartition(",")[0]] for name in roofline.OTHER_PRIORS}
    assert {
        name: x for name, x in of_another.items() if x > (1.46 if name == "backward, D = 64, linear" else 1.35)
    } == {}
    assert [name for name, x in found.items() if x.spills] == []
    for name in ("forward, D = 64", "forward, D = 128"):
        assert found[name].busiest == "tensor"
        assert found[name].blocks == "2"
    for name in ("backward, D = 64", "backward, D = 128"):
        assert found[name].roofline >= 0.6


def test_decoding_has_all_loads_on_their_way_before_the_first_use():
    pytest.importorskip("triton")
    found = roofline.decoding()
    assert found.loads_before_use == 8
    assert found.issued * 4 / found.kib <= 350
