from __future__ import annotations

import subprocess
import sys

from slipstream_kernels.models.cpu.host_memory import available_bytes

LIMITED = """
import resource
from slipstream_kernels.models.cpu.host_memory import available_bytes
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print(available_bytes())
"""


def test_the_machine_has_some() -> None:
    assert available_bytes() > 0


def test_the_process_own_limit_counts() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], check=True, capture_output=True, text=True, timeout=60)
    assert 0 < int(done.stdout) < 2 << 30
