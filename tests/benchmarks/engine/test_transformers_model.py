import json

import torch
from transformers import AutoModelForCausalLM

from benchmarks.engine.transformers_model import TransformersModel
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from support.models import make_tiny_model


def test_it_computes_what_the_folder_computes(tmp_path):
    folder = make_tiny_model(tmp_path, tied=False)
    tensors = load_tensors(folder, ModelConfig.from_folder(folder))
    model = TransformersModel(json.loads((folder / "config.json").read_text()), tensors.items(), "cpu")
    ids = torch.tensor([[5, 9, 300, 17, 4]])
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)(ids).logits
        assert torch.equal(model._model(ids).logits, expected)
    assert model.step_seconds((5, 9, 300), 4) > 0
