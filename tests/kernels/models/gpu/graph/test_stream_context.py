from __future__ import annotations

import pytest
import torch

from slipstream_kernels.models.gpu.graph.stream_context import StreamContext

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def test_a_stream_is_current_within_and_not_after() -> None:
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    here = StreamContext(own)
    for _ in range(2):
        with torch.cuda.stream(other):
            with here:
                assert torch.cuda.current_stream() == own
            assert torch.cuda.current_stream() == other
    with pytest.raises(RuntimeError, match="inside"), here:
        raise RuntimeError("inside")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_devices_come_back_with_their_streams() -> None:
    own = torch.cuda.Stream("cuda:1")
    before = torch.cuda.current_stream("cuda:1")
    with StreamContext(own):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream("cuda:1") == before
