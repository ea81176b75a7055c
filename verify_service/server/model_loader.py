"""From settings to a model that is ready to serve, or the reason why there is none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from slipstream.model_folder import no_such_folder
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.capture_layers import boundaries_of
from slipstream_kernels.models.checkpoint.cache_scales import kv_form
from slipstream_kernels.models.checkpoint.fingerprint import Fingerprint, fingerprint
from slipstream_kernels.models.checkpoint.head_boundaries import expected_boundaries
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.served_config import OPTION, served_config
from slipstream_kernels.models.cpu.adapter_table import most_adapter_bytes
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.kv_form import KVForm
from slipstream_kernels.stage_times import StageTimes
from verify_service.config import VerifySettings
from verify_service.model_runner.factory import TargetModel
from verify_service.server.host_kernels import begin_compiling
from verify_service.server.memory_plan import check_feature_memory, plan_memory
from verify_service.server.warm_up import warm_up

if TYPE_CHECKING:
    from slipstream_kernels.models.gpu.batch.limits import GpuLimits
    from slipstream_kernels.models.gpu.gpu_model import GpuModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, compiled and probed, with the sizes that were settled on the way."""

    model: TargetModel
    fingerprint: Fingerprint
    num_pages: int
    max_context: int
    kv_cache_dtype: str


def load(settings: VerifySettings, times: StageTimes | None = None) -> Loaded:
    """Read the weights, settle the memory, compile every kernel, and see that rows keep their bits; takes seconds.

    `times` is told of the stages. Raises FailedPreconditionError where device, libraries or memory will not do,
    CheckpointError for the folder.
    """
    times = times or StageTimes()
    if not settings.model.is_dir():
        raise FailedPreconditionError(f"--model: {no_such_folder(settings.model)}")
    _log.info("loading %s", settings.model)
    max_context = _checked_context(settings)
    alone_on_cpu = settings.on_cpu and settings.tensor_parallel_size == 1
    form = kv_form(settings.model, ModelConfig.from_folder(settings.model), settings.kv_cache_dtype)
    load_here = _load_cpu if alone_on_cpu else _load_gpu_model
    model, num_pages = load_here(settings, max_context, form, times)
    warm_up(model, settings.engine_config(num_pages))
    times.end("first steps")
    if settings.mode == "exact" and not _keeps_bits(model):
        raise FailedPreconditionError(
            f"on device {settings.device!r} a row's bits depend on its neighbours: exact mode cannot be kept here"
        )
    dtype = form.name("float32" if alone_on_cpu else "bfloat16")
    times.end("checks")
    identity = fingerprint(settings.model, fp8_activations=settings.linear_activations == "fp8")
    return Loaded(model, identity, num_pages, max_context, dtype)


def _checked_context(settings: VerifySettings) -> int:
    """The longest context, once the model is known to have what is asked of it."""
    config = served_config(settings.model, fp8_activations=settings.linear_activations == "fp8")
    known = boundaries_of(config.num_layers)
    if not set(settings.feature_boundaries) <= set(known):
        raise FailedPreconditionError(
            f"--feature-boundaries are {list(settings.feature_boundaries)}, the model has 0 to {known[-1]}"
        )
    longest = config.max_context
    if settings.max_context > longest:
        raise FailedPreconditionError(f"--max-context is {settings.max_context}, the model's context is {longest}")
    return settings.max_context or longest


def _expected_boundaries(settings: VerifySettings) -> tuple[int, ...]:
    """Boundaries that the configured proposers will likely read, with those that the operator wants; none if too many.

    Those that turn out to read others have graphs captured for them when they attach.
    """
    num_layers = ModelConfig.from_folder(settings.model).num_layers
    configured = settings.configured_proposers.items()
    wanted = {each for given in configured for each in expected_boundaries(*given, num_layers)}
    expected = sorted((wanted & set(boundaries_of(num_layers))) | set(settings.feature_boundaries))
    return tuple(expected) if len(expected) <= settings.max_boundaries else ()


def _load_cpu(settings: VerifySettings, max_context: int, form: KVForm, times: StageTimes) -> tuple[CausalLM, int]:
    model = CausalLM.load(settings.model, device=settings.device, threads=settings.threads, kv_form=form)
    times.end("weights")
    plan = plan_memory(
        num_pages=settings.num_pages,
        page_size=settings.page_size,
        kv_bytes_per_token=model.kv_bytes_per_token(),
        max_context=max_context,
        max_running=settings.running,
        max_nodes=settings.max_nodes,
        feature_bytes=settings.feature_bytes,
        adapter_bytes=settings.adapter_slots * most_adapter_bytes(model.config, settings.max_lora_rank),
    )
    _log.info("memory: %s; KV cache in %s", plan, form.name("float32"))
    return model, plan.num_pages


def _load_gpu_model(
    settings: VerifySettings, max_context: int, form: KVForm, times: StageTimes
) -> tuple[TargetModel, int]:
    """The GPU's engine; on the CPU, where only ranks of a shared model need it, it is made of the ops' twins."""
    _check_triton(settings)
    if not settings.on_cpu:
        _check_cuda(settings, form)
    import slipstream_kernels.models.gpu.gpu_model  # noqa: F401  # before a second thread needs parts of it
    from slipstream_kernels.models.gpu.batch.limits import GpuLimits
    from slipstream_kernels.models.gpu.forward.flashinfer_attention import FlashInferError
    from slipstream_kernels.models.gpu.memory_plan import OutOfDeviceMemoryError
    from slipstream_kernels.models.rank_error import RankError

    limits = GpuLimits(
        max_running=settings.running,
        max_nodes=settings.max_nodes,
        step_nodes=settings.step_nodes,
        prefill_chunk=settings.chunk,
        page_size=settings.page_size,
        num_pages=settings.num_pages,
        max_context=max_context,
        memory_utilization=settings.gpu_memory_utilization,
        boundaries=settings.max_boundaries,
        expected_boundaries=_expected_boundaries(settings),
        max_adapters=settings.adapter_slots,
        max_adapter_rank=settings.max_lora_rank,
        kv=form,
        fp8_activations=settings.linear_activations == "fp8",
    )
    times.end("device")
    host_kernels = begin_compiling()
    try:
        model = _load_ranks(settings, limits, times)
    except (OutOfDeviceMemoryError, FlashInferError, RankError) as error:
        raise FailedPreconditionError(str(error)) from error
    host_kernels.join()
    dtype, features = form.name("bfloat16"), check_feature_memory(settings.feature_bytes)
    _log.info("memory: %s; KV cache in %s; %s", model.memory, dtype, features)
    return model, model.limits.num_pages


def _load_ranks(settings: VerifySettings, limits: GpuLimits, times: StageTimes) -> GpuModel:
    """The model, or rank 0's part of it; the other ranks' processes live as long as this one."""
    from slipstream_kernels.models.gpu.forward.flashinfer_attention import settled_attention
    from slipstream_kernels.models.gpu.gpu_model import GpuModel
    from slipstream_kernels.models.gpu.parallel.tp_worker_process import load_shared

    size = settings.tensor_parallel_size
    if size == 1:
        forms = ModelConfig.from_folder(settings.model).attention_forms
        attention = settled_attention(settings.attention, mode=settings.mode, forms=forms, fp8=limits.kv.fp8)
        device, mode = settings.device, settings.mode
        return GpuModel.load(settings.model, limits, device=device, mode=mode, attention=attention, times=times)
    model, _ = load_shared(settings.model, limits, device=settings.device, mode=settings.mode, size=size)
    times.end("ranks")
    return model


def _check_triton(settings: VerifySettings) -> None:
    if find_spec("triton") is None:
        flag = f"--tensor-parallel-size {settings.tensor_parallel_size}"
        wanted = flag if settings.on_cpu else f"--device {settings.device}"
        raise FailedPreconditionError(f"{wanted} needs the package triton: install 'slipstream-server[gpu]'")


def _check_cuda(settings: VerifySettings, form: KVForm) -> None:
    """Raise FailedPreconditionError unless there are the GPUs that were asked for, and can do what was."""
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        reason = f"PyTorch {torch.__version__} finds no GPU" if built else f"PyTorch {torch.__version__} has no CUDA"
        raise FailedPreconditionError(f"--device {settings.device} is not available: {reason}")
    index, count = torch.device(settings.device).index or 0, torch.cuda.device_count()
    if index >= count:
        raise FailedPreconditionError(f"--device {settings.device} is not available: there are {count} GPUs")
    if index + settings.tensor_parallel_size > count:
        raise FailedPreconditionError(
            f"--tensor-parallel-size {settings.tensor_parallel_size} from --device {settings.device} on needs "
            f"{index + settings.tensor_parallel_size} GPUs, there are {count}"
        )
    capability = torch.cuda.get_device_capability(index)
    if form.fp8 and capability < (8, 9):
        raise FailedPreconditionError(
            f"--kv-cache-dtype {settings.kv_cache_dtype}: fp8 needs a GPU of compute capability 8.9 or later, "
            f"{settings.device} has {capability[0]}.{capability[1]}"
        )
    if settings.linear_activations == "fp8" and capability[0] != 9:
        raise FailedPreconditionError(
            f"{OPTION} needs a GPU of compute capability 9.x (Hopper), {settings.device} has "
            f"{capability[0]}.{capability[1]}"
        )


def _keeps_bits(model: TargetModel) -> bool:
    if isinstance(model, CausalLM):
        return probe_row_invariance(model)
    from verify_service.server.row_invariance import probe_pass_invariance

    return probe_pass_invariance(model)
