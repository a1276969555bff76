"""What ptxas gives up is an error, and so are exponentials that no product runs beside."""
import pytest
from conftest import ROOT, script, shell

SERIAL = ("ptxas info    : (C7513) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma "
          "instructions defining accumulator registers of a wgmma between start and end of the pipeline stage in the function "
          "'_Z6kernelv'\n")
SAID = ("ptxas info    : Compiling entry function '_Z6kernelv' for 'sm_90a'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 168 registers, used 1 barriers\n")


def compiled(tmp_path, said):
    """keep-resources.sh with a compiler that says this, and what it leaves."""
    (tmp_path / "said").write_text(said)
    compiler = tmp_path / "nvcc"
    compiler.write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\ntouch {tmp_path}/x.o\n")
    compiler.chmod(0o755)
    done = shell([str(ROOT / "scripts/gpu/keep-resources.sh"), str(compiler), "x.cu", "-o", str(tmp_path / "x.o")])
    return done, sorted(p.name for p in tmp_path.glob("x.o*"))


def test_what_ptxas_says_of_kernels_is_kept_beside_the_object(tmp_path):
    done, left = compiled(tmp_path, SAID)
    assert (done.returncode, done.stderr, left) == (0, "", ["x.o", "x.o.resources"])
    assert "Used 168 registers" in (tmp_path / "x.o.resources").read_text()


@pytest.mark.parametrize("code", ["C7510", "C7513", "C7515", "C7508"])
def test_products_that_ptxas_serialises_fail_the_build(tmp_path, code):
    done, left = compiled(tmp_path, SAID + SERIAL.replace("C7513", code))
    assert done.returncode == 1 and left == []
    assert f"({code})" in done.stderr and "in the function 'kernel()'" in done.stderr


def loop(*body):
    """Machine code of a kernel whose loop has this body, with a wait for copies that was moved behind its end."""
    lines = ["MOV R1, R2", "HGMMA.64x128x16.F32 R24, gdesc[UR8], RZ, !UPT, gsb0", *body, "@P0 BRA 0x20", "EXIT",
             "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR14+0x28018], R15", "@!P0 BRA 0x%x" % (16 * (len(body) + 4)), "BRA 0x30"]
    text = "\t\tFunction : kernel\n" + "".join(f"        /*{16 * i:04x}*/  {line} ;   /* 0x00 */\n" for i, line in enumerate(lines))
    return script("kernel-code").functions(text)["kernel"]


PRODUCTS = ["HGMMA.64x128x16.F32 R24, gdesc[UR8], R24", "HGMMA.64x128x16.F32 R24, gdesc[UR8], R24, gsb0"] * 4
WAIT, LAST, EXP = "WARPGROUP.DEPBAR.LE gsb0, 0x1", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "MUFU.EX2 R5, R5"


def test_exponentials_are_counted_between_the_waits_of_the_loop():
    products = script("kernel-products")
    got = products.figures(loop(*PRODUCTS, WAIT, EXP, EXP, EXP, LAST, "FADD R1, R1, R2"))
    assert got == {"products": 8, "moves": 0, "waits": [[1, 3], [0, 0]]}
    assert products.refusals({"kernel": got}) == []
    around = products.figures(loop(EXP, LAST, *PRODUCTS, WAIT, EXP))  # the loop ends behind the first wait
    assert around == {"products": 8, "moves": 0, "waits": [[0, 0], [1, 2]]} and products.refusals({"kernel": around}) == []


def test_a_wait_that_was_moved_up_is_refused():
    products = script("kernel-products")
    moved = products.figures(loop(*PRODUCTS, WAIT, EXP, LAST, EXP, EXP))
    assert products.refusals({"kernel": moved}) == [
        "kernel computes 2 of the 3 exponentials of its loop behind a wait that they do not need"]
    alone = products.figures(loop(*PRODUCTS, LAST, EXP))
    assert "1 of the 1 exponentials" in products.refusals({"kernel": alone})[0]


def test_serialised_products_and_kernels_without_a_loop_are_refused():
    products = script("kernel-products")
    each = [x for p in PRODUCTS[:4] for x in (p, LAST)]
    assert products.refusals({"kernel": products.figures(loop(*each))}) == ["kernel waits 4 times for 4 products"]
    assert products.refusals({"kernel": products.figures(loop(EXP))}) == ["kernel has products in no loop"]


def test_descriptors_in_the_registers_of_lanes_are_refused():
    products = script("kernel-products")
    few = products.figures(loop(*["R2UR UR9, R5"] * 4, *PRODUCTS, WAIT, EXP, LAST))
    assert few["moves"] == 4 and products.refusals({"kernel": few}) == []
    each = products.figures(loop(*[x for p in PRODUCTS for x in ("R2UR UR8, R4", "R2UR UR9, R5", p)], WAIT, EXP, LAST))
    assert products.refusals({"kernel": each}) == [
        "kernel makes descriptors of its 8 products in the lanes' registers: 16 R2UR"]
