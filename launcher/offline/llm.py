"""Offline generation: the services as child processes, a list of prompts in, a list of outputs out."""

from __future__ import annotations

import atexit
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tqdm import tqdm

from launcher.offline.argument_checks import check_type, check_unoffered
from launcher.offline.batch import BatchItem, complete
from launcher.offline.engine_arguments import verify_flags
from launcher.offline.lora import LoadedLoras, LoRARequest, LoraSettings, read_lora_requests
from launcher.offline.prompts import Prompt, read_conversations, read_prompts
from launcher.offline.sampling_params import SamplingParams
from launcher.services.models import configured_draft, resolve_model, resolve_template
from launcher.supervision.cluster import Cluster
from slipstream.client import Client
from slipstream.completion import Completion, Message, PositionLogprobs, SpeculationOptions, Usage
from slipstream.extras import require
from slipstream.generation_config import AUTO, config_file, sampling_defaults
from slipstream.rpc.errors import FailedPreconditionError
from slipstream.speculation.reading import read

TOKENIZE_SECONDS = 60.0
SEED_BITS = 64
GENERATE_UNOFFERED: Final[Mapping[str, tuple[Any, ...]]] = {
    "prompt_token_ids": (None,),
    "priority": (None, 0),
    "tokenization_kwargs": (None,),
}
"""What vLLM's `generate` takes besides, with the values that ask for nothing."""
CHAT_UNOFFERED: Final[Mapping[str, tuple[Any, ...]]] = {
    "chat_template": (None,),
    "chat_template_content_format": ("auto", "string"),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "tools": (None, []),
    "chat_template_kwargs": (None, {}),
    "tokenization_kwargs": (None,),
    "mm_processor_kwargs": (None,),
}
"""The same of its `chat`."""
Bar = Callable[..., Any]
"""Makes a progress bar from the keyword arguments of tqdm."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    """Why it ended: "stop" or "length"."""
    stop_reason: str | int | None
    """The stop string or stop token that ended it, where one did."""
    logprobs: tuple[PositionLogprobs, ...]
    seed: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt with its choices. `prompt` is None where token ids were given.

    `prompt_logprobs` has an entry for each of its tokens, None for the first; or is None where they were not asked for.
    """

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    lora_request: LoRARequest | None = None


class LLM:
    """A model behind its own services, on free loopback ports of this machine. Use it in a `with` block, or `close` it.

    `speculative_config` is None for plain decoding, or a mapping as vLLM's, such as {"method": "eagle3", "model": DIR,
    "num_speculative_tokens": 5}, or a list of them, of which the first is used; docs/proposers.md has all keys. It
    changes speed and never a token. `generation_config` says which sampling parameters are used where a call states
    none: "auto", those of generation_config.json in the model's folder; "none"; or another folder with such a file.
    `chat_template` is a Jinja file to write conversations by, in place of the model's own template.

    With `enable_lora` prompts may be completed with LoRA adapters (`lora_request`), of which `max_loras` (8) can be
    loaded at a time, up to rank `max_lora_rank` (16).

    `seed` makes prompts without a seed of their own repeatable from one `LLM` to the next. `arguments` are those of
    vLLM's `LLM` that have a meaning here, such as `tensor_parallel_size`, `max_model_len` and `gpu_memory_utilization`
    (docs/api.md has all); flags of the services besides go into `verify_args` and `draft_args`.

    Raises ModelNotFoundError, TypeError and ValueError for wrong arguments, MissingExtraError where packages are not
    installed, StartupError with the services' logs.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        speculative_config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        generation_config: str | Path = AUTO,
        chat_template: str | Path | None = None,
        verify_args: Sequence[str] = (),
        draft_args: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        if not isinstance(model, str | Path):
            raise TypeError(f"LLM: model must be the folder of a checkpoint, got {type(model).__name__}: {model!r}")
        check_type("LLM", "seed", seed, int, optional=True)
        loras = LoraSettings.take(arguments)
        flags = (*loras.verify_flags, *verify_flags(arguments))
        require("serve", "LLM")
        folder = resolve_model(Path(model))
        draft = () if speculative_config is None else configured_draft(read(speculative_config), folder)
        self._seeds = None if seed is None else random.Random(int(seed))
        self._speculation = SpeculationOptions(enabled=bool(draft))
        try:
            self._defaults = sampling_defaults(config_file(folder, str(generation_config)))
        except FailedPreconditionError as error:
            raise ValueError(f"generation_config: {error.message}") from error
        template = None if chat_template is None else resolve_template(Path(chat_template))
        self._lora_settings, self._loras = loras, LoadedLoras(loras)
        quiet = ("--log-level", "warning")
        self._cluster = Cluster(
            folder,
            draft=draft,
            verify_args=(*quiet, *flags, *verify_args),
            draft_args=(*quiet, *draft_args),
            gateway_args=(
                *(*quiet, "--generation-config", str(generation_config)),
                *("--resume-seconds", "0"),  # nobody starts a service again
                *loras.gateway_flags,
                *(() if template is None else ("--chat-template", str(template))),
            ),
        )
        self._client: Client | None = None
        self._cluster.__enter__()
        atexit.register(self.close)
        self._client = Client(self._cluster.gateway_grpc)

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Bar = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        **arguments: Any,
    ) -> list[RequestOutput]:
        """Complete each prompt; outputs come in the order of the prompts.

        `sampling_params` is one for all prompts or one for each; without them `get_default_sampling_params` is used.
        So is `lora_request`, without which the model alone answers; not by several calls at a time.
        `use_tqdm` may also be what makes the bar. Raises TypeError and ValueError for wrong arguments, and the errors
        of slipstream.rpc.errors.
        """
        check_unoffered("generate", arguments, GENERATE_UNOFFERED)
        listed = read_prompts(prompts)
        params = self._params(sampling_params, len(listed))
        loras = read_lora_requests(lora_request, len(listed), self._lora_settings)
        client = self._open_client()
        token_ids = [
            client.tokenize(prompt.text, timeout=TOKENIZE_SECONDS) if prompt.token_ids is None else prompt.token_ids
            for prompt in listed
        ]
        return self._run(client, [prompt.text for prompt in listed], token_ids, params, loras, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Bar = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        **arguments: Any,
    ) -> list[RequestOutput]:
        """As `generate`, from a conversation, or a list of them, under the model's own chat template."""
        check_unoffered("chat", arguments, CHAT_UNOFFERED)
        listed = read_conversations(messages)
        params = self._params(sampling_params, len(listed))
        loras = read_lora_requests(lora_request, len(listed), self._lora_settings)
        client = self._open_client()
        token_ids = [client.tokenize(messages=each, timeout=TOKENIZE_SECONDS) for each in listed]
        return self._run(client, [None] * len(listed), token_ids, params, loras, use_tqdm)

    def get_default_sampling_params(self) -> SamplingParams:
        """SamplingParams() with what the model's generation_config.json says in place of its defaults."""
        return SamplingParams(**self._defaults.given())  # type: ignore[arg-type]  # by their names

    def close(self) -> None:
        """Stop the services. Without effect the second time."""
        if self._client is not None:
            self._client.close()
            self._client = None
            self._cluster.stop()
            atexit.unregister(self.close)

    def __enter__(self) -> Self:
        """The services run already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the services."""
        self.close()

    def _open_client(self) -> Client:
        if self._client is None:
            raise RuntimeError("this LLM is closed")
        return self._client

    def _run(
        self,
        client: Client,
        texts: Sequence[str | None],
        token_ids: Sequence[list[int]],
        params: Sequence[SamplingParams],
        loras: Sequence[LoRARequest | None],
        use_tqdm: bool | Bar,
    ) -> list[RequestOutput]:
        names = self._loras.use(client, loras)
        keys = [(prompt, choice) for prompt in range(len(token_ids)) for choice in range(params[prompt].n)]
        jobs = [self._job(token_ids[prompt], params[prompt], names[prompt], choice) for prompt, choice in keys]
        done: dict[tuple[int, int], Completion] = {}
        with (
            _bar(use_tqdm, len(jobs)) as bar,
            closing(complete(client, jobs)) as completions,
        ):
            for index, completion in completions:
                done[keys[index]] = completion
                _advance(bar, done.values())
        return [
            RequestOutput(
                prompt=texts[prompt],
                prompt_token_ids=tuple(token_ids[prompt]),
                outputs=tuple(_output(choice, done[prompt, choice]) for choice in range(params[prompt].n)),
                prompt_logprobs=done[prompt, 0].prompt_logprobs or None,
                lora_request=loras[prompt],
            )
            for prompt in range(len(token_ids))
        ]

    def _params(self, given: Any, count: int) -> list[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or self.get_default_sampling_params()] * count
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise TypeError(f"sampling_params must be SamplingParams or a list of them, got {type(given).__name__}")
        for index, each in enumerate(given):
            if not isinstance(each, SamplingParams):
                raise TypeError(f"sampling_params[{index}] must be SamplingParams, got {type(each).__name__}")
        if len(given) != count:
            raise ValueError(f"{count} prompts, but {len(given)} sampling parameters")
        return list(given)

    def _job(self, token_ids: list[int], params: SamplingParams, adapter: str, choice: int) -> BatchItem:
        options = params.options()
        options["adapter_id"] = adapter
        options["choice_index"] = choice
        options["speculation"] = self._speculation
        if choice and params.max_tokens != 0:
            options.pop("prompt_logprobs", None)  # the first choice has them
        if "seed" not in options and self._seeds is not None:
            options["seed"] = self._seeds.getrandbits(SEED_BITS)
        return BatchItem(token_ids, options)


def _bar(use_tqdm: bool | Bar, total: int) -> Any:
    """Where nobody sees it move, as in a file, it is written ten times at most."""
    if not callable(use_tqdm):
        check_type("LLM", "use_tqdm", use_tqdm, bool)
    make: Bar = use_tqdm if callable(use_tqdm) else tqdm
    seen = sys.stderr.isatty()
    return make(
        total=total,
        desc="Completions",
        unit="it",
        disable=use_tqdm is False,
        dynamic_ncols=True,
        miniters=None if seen else -(-total // 10),
        maxinterval=10.0 if seen else math.inf,
    )


def _advance(bar: Any, completions: Any) -> None:
    tokens = sum(len(each.token_ids) for each in completions)
    steps = sum(each.usage.verify_steps for each in completions)
    elapsed = bar.format_dict["elapsed"]
    speed = f"{tokens / max(elapsed, 1e-9):.0f} tokens/s, {tokens / max(steps, 1):.2f} tokens/step"
    bar.set_postfix_str(speed, refresh=False)
    bar.update()


def _output(index: int, completion: Completion) -> CompletionOutput:
    stop_reason = completion.stop_string if completion.stop_string is not None else completion.stop_token_id
    return CompletionOutput(
        index=index,
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        stop_reason=stop_reason,
        logprobs=completion.logprobs,
        seed=completion.seed,
        usage=completion.usage,
    )
