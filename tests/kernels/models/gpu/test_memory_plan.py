from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.model_form import ModelForm
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.plain_attention import PlainAttention
from slipstream_kernels.models.gpu.forward.weights import weight_bytes
from slipstream_kernels.models.gpu.memory_plan import (
    GpuMemoryPlan,
    OutOfDeviceMemoryError,
    available_bytes,
    plan_memory,
)
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.rope import Rope

LLAMA_8B = ModelConfig(
    family="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
    num_kv_heads=8, head_dim=128, rms_norm_eps=1e-5, rope=Rope(5e5), max_context=131072,
    tie_word_embeddings=False, eos_token_ids=(), bos_token_id=None,
)  # fmt: skip
GIB = 1 << 30


def plan(
    limits: GpuLimits,
    available: int,
    *,
    size: int = 1,
    mode: str = "exact",
    plain: bool = False,
    config: ModelConfig = LLAMA_8B,
) -> GpuMemoryPlan:
    shard = Shard(config, 0, size)
    return plan_memory(shard, limits, mode=mode, plain=plain, graphs=100, available=available, on_host=False)


def test_a_large_model_on_a_large_device() -> None:
    found = plan(GpuLimits(max_running=256, max_context=32768), 126 * GIB)
    assert found.weights == weight_bytes(Shard(LLAMA_8B)) == 16_060_522_496
    assert found.pages == found.num_pages * 16 * 131072
    assert found.scratch == 512 * 131072
    assert found.needed <= found.available < found.needed + 16 * 131072
    assert found.num_pages * 16 > 800_000
    assert str(found).startswith("weights 14.96 GiB, ") and str(found).endswith("of 126.00 GiB available")


def test_a_large_mixture_of_experts() -> None:
    """Qwen3-30B-A3B: 30.5 G weights in bfloat16, as published, and what experts compute beside them."""
    experts = ExpertForm(count=128, chosen=8, size=768, layers=(True,) * 48, normalised=True)
    config = replace(
        LLAMA_8B, family="qwen3_moe", vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_layers=48,
        num_kv_heads=4, form=ModelForm(head_norms=True, experts=experts), max_context=40960,
    )  # fmt: skip
    limits = GpuLimits(max_context=8192)
    found = plan(limits, 80 * GIB, config=config)
    assert found.weights == weight_bytes(Shard(config)) == 2 * 30_532_122_624
    pairs = limits.max_rows * 8
    assert found.activations > pairs * (2 * 768 + 4 * 2048)
    with pytest.raises(OutOfDeviceMemoryError, match=r"weights 56\.87 GiB, .* of 48\.00 GiB .* more GPUs than 1 "):
        plan(limits, 48 * GIB, config=config)


def test_ranks_share_weights_and_pages() -> None:
    limits = GpuLimits(max_context=8192)
    one, two = plan(limits, 80 * GIB), plan(limits, 80 * GIB, size=2)
    assert two.weights < 0.6 * one.weights and two.num_pages > 2 * one.num_pages


def test_a_library_takes_its_share() -> None:
    limits = GpuLimits(max_context=8192)
    found = plan(limits, 80 * GIB, mode="fast", plain=True)
    own = found.partials - plan(limits, 80 * GIB, mode="fast").partials
    assert own == PlainAttention.num_bytes(Shard(LLAMA_8B), limits) > 256 << 20
    assert found.needed <= found.available


def test_a_full_context_at_least_or_a_refusal() -> None:
    limits = GpuLimits(max_context=131072, max_running=8)
    with pytest.raises(OutOfDeviceMemoryError, match=r"8192 KV pages of 16\.00 GiB .* of 24\.00 GiB available; lower"):
        plan(limits, 24 * GIB)


@pytest.mark.parametrize(("longest", "num_pages"), [(131072, 0), (10_485_760, 0), (10_485_760, 64)])
def test_a_refusal_names_the_longest_context_that_fits(longest: int, num_pages: int) -> None:
    """One of 10 M positions, as Llama 4 Scout's, has tables for all of them, whatever its pages."""
    config, room = replace(LLAMA_8B, max_context=longest), 24 * GIB
    limits = GpuLimits(max_context=longest, max_running=8, num_pages=num_pages)
    with pytest.raises(OutOfDeviceMemoryError, match=r"max_context \(max_context \d+ fits\)") as refused:
        plan(limits, room, config=config)
    fits = int(str(refused.value).split("(max_context ")[1].split()[0])
    assert 1024 <= fits < longest
    assert plan(replace(limits, max_context=fits), room, config=config).needed <= room
    with pytest.raises(OutOfDeviceMemoryError):
        plan(replace(limits, max_context=fits + 1024), room, config=config)


def test_a_refusal_names_no_context_where_none_fits() -> None:
    with pytest.raises(OutOfDeviceMemoryError, match="lower num_pages, max_context, max_running"):
        plan(GpuLimits(max_context=131072), 16 * GIB)


def test_pages_that_are_named_are_taken() -> None:
    found = plan(GpuLimits(max_context=4096, num_pages=1000), 60 * GIB)
    assert found.num_pages == 1000 and found.needed < 25 * GIB
    fast = plan(GpuLimits(max_context=4096, num_pages=1000), 60 * GIB, mode="fast")
    assert fast.activations > found.activations


def test_a_small_model_takes_no_more_of_a_large_device_than_strides_can_tell() -> None:
    config = replace(LLAMA_8B, hidden_size=384, intermediate_size=1024, num_layers=8, num_heads=3, num_kv_heads=1)
    limits = GpuLimits(max_context=4096)

    def of(num_pages: int) -> GpuMemoryPlan:
        named = replace(limits, num_pages=num_pages)
        return plan_memory(Shard(config), named, mode="exact", graphs=100, available=130 * GIB, on_host=False)

    most = of(0).num_pages
    slots = most * limits.page_size + limits.scratch_slots
    assert slots * config.head_dim < 2**31 <= (slots + limits.page_size) * config.head_dim
    assert of(most).num_pages == most
    with pytest.raises(OutOfDeviceMemoryError, match=rf"num_pages is {most + 1}, at most {most} can be addressed"):
        of(most + 1)


def test_the_host_has_memory() -> None:
    assert 0 < available_bytes(torch.device("cpu"), 0.5) < available_bytes(torch.device("cpu"), 1.0)
    assert Path("/proc/meminfo").exists()
