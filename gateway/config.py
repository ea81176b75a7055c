"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import field_validator
from pydantic_settings import SettingsConfigDict

from gateway.known_hosts import checked_origin
from gateway.output_parsers.registry import ReasoningParserName, ToolParserName
from gateway.transport_settings import GatewayTransportSettings
from slipstream.directory.client import checked_directory
from slipstream.generation_config import AUTO
from slipstream.model_folder import no_such_folder
from slipstream.rpc.logs import LogFormat
from slipstream.rpc.vllm_metrics import MetricNames
from slipstream.settings import Names
from slipstream.transport_settings import checked_address

Port = Annotated[int, Ge(0), Le(65535)]

RoutingName = Literal["prefix", "least-loaded", "random"]


class GatewaySettings(GatewayTransportSettings):
    """Serve the OpenAI HTTP API and the gRPC API before one or more verify services."""

    model_config = SettingsConfigDict(env_prefix="SLIPSTREAM_GATEWAY_")

    verify: Names = ("127.0.0.1:50052",)
    """Addresses of the verify services, host:port or unix:PATH; replicas of one model. With --directory only the list
    until that has answered, and none by default."""

    directory: str = ""
    """Where the list of verify services comes from in place of --verify, at each change anew: file:PATH, a TOML file of
    [[members]] tables with `address`, and if wanted `model`, `epoch` and `draining`; or host:port or unix:PATH of a
    server of DirectoryService. While it is away the last list stays."""

    routing: RoutingName = "prefix"
    """Which of several verify services takes a request: `prefix`, the one from which the first token is expected first,
    by what each has cached of the prompt and by what waits there; `least-loaded`, the one with the fewest choices under
    way; `random`. It changes speed and no token."""

    model: Path
    """Folder of the model; only its tokenizer, chat template and sampling defaults are read."""

    chat_template: Path | None = None
    """Jinja file to write conversations by, in place of the model's own chat template."""

    tool_call_parser: Literal["auto", "none", ToolParserName] = "auto"
    """How calls of tools are told from text: `auto`, by the form in which the chat template writes earlier calls; or
    hermes, qwen3_coder, llama3_json, pythonic, mistral, openai; or `none`, not at all."""

    reasoning_parser: Literal["auto", "none", ReasoningParserName] = "auto"
    """How reasoning is told from the answer: `auto`, by what the chat template shows; or qwen3, deepseek_r1 (which
    leaves its first tag out), mistral, openai_gptoss; or `none`, not at all."""

    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = "reasoning"
    """Name of the field of answers that has the reasoning; `reasoning_content` is the older one."""

    generation_config: str = AUTO
    """Where sampling parameters come from that a request does not set: `auto`, generation_config.json of the model's
    folder if there is one; `none`, this server's own defaults; or another folder with such a file."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    http_port: Port = 8000
    """Port of the OpenAI API; 0 binds a free one."""

    grpc_port: Port = 50051
    """Port of the public gRPC API; 0 binds a free one."""

    api_keys_file: Path | None = None
    """TOML file with a [keys] table from API key to tenant, and [tenants.NAME] tables with weights, if any. Without a
    file every caller is let in."""

    allowed_hosts: Names = ()
    """Host names that clients may call this server by while no keys are required, beside localhost, any IP address,
    `--host` and, beyond loopback, this machine's name; `*` allows all. Other names are refused, as are requests of web
    pages from elsewhere: a page must not be able to use a server that only its visitor's browser can reach."""

    allowed_origins: Names = ()
    """Origins of web pages that may use this server from a browser, such as `https://chat.example.org`; `*` allows all.
    Their requests are let in, and answered with CORS headers. Without it there are no CORS headers."""

    max_connections: Annotated[int, Ge(0)] = 0
    """Most HTTP connections open at a time; 0 derives it from the limit of file descriptors, at most 16384. Beyond it
    new ones take the places of those that keep the server waiting longest, or get 503."""

    max_grpc_connections: Annotated[int, Ge(0)] = 0
    """Most gRPC connections open at a time; 0 derives it from the limit of file descriptors, at most 4096."""

    head_seconds: Annotated[float, Gt(0)] = 10.0
    """How long the head of an HTTP request may take, on a new connection from its first moment on."""

    body_seconds: Annotated[float, Gt(0)] = 60.0
    """How long the body of an HTTP request may take from the end of its head on."""

    keep_alive_seconds: Annotated[int, Ge(1)] = 60
    """How long an HTTP connection may wait for another request; more than a proxy in front keeps idle ones for."""

    reader_seconds: Annotated[float, Gt(0)] = 60.0
    """How long an HTTP client may read nothing of an answer that is waiting for it before its connection is closed."""

    max_body_bytes: Annotated[int, Ge(1024)] = 4 * 1024 * 1024
    """Largest HTTP request body, and largest gRPC request as long as that is below 16 MiB."""

    max_choices: Annotated[int, Ge(1), Le(1024)] = 128
    """Most choices (prompts x n) of one HTTP request."""

    max_traced_choices: Annotated[int, Ge(0), Le(1024)] = 16
    """Most choices at a time whose verify steps are traced for their clients (`speculation.trace`); more are told to
    retry later. 0: no request is traced."""

    allow_shares: bool = False
    """Whether callers, and so the page, may set which part of the requests each draft service takes where several are
    attached: none, to hand over to the others, or all, to take over. It changes speed and no token, for all tenants."""

    allow_lora_updates: bool = False
    """Whether callers may have the verify services load and unload LoRA adapters, from below the folder that their
    --lora-dir names. Whoever may call may do so, for all tenants."""

    page: bool = True
    """Whether the page is served at `/`: a chat that shows the tree of each verify step. It uses this API alone."""

    text_workers: Annotated[int, Ge(1), Le(64)] = 2
    """Processes that read requests, render chat templates and tokenise. Large requests leave one of them free."""

    text_seconds: Annotated[float, Gt(0)] = 10.0
    """How long a worker may take for one request before it is killed and the request refused."""

    text_loading_seconds: Annotated[float, Gt(0)] = 60.0
    """How long reading the model's tokenizer and chat template may take at the start."""

    text_memory_mib: Annotated[int, Ge(64)] = 512
    """Memory that a worker may take beyond what tokenizer and template take, in MiB."""

    max_buffered_steps: Annotated[int, Ge(16)] = 8192
    """Outputs a client may leave unread before its request is cancelled."""

    resume_seconds: Annotated[float, Ge(0)] = 60.0
    """How long a request may go without a token from the loss of its verify service on, or from its arrival while the
    service is away, before it fails as unavailable; set it above the time that loading the model and computing the
    longest prompt take. Nothing restarts it but a token. With another replica at hand streams go on there at once.
    0: nobody waits."""

    wait_for_drafter: Annotated[float, Ge(0)] = 0.0
    """For how many seconds of a verify service's life /ready and gRPC health wait at most for the proposers that it is
    configured with to be attached; those that are refused are not waited for, and nothing is once all have been there.
    Requests are taken meanwhile. 0: ready when a verify service is."""

    drain_seconds: Annotated[float, Ge(0)] = 30.0
    """How long running streams may take to finish after SIGTERM."""

    connect_timeout: Annotated[float, Gt(0)] = 5.0
    """Deadline in seconds of calls that ask a verify service for its facts."""

    loop_monitor_ms: Annotated[int, Ge(5), Le(10_000)] = 100
    """Milliseconds between the beats by which holds of the event loop are measured: holds up to as long may be missed
    in part. Each beat costs some 0.1 ms."""

    metrics_names: MetricNames = "slipstream"
    """Names of metrics: `slipstream`, our own; `vllm`, beside these the names that dashboards of vLLM know."""

    access_log: bool = True
    """Whether a line is logged for each request when it is over: status, tokens, times, never text. Requests of
    /health, /ready and /metrics are told at level debug."""

    otlp_traces_endpoint: str = ""
    """Where spans of requests are sent by OTLP, such as http://127.0.0.1:4317; without it OTEL_* variables say, and
    where they say nothing, requests are not traced. Needs the extra `otel`."""

    trace_names: Literal["genai", "vllm"] = "genai"
    """Attributes of spans: genai, those of OpenTelemetry's conventions; vllm, beside them those that vLLM has used."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""

    log_format: LogFormat = "text"
    """How log lines are written: text, or json for one JSON object a line."""

    @field_validator("verify")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one address")
        return tuple(map(checked_address, value))

    @field_validator("directory")
    @classmethod
    def _directory(cls, value: str) -> str:
        return checked_directory(value) if value else value

    @property
    def first_verify(self) -> tuple[str, ...]:
        """Addresses of the verify services at the start."""
        return () if self.directory and "verify" not in self.model_fields_set else self.verify

    @field_validator("chat_template")
    @classmethod
    def _file(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError("no such file")
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_origin(origin) for origin in value)

    @field_validator("model")
    @classmethod
    def _folder(cls, value: Path) -> Path:
        if not value.is_dir():
            raise ValueError(no_such_folder(value))
        if not (value / "tokenizer.json").is_file():
            raise ValueError(f"no tokenizer.json in {value}")
        return value
