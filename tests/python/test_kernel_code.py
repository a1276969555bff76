"""Loads in flight are counted along machine code, and a tile's loads that wait for each other are refused."""
import pytest
from conftest import script

LOADS = [f"LDG.E.128 R{r}, desc[UR10][R{40 + r // 4 * 2}.64]" for r in (4, 8, 12, 16)]
USE = "FMUL R3, R5, R2"
COPIES = ["LDGSTS.E.BYPASS.128 [R27+0x4080], desc[UR10][R30.64], !P0", "LDGSTS.E.BYPASS.128 [R27+0x5080], desc[UR10][R6.64]",
          "LDGDEPBAR"]
WAIT_BUT_ONE, WAIT_ALL = "DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0"


def in_flight(*lines, loop=False):
    body = [*lines, *(["@P0 BRA 0x0"] if loop else []), "EXIT"]
    text = "\t\tFunction : kernel\n" + "".join(f"        /*{16 * i:04x}*/  {line} ;   /* 0x00 */\n" for i, line in enumerate(body))
    code = script("kernel-code")
    return code.figures(code.functions(text)["kernel"])["in_flight"]


@pytest.mark.parametrize("lines, expected", [
    ([*LOADS, USE, "FADD R3, R17, R3"], 4),
    ([*LOADS[:2], USE, *LOADS[2:], "FADD R3, R17, R3"], 3),  # one is back before the others start
    ([*LOADS[:1], USE, *LOADS[1:2], "FADD R3, R9, R3"], 1),
    ([*LOADS, "STG.E.128 desc[UR10][R2.64], R4"], 4),  # a value to store is needed
    ([*LOADS, "STG.E.64 desc[UR10][R18.64], R22"], 4),  # and so is an address
    ([*LOADS, "MOV R5, R2", "EXIT"], 0),  # never waited for
])
def test_loads_are_in_flight_until_a_value_is_used(lines, expected):
    assert in_flight(*lines) == expected


def test_loads_of_the_next_turn_are_in_flight_at_the_end_of_a_loop():
    assert in_flight(USE, "FADD R3, R9, R3", *LOADS[:2], loop=True) == 2


def test_copies_are_in_flight_until_their_group_is_waited_for():
    assert in_flight(*COPIES, *COPIES, WAIT_BUT_ONE, WAIT_ALL) == 4
    assert in_flight(*COPIES, WAIT_ALL, *COPIES, WAIT_ALL) == 2
    assert in_flight(*COPIES, *COPIES, WAIT_BUT_ONE, *COPIES, WAIT_BUT_ONE) == 4


def test_a_kernel_that_waits_within_its_tile_is_refused():
    code = script("kernel-code")
    row = lambda n: {"quantize: quantize_tiles_of_packs<E4m3, bf16, true, true>": {"in_flight": n, "a_pack": 54.0}}
    assert code.refusals(row(4)) == []
    assert code.refusals(row(3)) == ["quantize: quantize_tiles_of_packs<E4m3, bf16, true, true> has 3 loads in flight, expected 4"]
    slow = {"rope: rope_packs<bf16, true>": {"in_flight": 1, "a_pack": 80.0}}
    assert code.refusals(slow) == ["rope: rope_packs<bf16, true> takes 80.0 instructions for 16 bytes, expected at most 74"]
