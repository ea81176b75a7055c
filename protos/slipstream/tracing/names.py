"""Names of spans, their attributes and events. docs/observability.md has each of them.

`gen_ai.*` are those of OpenTelemetry's conventions for generative AI (open-telemetry/semantic-conventions-genai,
November 2026). All have the status Development: they are named here, and nowhere else, so that a change is one of this
file.
"""

from __future__ import annotations

from typing import Final

PROVIDER: Final = "slipstream"

# Current names of the GenAI conventions.
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

OPERATION_CHAT: Final = "chat"
OPERATION_COMPLETION: Final = "text_completion"
OUTPUT_TEXT: Final = "text"

# General conventions.
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
HTTP_STATUS: Final = "http.response.status_code"
RPC_STATUS: Final = "rpc.response.status_code"

# Names that vLLM has used so far, which dashboards look for.
VLLM_REQUEST_ID: Final = "gen_ai.request.id"
VLLM_N: Final = "gen_ai.request.n"
VLLM_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
VLLM_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
VLLM_TIME_IN_QUEUE: Final = "gen_ai.latency.time_in_queue"
VLLM_TIME_TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105  # no password
VLLM_E2E: Final = "gen_ai.latency.e2e"
VLLM_PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
VLLM_DECODE: Final = "gen_ai.latency.time_in_model_decode"
VLLM_INFERENCE: Final = "gen_ai.latency.time_in_model_inference"

# Ours.
SPAN_VERIFY: Final = "verify"
REQUEST_ID: Final = "slipstream.request_id"
DRAFTED_TOKENS: Final = "slipstream.speculation.drafted_tokens"
ACCEPTED_TOKENS: Final = "slipstream.speculation.accepted_tokens"
ACCEPTANCE_LENGTH: Final = "slipstream.speculation.mean_accepted_length"
PROPOSERS: Final = "slipstream.speculation.proposers"
VERIFY_STEPS: Final = "slipstream.verify_steps"
RESUMES: Final = "slipstream.resumes"
REPLICA: Final = "slipstream.replica"
FINGERPRINT: Final = "slipstream.fingerprint"
EXACT: Final = "slipstream.exact"
CHOICE: Final = "slipstream.choice"
PROMPT_TOKENS: Final = "slipstream.prompt_tokens"
CACHED_TOKENS: Final = "slipstream.cached_tokens"
PRIOR_TOKENS: Final = "slipstream.prior_output_tokens"
OUTPUT_TOKENS: Final = "slipstream.output_tokens"
FINISH_REASON: Final = "slipstream.finish_reason"

EVENT_QUEUED: Final = "queued"
EVENT_STARTED: Final = "started"
EVENT_FIRST_TOKEN: Final = "first_token"  # noqa: S105  # no password
EVENT_RESUMED: Final = "resumed"
RESUMED_FROM: Final = "slipstream.resumed.from"
RESUMED_TO: Final = "slipstream.resumed.to"
RESUMED_POSITION: Final = "slipstream.resumed.position"
