from __future__ import annotations

import pytest
import torch

from slipstream_kernels.models.checkpoint.quantisation.layouts import quantised_weight
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.ops.quantised_weight import decode


def weight(outputs: int = 48, inputs: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    sizes = 2.0 ** torch.randint(-12, 0, (outputs, 1), generator=generator)
    return (torch.randn(outputs, inputs, generator=generator) * sizes).bfloat16()


def there_and_back(form: RoundedFormat, original: torch.Tensor) -> torch.Tensor:
    """As it is read from a file."""
    quantisation = read_quantisation({"quantization_config": form.config(["lm_head"])})
    assert quantisation is not None and quantisation.scheme_of("lm_head") is None and quantisation.notices == ()
    scheme = quantisation.scheme_of("model.layers.0.mlp.up_proj")
    assert scheme is not None
    return decode(quantised_weight(scheme, form.rounded(original), *original.shape, "up_proj")).double()


def test_no_weight_of_eight_bits_is_further_off_than_half_a_step() -> None:
    original = weight()
    error = (there_and_back(RoundedFormat("fp8"), original) - original.double()).abs()
    largest = original.double().abs().amax(1, keepdim=True)
    # Three bits of mantissa, subnormals 2^-10 of the least normal number apart, and bfloat16's own rounding.
    bound = torch.maximum(original.double().abs() * (2.0**-4 + 2.0**-8), largest / 448 * 2.0**-9)
    assert (error <= bound).all()


@pytest.mark.parametrize("group", [32, 64, 128])
def test_four_bits_are_no_worse_than_the_scale_of_the_largest_element(group: int) -> None:
    original = weight()
    wide = original.double().view(48, -1, group)
    scale = torch.maximum(wide.amax(2, keepdim=True) / 7, -wide.amin(2, keepdim=True) / 8).bfloat16().double()
    plain = ((wide / scale).round().clamp(-8, 7) * scale - wide).square().sum(2)
    got = (there_and_back(RoundedFormat("w4a16", group), original).view(48, -1, group) - wide).square().sum(2)
    assert (got <= plain * 1.05 + 1e-12).all()  # decoded weights are rounded to bfloat16 as well
    assert got.sum() < 0.95 * plain.sum()


@pytest.mark.parametrize("name", ["fp8", "w4a16"])
def test_rows_of_zeros_and_weights_of_any_size(name: str) -> None:
    form = RoundedFormat(name)  # type: ignore[arg-type]
    assert not there_and_back(form, torch.zeros(16, 128, dtype=torch.bfloat16)).any()
    for size in (1e-37, 1e30):
        assert there_and_back(form, weight(16, 128) * size).isfinite().all()


def test_what_cannot_be_rounded() -> None:
    assert RoundedFormat("fp8").takes((16, 48)) and not RoundedFormat("w4a16", 32).takes((16, 48))
    with pytest.raises(ValueError, match="group is 48, supported are 32, 64, 128"):
        RoundedFormat("w4a16", 48)
