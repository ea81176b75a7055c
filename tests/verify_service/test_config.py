"""Settings become the engine's and the link's configuration; mistakes name the flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.settings import load
from verify_service.config import VerifySettings


def settings(*flags: str) -> VerifySettings:
    return load(VerifySettings, "verify_service", ["--model", "models/demo", *flags])


def test_defaults() -> None:
    given = settings()
    assert (given.host, given.port, given.served_name) == ("127.0.0.1", 50052, "demo")
    assert given.engine_config(8).num_pages == 8
    assert (given.device, given.mode, given.tensor_parallel_size, given.max_context) == ("cpu", "exact", 1, 0)
    link = given.link_config()
    assert (link.configured, link.default, link.deadline) == ((), "auto", 0.02)
    assert (link.transports, link.deadline_share) == (("cuda_ipc", "shm", "grpc"), None)
    assert (link.deadline, link.deadline_reach) == (0.02, 0.25)
    learned = settings("--device", "cuda").link_config()
    assert (learned.deadline, learned.deadline_share) == (0.02, 0.25)
    fixed = settings("--device", "cuda", "--draft-deadline-ms", "3").link_config()
    assert (fixed.deadline, fixed.deadline_share) == (0.003, None)


def test_every_flag_reaches_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_VERIFY_MAX_QUEUED", "9")
    given = settings(
        *("--model-name", "m", "--page-size", "1", "--max-running", "3", "--max-nodes", "8", "--prefill-chunk", "32"),
        *("--no-prefix-cache", "--proposers", "ngram,draft-model", "--default-proposer", "other"),
        *("--draft-deadline-ms", "5", "--attach-token", "secret", "--step-nodes", "40", "--no-adaptive"),
        *("--transports", "grpc,shm"),
    )
    engine = given.engine_config(5)
    assert (engine.page_size, engine.max_running, engine.max_queued, engine.max_nodes) == (1, 3, 9, 8)
    assert (engine.prefill_chunk, engine.prefix_cache, engine.step_nodes) == (32, False, 40)
    assert not engine.adaptive
    link = given.link_config()
    assert (link.configured, link.default) == (("ngram", "draft-model", "other"), "other")
    assert (link.deadline, link.attach_token) == (0.005, "secret")
    assert link.transports == ("grpc", "shm")
    assert given.served_name == "m"
    assert "secret" not in repr(given)


def test_none_means_plain_decoding() -> None:
    link = settings("--proposers", "ngram", "--default-proposer", "none").link_config()
    assert (link.configured, link.default) == (("ngram",), None)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--page-size", "65"), "--page-size: should be less than or equal to 64, got '65'"),
        (("--max-nodes", "0"), "--max-nodes: "),
        (("--kv-cache-dtype", "fp4"), "--kv-cache-dtype: "),
        (("--linear-activations", "int8"), "--linear-activations: "),
        (("--linear-activations", "fp8"), "--linear-activations fp8 needs --device cuda, and there a GPU of compute"),
        (("--kv-cache-dtype", "bfloat16"), "--kv-cache-dtype is bfloat16; here kernels take auto, float32 or fp8"),
        (
            ("--kv-cache-dtype", "float32", "--device", "cuda"),
            "--kv-cache-dtype is float32; here kernels take auto, bfloat16 or fp8",
        ),
        (
            ("--kv-cache-dtype", "fp8", "--device", "cuda", "--mode", "fast", "--attention", "flashinfer"),
            "--attention flashinfer reads no --kv-cache-dtype fp8",
        ),
        (("--draft-deadline-ms", "nan"), "--draft-deadline-ms: "),
        (("--device", "tpu"), "--device"),
        (("--device", "cuda:x"), "--device"),
        (("--mode", "fast"), "--mode fast needs --device cuda"),
        (("--device", "cuda", "--attention", "flashinfer"), "--attention flashinfer needs --mode fast"),
        (("--device", "cuda", "--attention", "cudnn"), "--attention"),
        (
            ("--device", "cuda", "--mode", "fast", "--attention", "flashinfer", "--tensor-parallel-size", "2"),
            "--attention flashinfer needs --tensor-parallel-size 1",
        ),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size: "),
        (("--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization: "),
        (("--log-level", "loud"), "--log-level"),
        (("--transports", "shm,pigeon"), "--transports: must be some of cuda_ipc, shm, grpc, each once"),
        (("--transports", "shm,shm"), "--transports: "),
        (("--feature-boundaries", "1,1"), "--feature-boundaries [1, 1] must be different ones"),
        (("--feature-boundaries", "1,2,3", "--max-boundaries", "2"), "at most --max-boundaries 2 of them"),
        (("--feature-boundaries", "low"), "--feature-boundaries"),
    ],
)
def test_mistakes_name_the_flag(flags: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        settings(*flags)
    assert caught.value.code == 2
    assert line in capsys.readouterr().err


def test_the_prompt_chunk_follows_the_device_unless_given() -> None:
    assert settings().engine_config(8).prefill_chunk == 256
    assert settings("--device", "cuda:1", "--mode", "fast").engine_config(8).prefill_chunk == 2048
    assert settings("--device", "cuda", "--prefill-chunk", "64").engine_config(8).prefill_chunk == 64


def test_the_batch_follows_the_device_unless_given() -> None:
    assert settings().engine_config(8).max_running == 64
    on_gpu = settings("--device", "cuda")
    assert on_gpu.engine_config(8).max_running == 256
    assert on_gpu.max_step_rows == 2048 + 256 + on_gpu.step_nodes
    assert on_gpu.link_config().num_slots == 512
    assert settings("--device", "cuda", "--max-running", "16").engine_config(8).max_running == 16


def test_a_shorter_context_reaches_the_engine() -> None:
    assert settings("--max-context", "100").engine_config(8).max_context == 100


def test_proposers_of_this_process_are_listed_with_their_arguments() -> None:
    given = settings("--inproc", "draft-model:/models/draft", "--inproc", "ngram,suffix", "--inproc-threads", "3")
    assert given.inproc == ("draft-model:/models/draft", "ngram", "suffix")
    assert given.host_limits == (3, None, None, None, "cpu", str(given.model), 32_768)
    limits = ("--inproc-max-nodes", "8", "--inproc-max-depth", "4", "--inproc-topk", "2")
    limited = settings(*limits, "--inproc-boundary-check-mib", "0")
    assert limited.host_limits == (1, 8, 4, 2, "cpu", str(limited.model), 0)
    assert settings("--device", "cuda").host_limits.device == "cuda:0"
    assert limited.inproc == ()


def test_configured_proposers_are_known_with_their_arguments() -> None:
    served = "--proposers", "eagle3,suffix", "--expected-proposers", "eagle3:/models/head:boundaries=1-2"
    given = settings(*served, "--inproc", "mtp:/models/mtp,ngram")
    expected = {"eagle3": "/models/head:boundaries=1-2", "suffix": "", "mtp": "/models/mtp", "ngram": ""}
    assert given.configured_proposers == expected
    assert settings().configured_proposers == {}


def test_boundaries_and_their_memory_reach_the_engine_and_the_link() -> None:
    given = settings("--feature-boundaries", "2,5", "--feature-memory-mib", "3")
    engine = given.engine_config(8)
    assert (engine.feature_boundaries, engine.feature_bytes) == ((2, 5), 3 << 20)
    assert given.link_config().feature_boundaries == (2, 5)
    assert settings().engine_config(8).feature_bytes == 256 << 20
    assert settings("--max-boundaries", "0").engine_config(8).feature_bytes == 0


def test_adapters_are_named_with_their_folders(tmp_path: Path) -> None:
    given = settings("--lora-modules", "a=/x", "--lora-modules", "b=/y=z", "--max-lora-rank", "64")
    assert given.adapters == (("a", Path("/x")), ("b", Path("/y=z")))
    assert (given.adapter_slots, given.engine_config(8).max_adapters, given.engine_config(8).max_adapter_rank) == (
        2,
        2,
        64,
    )
    assert settings().adapter_slots == 0
    assert settings("--lora-modules", "a=/x", "--lora-dir", str(tmp_path)).adapter_slots == 9
    assert settings("--lora-dir", str(tmp_path), "--max-loras", "3").adapter_slots == 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--lora-modules", "a"), ["lora", "NAME=DIR"]),
        (("--lora-modules", "a=/x,a=/y"), ["lora", "twice"]),
        (("--lora-modules", "a=/x,b=/y", "--max-loras", "1"), ["2 adapters", "--max-loras is 1"]),
        (("--lora-dir", "/nowhere/at/all"), ["--lora-dir", "/nowhere/at/all"]),
        (("--max-lora-rank", "129"), ["max", "lora", "rank"]),
    ],
)
def test_adapters_that_cannot_be_are_refused_by_flag(
    flags: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        settings(*flags)
    told = capsys.readouterr().err
    assert all(word in told for word in words), told
