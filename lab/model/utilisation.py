"""Model FLOPs utilisation: achieved over peak operations of the device; None where the peak is unknown."""

from __future__ import annotations

# dense bf16 tensor operations per second, from the vendors' data sheets
PEAK_FLOPS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "L40S": 362e12,
    "A10G": 70e12,
    "V100": 125e12,
}


def peak_flops(device_name: str | None) -> float | None:
    """Look up a device's peak, None for a CPU or a GPU that is not in the table."""
    words = (device_name or "").replace("-", " ").split()
    return next((peak for name, peak in PEAK_FLOPS.items() if set(name.split()) <= set(words)), None)


def utilisation(flops_per_token: float, tokens_per_s: float, peak: float | None, n_devices: int) -> float | None:
    """Return achieved over peak operations of all devices."""
    return flops_per_token * tokens_per_s / (peak * n_devices) if peak else None
