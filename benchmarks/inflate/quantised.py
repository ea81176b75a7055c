"""Tensors of a widened model rounded to fewer bits, as `slipstream quantize` rounds a folder's, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch

from benchmarks.inflate.tensors import TensorSource
from slipstream_kernels.models.checkpoint.expert_names import is_router
from slipstream_kernels.models.checkpoint.quantisation.layouts import quantised_weight
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.tensor_names import expected_shapes, stored_name
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING, HEAD
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode

_WEIGHT = ".weight"


class QuantisedTensors:
    """A source's linear layers, all but the head and routers, rounded to a format; equal at each call."""

    def __init__(self, source: TensorSource, form: RoundedFormat) -> None:
        self._source = source
        self._form = form
        kept = [
            self._module(name)
            for name, shape in expected_shapes(source.config)
            if len(shape) == 2 and name != EMBEDDING and (is_router(name) or not form.takes(shape))
        ]
        self.quantisation_config = form.config([self._module(HEAD), *kept])
        self._quantisation = read_quantisation({"quantization_config": self.quantisation_config})
        self.config = replace(source.config, quantisation=self._quantisation)
        self.decoded_config = source.config

    @property
    def nbytes(self) -> int:
        """Of all tensors as files hold them."""
        total = 0
        for name, shape in expected_shapes(self._source.config):
            total += self._form.nbytes(shape) if self._is_rounded(name, shape) else 2 * prod(shape)
        return total

    def tensors(self) -> Iterator[tuple[str, torch.Tensor | QuantisedWeight]]:
        """Name and tensor, in the order of `expected_shapes`."""
        assert self._quantisation is not None
        for name, tensor in self._source.tensors():
            module = self._module(name)
            scheme = self._quantisation.scheme_of(module) if self._is_rounded(name, tensor.shape) else None
            if scheme is None:
                yield name, tensor
            else:
                outputs, inputs = tensor.shape
                yield name, quantised_weight(scheme, self._form.rounded(tensor), outputs, inputs, module)

    def stored(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor as files hold them."""
        for name, tensor in self._source.tensors():
            if self._is_rounded(name, tensor.shape):
                for part, each in self._form.rounded(tensor).items():
                    yield f"{self._module(name)}.{part}", each
            else:
                yield stored_name(self._source.config, name), tensor

    def decoded(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The same, in the bfloat16 that they stand for."""
        for name, tensor in self.tensors():
            yield name, decode(tensor) if isinstance(tensor, QuantisedWeight) else tensor

    def _is_rounded(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self._quantisation is not None
        linear = len(shape) == 2 and name != EMBEDDING
        return linear and self._quantisation.scheme_of(self._module(name)) is not None

    def _module(self, name: str) -> str:
        """What the folder calls the linear layer of a weight."""
        return stored_name(self._source.config, name).removesuffix(_WEIGHT)
