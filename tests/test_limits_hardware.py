"""The table of hardware: names as drivers give them, figures that fit together, limits by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.limits import LimitsHardwareError, by_hand, hardware, hardware_of, known
from flatout.record import Hardware
from tests import records


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("H200 NVL 141GB", "H200 NVL"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("nvidia geforce rtx 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("AMD Instinct MI300X", "Instinct MI300X"),
        ("MI300X", "Instinct MI300X"),
        ("Apple M2 Ultra", "Apple M2 Ultra"),
        ("NVIDIA GB10", "GB10"),
        ("AMD Ryzen AI Max+ 395", "Strix Halo"),
    ],
)
def test_names(name: str, entry: str) -> None:
    assert hardware(name).name == entry


def test_the_table_fits_together() -> None:
    entries = known()
    assert len({entry.name for entry in entries}) == len(entries) >= 40
    for entry in entries:
        assert entry.source and 50 < entry.bandwidth_gb_s < 20_000, entry
        assert hardware(entry.name) == entry
        peaks = entry.tflops
        assert all(math.isfinite(value) and 10 < value < 50_000 for value in peaks.values())
        if "fp8" in peaks:
            assert peaks["fp8"] == pytest.approx(2 * max(peaks["bf16"], peaks["fp16"]), rel=0.02), entry
        if "fp4" in peaks and "fp8" in peaks:
            assert peaks["fp4"] == pytest.approx(2 * peaks["fp8"], rel=0.01), entry


def test_peaks_fall_back_to_what_the_gpu_has() -> None:
    a100, h200, m2 = hardware("A100 40GB"), hardware("H200 NVL"), hardware("Apple M2 Ultra")
    assert a100.peak_flops("fp8") == a100.peak_flops("bf16") == 312e12
    assert h200.peak_flops("fp4") == h200.peak_flops("fp8") == 1670.5e12
    assert m2.peak_flops("bf16") is None and hardware("GB10").peak_flops("bf16") is None
    assert hardware("RTX 4090").peak_flops("bf16") == 330.3e12


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(LimitsHardwareError, match=r"did you mean .*H200 NVL.*--bandwidth"):
        hardware("H200 NVLL")
    with pytest.raises(LimitsHardwareError, match="no hardware is named"):
        hardware(None)
    with pytest.raises(LimitsHardwareError, match="not in the table; give --bandwidth"):
        hardware("zzzzzzzzzzzzzzzz")


def test_by_hand() -> None:
    cpu = hardware("EPYC 9654", bandwidth_gb_s=460.8, tflops=5.5)
    assert (cpu.name, cpu.bytes_per_s, cpu.peak_flops("fp8")) == ("EPYC 9654", 460.8e9, 5.5e12)
    measured = hardware("H200 NVL", bandwidth_gb_s=4321.0)
    assert measured.bandwidth_gb_s == 4321 and measured.tflops == hardware("H200 NVL").tflops
    assert "bandwidth as typed" in measured.source
    assert hardware("Apple M2 Ultra", tflops={"fp16": 27.2}).peak_flops("bf16") == 27.2e12
    assert by_hand(100).peak_flops("bf16") is None
    for bad in (0, -1, math.nan, math.inf, 1e12):
        with pytest.raises(LimitsHardwareError):
            by_hand(bad)
        with pytest.raises(LimitsHardwareError):
            by_hand(100, bad)
    with pytest.raises(LimitsHardwareError, match="no precision"):
        by_hand(100, {"fp3": 1.0})


@given(st.text(max_size=60))
def test_any_name_is_found_or_told(name: str) -> None:
    try:
        assert hardware(name).bandwidth_gb_s > 0
    except LimitsHardwareError as error:
        assert "--bandwidth" in str(error)


def test_from_a_record() -> None:
    record = records.seed_page()
    found = hardware_of(record)
    assert found is not None and found.name == "H200 NVL"

    def of(**facts: str | float) -> object:
        made = {name: records.fact(value) for name, value in facts.items()}
        return hardware_of(record.model_copy(update={"hardware": Hardware(describes="server", facts=made)}))

    assert of(gpu="A100", gpu_memory_gb=80) == hardware("A100 80GB SXM")
    assert of(gpu="H100 80GB HBM3", gpu_memory_gb=79.6) == hardware("H100 SXM")
    assert of(gpu="Something else") is None and of(cpu="Xeon") is None
    assert of(gpu="H200", gpu_2="L4") is None
    client = Hardware(describes="client only", facts={"gpu": records.fact("H200")})
    assert hardware_of(record.model_copy(update={"hardware": client})) is None
