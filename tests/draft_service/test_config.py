from __future__ import annotations

import pytest

from draft_service.config import load_settings


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
