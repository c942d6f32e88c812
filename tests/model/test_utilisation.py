import pytest

from lab.model.utilisation import peak_flops, utilisation


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        # dense bf16 operations per second of the vendors' data sheets
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
    ],
)
def test_known_devices(device, peak):
    assert peak_flops(device) == peak


@pytest.mark.parametrize("device", [None, "", "cpu", "NVIDIA GeForce RTX 4090", "NVIDIA RTX A1000 Laptop GPU"])
def test_unknown_hardware_has_no_peak(device):
    assert peak_flops(device) is None


def test_utilisation_by_hand():
    # 8e9 operations per token at 50,000 tokens per second: 4e14 of 2 * 1e15 is a fifth
    assert utilisation(8e9, 50_000, 1e15, 2) == pytest.approx(0.2)
    assert utilisation(8e9, 50_000, None, 2) is None
