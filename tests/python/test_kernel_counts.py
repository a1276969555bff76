"""Every op of a CUDA source has its bytes counted, by tests/cuda_traffic or by the traffic tests of tests/cuda."""
import re

from conftest import ROOT

# An op that tests call by another name: through what chooses the kernel, or with a kernel's name in a variable.
CALLED = {
    "momentum": "momentum_update(", "matmul_fp8_blocks": "matmul_fp8(",
    "grouped_gemm": "grouped_matmul(", "grouped_gemm_mma": 'kernel : {"mma"', "grouped_gemm_wgmma": '"wgmma"}',
    "attention_mma_forward": '"mma", seq', "attention_mma_backward": '"mma", seq',
    "attention_wgmma_forward": '"wgmma", seq', "attention_wgmma_backward": '"wgmma", seq',
}
# Sources without an op of a step: the comparison of attention's kernels on small problems, and the question whether a
# card runs this build.
WITHOUT = {"attention_check_cuda.cu", "probe_cuda.cu"}


def uncounted(tests):
    """[source: op] of those that no text of `tests` calls."""
    missing = []
    for source in sorted(ROOT.glob("kernels/*/*_cuda.cu")):
        if source.name in WITHOUT:
            continue
        text = source.read_text()
        ops = re.findall(r"^void (\w+)_cuda\(", text, re.M) or re.findall(r"^void (\w+)\(", text, re.M)
        assert ops, f"{source} has no op"
        missing += [f"{source.name}: {op}" for op in ops if CALLED.get(op, f"{op}(") not in tests]
    return missing


def traffic_tests():
    sources = [*ROOT.glob("tests/cuda_traffic/*_test.cpp"), *ROOT.glob("tests/cuda/*traffic_test.cpp")]
    return "".join(p.read_text() for p in sources)


def test_every_op_has_a_count():
    assert uncounted(traffic_tests()) == []


def test_an_op_without_a_count_is_found():
    assert uncounted(traffic_tests().replace("head_norm_backward(", "").replace('"mma", seq', "")) == [
        "attention_mma_backward_cuda.cu: attention_mma_backward", "attention_mma_forward_cuda.cu: attention_mma_forward",
        "head_norm_cuda.cu: head_norm_backward"]
