"""Settings of the verify service: flags, SLIPSTREAM_VERIFY_* environment, TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from slipstream.rpc.logs import LogFormat
from slipstream.rpc.vllm_metrics import MetricNames
from slipstream.settings import Names, Numbers
from slipstream.transport_settings import TransportSettings
from slipstream_kernels.draft_protocol.proposer_host import BOUNDARY_CHECK_MIB, HostLimits
from slipstream_kernels.ipc.cuda_driver import gpu_uuids
from slipstream_kernels.models.checkpoint.adapter.adapter_config import MOST_RANK
from slipstream_kernels.models.kv_dtype import KVDtype
from slipstream_kernels.token_tree import MAX_ROWS
from verify_service.core.engine_config import MAX_ADAPTERS, MAX_PAGE_SIZE, EngineConfig
from verify_service.draft_link.link_config import AUTO, TRANSPORTS, LinkConfig

NONE = "none"
CPU_CHUNK, CUDA_CHUNK = 256, 2048
CPU_RUNNING, CUDA_RUNNING = 64, 256
MAX_DEADLINE, DEADLINE_SHARE, CPU_REACH = 0.02, 0.25, 0.25
"""Seconds that a step waits for trees at most, the share of a plain step, and seconds that slow drafters are waited for
on a CPU, where the operator says nothing."""
SPARE_LORAS = 8
"""Adapters that can be loaded at run time where the operator says nothing."""
SPIN_SECONDS, GPU_SPIN_SECONDS = 30e-6, 2e-3
"""How long a step looks for its trees before it sleeps: while the GPU has nothing to do, no core is too dear."""


def _spoken(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) != len(names) or not set(names) <= set(TRANSPORTS):
        raise ValueError(f"must be some of {', '.join(TRANSPORTS)}, each once")
    return names


def _named_folders(modules: tuple[str, ...]) -> tuple[str, ...]:
    names = [module.partition("=")[0] for module in modules]
    if not all(name and folder for name, _, folder in (module.partition("=") for module in modules)):
        raise ValueError("must be NAME=DIR, of each adapter")
    if len(set(names)) < len(names):
        raise ValueError("names an adapter twice")
    return modules


class VerifySettings(TransportSettings):
    """Serve a target model: continuous batching over paged KV, with drafted trees verified exactly."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_VERIFY_")

    model: Path = Field(description="Hugging Face folder of the target model")
    model_name: str = Field(default="", description="Name that clients ask for; empty: the folder's name")
    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=50052, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    page_size: int = Field(default=16, ge=1, le=MAX_PAGE_SIZE, description="Tokens in a KV page")
    num_pages: int = Field(
        default=0,
        ge=0,
        description="KV pages; 0 on cpu: full contexts for --max-running requests, at most 1 GiB and half the free "
        "memory; 0 on cuda: what --gpu-memory-utilization leaves",
    )
    kv_cache_dtype: KVDtype = Field(
        default="auto",
        description="How keys and values are held. fp8, fp8_e4m3: 8 bits an element; bfloat16 on cuda, float32 on cpu: "
        "in more; auto: as a quantised model asks for, else in more",
    )
    linear_activations: Literal["bfloat16", "fp8"] = Field(
        default="bfloat16",
        description="What linear layers with weights in fp8 (e4m3) multiply these with. fp8: activations that are "
        "quantised to e4m3 too, each token's by a scale of its own; on Hopper GPUs only",
    )
    max_context: int = Field(default=0, ge=0, description="Most tokens of prompt and output; 0: as the model allows")
    max_running: int = Field(
        default=0,
        ge=0,
        le=4096,
        description=f"Requests in the batch; 0: {CPU_RUNNING} on cpu, {CUDA_RUNNING} on cuda",
    )
    max_queued: int = Field(default=1024, ge=0, le=2**20, description="Requests that may wait for a place in the batch")
    max_nodes: int = Field(
        default=MAX_ROWS, ge=1, le=MAX_ROWS, description="Rows of a request's tree, root included; 1: no speculation"
    )
    step_nodes: int = Field(default=512, ge=0, le=2**16, description="Drafted rows of one step, over all requests")
    prefill_chunk: int = Field(
        default=0,
        ge=0,
        le=2**16,
        description=f"Prompt rows of one step, over all requests; 0: {CPU_CHUNK} on cpu, {CUDA_CHUNK} on cuda",
    )
    scheduling: Literal["fair", "fcfs"] = Field(
        default="fair",
        description="fair: tenants share places, rows, pages and drafted nodes by their weights; fcfs: requests are "
        "served in order of arrival, whosesoever they are",
    )
    prefix_cache: bool = Field(default=True, description="Share the KV of equal prompt beginnings")
    proposers: Names = Field(default=(), description="Proposers that may be asked for before one is attached")
    default_proposer: str = Field(
        default=AUTO,
        min_length=1,
        description="Proposer of requests that name none; none: plain decoding; auto: the first of --proposers, "
        "else the first attached",
    )
    inproc: Names = Field(
        default=(),
        description="Proposers to run in this process, beside those of draft services: NAME[:ARGUMENT], such as ngram "
        "or draft-model:DIR, or NAME=module:factory[:ARGUMENT]; repeat the flag or separate by commas",
    )
    expected_proposers: Names = Field(
        default=(),
        description="Proposers that draft services will attach, as these are told them, NAME[:ARGUMENT]: CUDA graphs "
        "captured at start-up keep the hidden states that they read",
    )
    inproc_threads: int = Field(default=1, ge=1, le=256, description="CPU threads of the proposers in this process")
    inproc_max_nodes: int | None = Field(
        default=None,
        ge=2,
        le=MAX_ROWS,
        description="Rows of their largest tree, root included; default: the proposer's",
    )
    inproc_max_depth: int | None = Field(
        default=None, ge=1, le=MAX_ROWS - 1, description="Their longest path; default: the proposer's"
    )
    inproc_topk: int | None = Field(
        default=None, ge=1, le=16, description="Children of a node of their trees; default: the proposer's"
    )
    inproc_boundary_check_mib: int = Field(
        default=BOUNDARY_CHECK_MIB,
        ge=0,
        le=2**24,
        description="Weights of the largest model, in MiB, with whose states those that read any are tried before they "
        "serve, for which the weights are read once; 0: none is tried",
    )
    adaptive: bool = Field(
        default=True,
        description="For requests that say nothing about speculation: trees only as deep as measured time justifies",
    )
    draft_deadline_ms: float | None = Field(
        default=None,
        ge=0.0,
        le=10_000.0,
        allow_inf_nan=False,
        description=f"How long a step may wait for trees; default: {1000 * MAX_DEADLINE:g} on cpu, up to "
        f"{1000 * CPU_REACH:g} for drafters that are measured to take longer where nobody else is held up, and on cuda "
        f"a quarter of what a plain step is measured to take, up to {1000 * MAX_DEADLINE:g}",
    )
    transports: Annotated[Names, AfterValidator(_spoken)] = Field(
        default=TRANSPORTS,
        description="Ways to exchange records with draft services, best first: cuda_ipc (as shm, but hidden states "
        "stay on the GPU), shm (on this host), grpc",
    )
    device_queue: bool = Field(
        default=True,
        description="Draft services on the model's GPU, which share it by NVIDIA MPS and take states there (cuda_ipc), "
        "may draft behind passes: each side waits for the other on the device, and no host is in between",
    )
    max_boundaries: int = Field(
        default=8,
        ge=0,
        le=64,
        description="Boundaries of the model whose hidden states draft services may want, all together; 0: none are "
        "published",
    )
    feature_boundaries: Numbers = Field(
        default=(),
        description="Boundaries whose states are captured and kept from the start, before a draft service wants them",
    )
    feature_memory_mib: int = Field(
        default=256,
        ge=0,
        le=2**24,
        description="Host memory, in MiB, for hidden states that are kept beside the KV pages; taken once some are "
        "wanted. 0: none are kept, so that drafters start from the newest",
    )
    threads: int = Field(default=2, ge=1, le=1024, description="CPU threads of the model")
    device: str = Field(
        default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="Where the model runs: cpu, cuda or cuda:N"
    )
    mode: Literal["exact", "fast"] = Field(
        default="exact",
        description="exact: tokens are a function of the request alone, bit for bit; fast: libraries may break that "
        "for speed, on cuda only",
    )
    attention: Literal["auto", "triton", "flashinfer"] = Field(
        default="auto",
        description="Attention of passes without trees, on cuda; flashinfer: only in mode fast on one GPU, compiles "
        "for minutes at its first start; auto: flashinfer where it may be used and is installed, else triton",
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=8,
        description="Processes of this host that share the model's layers, each on a GPU of its own from --device on; "
        "on cpu, where it is slow: to try it out",
    )
    gpu_memory_utilization: float = Field(
        default=0.9, gt=0.0, le=1.0, description="Share of the GPU's memory that weights, KV and all else may take"
    )
    lora_modules: Annotated[Names, AfterValidator(_named_folders)] = Field(
        default=(),
        description="LoRA adapters to serve beside the model: NAME=DIR, a folder of PEFT; repeat the flag or separate "
        "by commas",
    )
    lora_dir: Path | None = Field(
        default=None,
        description="Folder below which adapters may be loaded while the service runs; default: none may",
    )
    max_loras: int = Field(
        default=0,
        ge=0,
        le=MAX_ADAPTERS,
        description=f"Adapters that can be loaded at a time; 0: those of --lora-modules, and {SPARE_LORAS} more with "
        "--lora-dir",
    )
    max_lora_rank: int = Field(
        default=16, ge=1, le=MOST_RANK, description="Largest rank of an adapter; a GPU has room for it in every slot"
    )
    attach_token: SecretStr = Field(
        default=SecretStr(""), description="Secret that draft services beyond loopback must present"
    )
    metrics_port: int = Field(default=0, ge=0, le=65535, description="Prometheus port on --host; 0: none")
    metrics_names: MetricNames = Field(
        default="slipstream",
        description="Names of metrics: slipstream, our own; vllm, beside these the names that dashboards of vLLM know",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0.0, allow_inf_nan=False, description="How long requests may finish after SIGTERM"
    )
    hang_seconds: float = Field(
        default=300.0,
        ge=0.0,
        allow_inf_nan=False,
        description="Time in which some step has to be finished while there is work; else the service ends with status "
        "1, to be started again. 0: never",
    )
    stats_seconds: float = Field(
        default=10.0,
        ge=0.0,
        allow_inf_nan=False,
        description="Time between lines of throughput in the log while there is something to do; 0: none",
    )
    otlp_traces_endpoint: str = Field(
        default="",
        description="Where spans of requests are sent by OTLP, such as http://127.0.0.1:4317; without it OTEL_* "
        "variables say, and where they say nothing, requests are not traced. Needs the extra otel",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level to log")
    log_format: LogFormat = Field(default="text", description="Log lines: text, or json for one JSON object a line")

    @property
    def on_cpu(self) -> bool:
        """Whether the model runs on the CPU."""
        return self.device == "cpu"

    @property
    def chunk(self) -> int:
        """Prompt rows of one step."""
        return self.prefill_chunk or (CPU_CHUNK if self.on_cpu else CUDA_CHUNK)

    @property
    def running(self) -> int:
        """Most requests in the batch."""
        return self.max_running or (CPU_RUNNING if self.on_cpu else CUDA_RUNNING)

    @property
    def host_limits(self) -> HostLimits:
        """Those of the proposers in this process."""
        return HostLimits(
            self.inproc_threads,
            self.inproc_max_nodes,
            self.inproc_max_depth,
            self.inproc_topk,
            self.numbered_device,
            str(self.model),
            self.inproc_boundary_check_mib,
        )

    @property
    def configured_proposers(self) -> dict[str, str]:
        """Arguments, as far as they are told here, of those that are configured, by their names."""
        named = (spec.partition(":") for spec in (*self.expected_proposers, *self.inproc))
        return dict.fromkeys(self.proposers, "") | {name: argument for name, _, argument in named}

    @property
    def numbered_device(self) -> str:
        """Where the model runs, or its first part: cpu or cuda:N."""
        return "cuda:0" if self.device == "cuda" else self.device

    @property
    def gpu_uuid(self) -> str:
        """Of that device; empty for the CPU."""
        if self.on_cpu:
            return ""
        uuids, index = gpu_uuids(), int(self.numbered_device.partition(":")[2])
        return uuids[index] if index < len(uuids) else ""

    @property
    def feature_bytes(self) -> int:
        """What hidden states beside the KV pages may take."""
        return self.feature_memory_mib << 20 if self.max_boundaries else 0

    @model_validator(mode="after")
    def _check_boundaries(self) -> Self:
        wanted = self.feature_boundaries
        if len(set(wanted)) != len(wanted) or len(wanted) > self.max_boundaries:
            raise ValueError(
                f"--feature-boundaries {list(wanted)} must be different ones, at most --max-boundaries "
                f"{self.max_boundaries} of them"
            )
        return self

    @property
    def adapters(self) -> tuple[tuple[str, Path], ...]:
        """Name and folder of each adapter of the command line."""
        split = (each.partition("=") for each in self.lora_modules)
        return tuple((name, Path(folder)) for name, _, folder in split)

    @property
    def adapter_slots(self) -> int:
        """How many adapters can be loaded at a time."""
        return self.max_loras or len(self.lora_modules) + (SPARE_LORAS if self.lora_dir else 0)

    @model_validator(mode="after")
    def _check_adapters(self) -> Self:
        if len(self.lora_modules) > self.adapter_slots:
            raise ValueError(f"--lora-modules names {len(self.lora_modules)} adapters, --max-loras is {self.max_loras}")
        if self.lora_dir is not None and not self.lora_dir.is_dir():
            raise ValueError(f"--lora-dir: there is no folder {self.lora_dir}")
        return self

    @model_validator(mode="after")
    def _check_device(self) -> Self:
        if self.on_cpu and self.mode == "fast":
            raise ValueError("--mode fast needs --device cuda: the CPU's kernels are exact at full speed")
        if self.linear_activations == "fp8" and self.on_cpu:
            raise ValueError("--linear-activations fp8 needs --device cuda, and there a GPU of compute capability 9.x")
        if self.attention == "flashinfer" and self.mode != "fast":
            raise ValueError("--attention flashinfer needs --mode fast: its rows depend on their company")
        if self.attention == "flashinfer" and self.tensor_parallel_size > 1:
            raise ValueError("--attention flashinfer needs --tensor-parallel-size 1")
        if self.attention == "flashinfer" and self.kv_cache_dtype.startswith("fp8"):
            raise ValueError("--attention flashinfer reads no --kv-cache-dtype fp8: take triton")
        own = "float32" if self.on_cpu and self.tensor_parallel_size == 1 else "bfloat16"
        if self.kv_cache_dtype in {"float32", "bfloat16"} and self.kv_cache_dtype != own:
            raise ValueError(f"--kv-cache-dtype is {self.kv_cache_dtype}; here kernels take auto, {own} or fp8")
        return self

    @property
    def served_name(self) -> str:
        """The model's name for clients."""
        return self.model_name or self.model.resolve().name

    def engine_config(self, num_pages: int) -> EngineConfig:
        """The engine's part, with the number of pages that was planned."""
        return EngineConfig(
            num_pages=num_pages,
            page_size=self.page_size,
            max_running=self.running,
            max_queued=self.max_queued,
            max_nodes=self.max_nodes,
            step_nodes=self.step_nodes,
            prefill_chunk=self.chunk,
            prefix_cache=self.prefix_cache,
            adaptive=self.adaptive,
            max_context=self.max_context,
            feature_bytes=self.feature_bytes,
            feature_boundaries=self.feature_boundaries,
            fair=self.scheduling == "fair",
            max_adapters=self.adapter_slots,
            max_adapter_rank=self.max_lora_rank,
        )

    @property
    def max_step_rows(self) -> int:
        """Rows of the largest step."""
        return self.chunk + self.running + self.step_nodes

    def link_config(self) -> LinkConfig:
        """The draft link's part. A default that is named counts as configured."""
        named = () if self.default_proposer in (AUTO, NONE) else (self.default_proposer,)
        return LinkConfig(
            configured=tuple(dict.fromkeys((*self.proposers, *named))),
            default=None if self.default_proposer == NONE else self.default_proposer,
            deadline=MAX_DEADLINE if self.draft_deadline_ms is None else self.draft_deadline_ms / 1000,
            deadline_share=DEADLINE_SHARE if self.draft_deadline_ms is None and not self.on_cpu else None,
            deadline_reach=CPU_REACH if self.draft_deadline_ms is None and self.on_cpu else None,
            num_slots=2 * self.running,
            attach_token=self.attach_token.get_secret_value(),
            transports=self.transports,
            feature_boundaries=self.feature_boundaries,
            spin=SPIN_SECONDS if self.on_cpu else GPU_SPIN_SECONDS,
            device_queue=self.device_queue,
        )
