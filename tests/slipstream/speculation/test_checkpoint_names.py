"""Families of drafters by the names of their tensors."""

from __future__ import annotations

import json
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from slipstream.speculation.checkpoint_names import method_of, tensor_names
from slipstream.speculation.reading import read
from support.eagle_heads import EAGLE1, EAGLE3, write_head

FAMILIES = {
    "mtp": [["model.layers.0.self_attn.q_proj.weight", "model.mtp_layers.0.input_proj.weight"],
            ["model.layers.61.eh_proj.weight", "model.layers.61.enorm.weight"]],
    "medusa": [["0.0.linear.weight", "0.1.weight"], ["medusa_head.0.0.linear.weight"],
               ["blocks.0.layers.0.weight", "lm_heads.0.weight"]],
    "mlp-speculator": [["speculator.emb.0.weight", "speculator.proj.0.weight"], ["emb.0.weight"]],
    "draft-model": [["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]],
}  # fmt: skip


def write(folder, names, binary):
    tensors = {name: torch.zeros(1) for name in names}
    if binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("method", "names"), [(method, each) for method, all_ in FAMILIES.items() for each in all_])
def test_a_family_is_told_by_its_tensors(tmp_path, method, names, binary):
    write(tmp_path, names, binary)
    assert method_of(tmp_path) == method


@pytest.mark.parametrize("layout", [*EAGLE1.values(), *EAGLE3.values()], ids=[*EAGLE1, *EAGLE3])
def test_every_layout_of_eagle_heads_is_told(tmp_path, layout):
    write_head(tmp_path, layout)
    assert method_of(tmp_path) == layout.family


def test_a_configuration_without_a_method_takes_what_the_folder_holds(tmp_path, tiny_draft_model):
    write_head(tmp_path, EAGLE3["layers.0"])
    assert [config.method for config in read([{"model": str(tmp_path)}, {"model": str(tiny_draft_model)}])] == [
        "eagle3",
        "draft-model",
    ]


def test_weights_in_several_files_are_told_by_their_index(tmp_path):
    index = {"weight_map": {"fc.weight": "a.safetensors", "layers.0.mlp.up_proj.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert tensor_names(tmp_path) == {"fc.weight", "layers.0.mlp.up_proj.weight"}
    assert method_of(tmp_path) == "eagle"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["mask_hidden"], "P-EAGLE"),
        (["fc.weight", "hidden_norm.weight"], "DFlash"),
        (["speculator.emb.0.0.weight", "speculator.emb.0.weight"], "Arctic"),
        (["x"], "no known drafter"),
    ],
)
def test_what_no_proposer_drafts_with_is_refused(tmp_path, names, reason):
    write(tmp_path, names, binary=False)
    with pytest.raises(ValueError, match=reason):
        method_of(tmp_path)
    with pytest.raises(ValueError, match=r"speculative_config: model: .*name the method"):
        read({"model": str(tmp_path)})


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was run",))


def test_a_pickle_is_looked_through_and_never_run(tmp_path):
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"fc.weight": Evil()}, protocol=2))
    assert method_of(tmp_path) == "eagle"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 8),
        ("model.safetensors", (4).to_bytes(8, "little") + b"[1]}"),
        ("model.safetensors", (3).to_bytes(8, "little") + b"[1]"),
        ("model.safetensors.index.json", b"{}x"),
        ("model.safetensors.index.json", b'{"weight_map": 3}'),
        ("model.safetensors.index.json", b'{"weight_map": [[1]]}'),
        ("pytorch_model.bin", b"\x80\x02}."),
        ("medusa_lm_head.pt", b"PK\x03\x04"),
    ],
)
def test_broken_files_are_named(tmp_path, file, content):
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file.removesuffix('.index.json')}.* cannot be read"):
        tensor_names(tmp_path)


def test_an_archive_without_a_pickle_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("readme", "x")
    with pytest.raises(ValueError, match=r"torch\.save"):
        tensor_names(tmp_path)
