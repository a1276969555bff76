"""The page of floors says what plans of this build price, and another page is seen."""
import os

from conftest import ROOT, shell

LTRAIN = os.environ.get("LTRAIN_BINARY", str(ROOT / "build" / "ltrain"))


def test_the_page_is_what_plans_price():
    done = shell(["python3", "scripts/gpu/kernel-floors.py", LTRAIN])
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_page_is_refused(tmp_path):
    for name in ("scripts/gpu/kernel-floors.py", "docs/measurements/kernel-floors.md", "runtime/machines/devices/h200.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text().replace("value: 4.8e12", "value: 4.7e12"))
    done = shell(["python3", str(tmp_path / "scripts/gpu/kernel-floors.py"), LTRAIN])
    assert done.returncode == 1 and "other than the page" in done.stderr


def test_loops_and_accesses_of_machine_code_are_counted():
    from conftest import script
    code = script("kernel-code")
    text = """
		Function : kernel
	.headerflags	@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                /* 0x00 */
                                                                         /* 0x00 */
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;          /* 0x00 */
        /*0020*/                   LDG.E.128 R4, desc[UR4][R8.64] ;      /* 0x00 */
        /*0030*/                   FADD R4, R4, R2 ;                     /* 0x00 */
        /*0040*/               @P0 STG.E.128 desc[UR4][R8.64], R4 ;      /* 0x00 */
        /*0050*/              @!P1 BRA 0x20 ;                            /* 0x00 */
        /*0060*/                   EXIT ;                                /* 0x00 */
        /*0070*/                   BRA 0x70;                             /* 0x00 */
"""
    got = code.figures(code.functions(text)["kernel"])
    assert got == {"wide_loads": 1, "narrow_loads": 1, "wide_stores": 1, "narrow_stores": 0, "instructions": 8,
                   "in_a_loop": True, "in_flight": 1, "a_pack": 2.0}
