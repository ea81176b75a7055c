from __future__ import annotations

import pytest

from draft_service.config import load_settings
from draft_service.proposers.registry import ProposerSpec
from draft_service.protocol.placement import CPU, Placement


def test_proposers_come_from_flags_environment_and_file(tmp_path, monkeypatch) -> None:
    file = tmp_path / "draft.toml"
    file.write_text('proposers = ["ngram:4", "draft-model:/models/small"]\nmax_nodes = 12\n')
    from_file = load_settings(["--config", str(file)])
    assert from_file.proposers == ("ngram:4", "draft-model:/models/small")
    assert from_file.max_nodes == 12
    monkeypatch.setenv("SLIPSTREAM_DRAFT_PROPOSERS", "ngram:5")
    assert load_settings(["--config", str(file)]).proposers == ("ngram:5",)
    flags = ["--proposer", "ngram:2-3", "--proposers", "small=my.module:make:DIR", "--proposer=draft-model:/x"]
    assert load_settings(flags).proposers == ("ngram:2-3", "small=my.module:make:DIR", "draft-model:/x")


def test_a_configuration_as_json_names_the_proposers_and_their_parameters(tmp_path, monkeypatch) -> None:
    text = '[{"method": "ngram", "num_speculative_tokens": 3}, {"method": "eagle3", "model": "/ab"}]'
    specs = (ProposerSpec("ngram", "", "max_depth=3:max_nodes=4"), ProposerSpec("eagle3", "", "/ab"))
    assert load_settings(["--speculative-config", text]).hosted == specs
    file = tmp_path / "speculation.json"
    file.write_text(text)
    settings = load_settings([f"--speculative-config={file}"])
    file.unlink()
    assert settings.hosted == specs
    monkeypatch.setenv("SLIPSTREAM_DRAFT_SPECULATIVE_CONFIG", '{"speculative_algorithm": "NGRAM"}')
    assert load_settings([]).hosted == (ProposerSpec("ngram", "", ""),)
    monkeypatch.delenv("SLIPSTREAM_DRAFT_SPECULATIVE_CONFIG")
    assert load_settings(["--proposers", "ngram:4"]).hosted == (ProposerSpec("ngram", "", "4"),)


def test_the_check_of_boundaries_can_be_left_out(monkeypatch) -> None:
    monkeypatch.delenv("SLIPSTREAM_DRAFT_BOUNDARY_CHECK", raising=False)
    assert load_settings([]).boundary_check
    assert not load_settings(["--no-boundary-check"]).boundary_check


def test_a_device_is_named_as_torch_names_it(capsys) -> None:
    assert load_settings([]).device == "auto"
    assert load_settings(["--device", "cuda:3"]).device == "cuda:3"
    with pytest.raises(SystemExit):
        load_settings(["--device", "gpu"])
    assert "device" in capsys.readouterr().err


def test_a_drafter_with_a_gpu_looks_for_records_without_sleeping() -> None:
    gpu = Placement("cuda:0", "GPU-x")
    assert (load_settings([]).spin(gpu), load_settings([]).spin(CPU)) == (0.01, 0.0)
    named = load_settings(["--spin-ms", "2"])
    assert named.spin(gpu) == named.spin(CPU) == 0.002


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"method": "ngram", "topk": 2}', "topk is no parameter of ngram"),
        ('{"method": "ngram", "max_nodes": 65}', "max_nodes: should be less than or equal to 64, got 65"),
        ("/no/such/file.json", "neither JSON nor a file"),
        ('{"method": "mtp"}', "mtp needs a model"),
        ('{"method": "ngram", "inproc": true}', "inproc is for whoever starts the verify service"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_key(text, reason, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(["--speculative-config", text])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_lockstep_is_the_only_mode_that_is_left(monkeypatch, capsys) -> None:
    assert load_settings(["--mode", "lockstep"]).mode == load_settings([]).mode
    with pytest.raises(SystemExit) as ended:
        load_settings(["--mode", "ahead"])
    assert ended.value.code == 2
    assert "--mode: leave the flag out" in capsys.readouterr().err
    monkeypatch.setenv("SLIPSTREAM_DRAFT_MODE", "ahead-or-wait")
    with pytest.raises(SystemExit):
        load_settings([])
    assert "got 'ahead-or-wait'" in capsys.readouterr().err


def test_one_way_of_naming_proposers_excludes_the_other(capsys) -> None:
    with pytest.raises(SystemExit):
        load_settings(["--speculative-config", '{"method": "ngram"}', "--proposer", "suffix"])
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--proposers", "ngram,ngram"],
        ["--proposers", ""],
        ["--proposers", "x=module"],
        ["--max-nodes", "1"],
        ["--max-depth", "64"],
        ["--topk", "0"],
        ["--threads", "0"],
        ["--port", "70000"],
        ["--no-such-flag"],
    ],
)
def test_bad_values_name_the_flag(flags, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        load_settings(flags)
    assert ended.value.code == 2
    assert flags[0].removesuffix("s") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ((), "127.0.0.1:7"),
        (("--host", "::"), "[::]:7"),
        (("--host", "0.0.0.0", "--advertise", "draft-1"), "draft-1:7"),
        (("--advertise", "draft-1:9"), "draft-1:9"),
        (("--advertise", "[2001:db8::7]"), "[2001:db8::7]:7"),
        (("--advertise", "[2001:db8::7]:9"), "[2001:db8::7]:9"),
    ],
)
def test_others_are_told_where_to_reach_it(flags: tuple[str, ...], address: str) -> None:
    assert load_settings(list(flags)).address(7) == address


@pytest.mark.parametrize("name", ["http://draft", "draft:x", "2001:db8::7", "a b"])
def test_what_is_no_address_cannot_be_advertised(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load_settings(["--advertise", name])
    assert "--advertise" in capsys.readouterr().err
