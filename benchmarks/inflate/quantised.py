"""Tensors of a widened model rounded to fewer bits, as `slipstream quantize` rounds a folder's, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.inflate.tensors import TensorSource
from slipstream_kernels.models.checkpoint.quantisation.layouts import quantised_weight
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.quantisation.scheme import HEAD_MODULE
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode

_WEIGHT = ".weight"


class QuantisedTensors:
    """A source's linear layers, all but the head, rounded to a format; a name's tensor is the same at each call."""

    def __init__(self, source: TensorSource, form: RoundedFormat) -> None:
        self._source = source
        self._form = form
        self._quantisation = read_quantisation({"quantization_config": form.config([HEAD_MODULE])})
        self.config = replace(source.config, quantisation=self._quantisation)
        self.decoded_config = source.config

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
        """Name and tensor, in the order of `expected_shapes`."""
        assert self._quantisation is not None
        for name, tensor in self._source.tensors():
            module = name.removesuffix(_WEIGHT)
            scheme = None if tensor.dim() != 2 or name == EMBEDDING else self._quantisation.scheme_of(module)
            if scheme is None:
                yield name, tensor
            else:
                outputs, inputs = tensor.shape
                yield name, quantised_weight(scheme, self._form.rounded(tensor), outputs, inputs, module)

    def decoded(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same, in the bfloat16 that they stand for."""
        for name, tensor in self.tensors():
            yield name, decode(tensor) if isinstance(tensor, QuantisedWeight) else tensor
