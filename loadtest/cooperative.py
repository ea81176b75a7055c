"""Makes the process cooperative (gevent), grpc included. Import it before anything else."""

from __future__ import annotations

import grpc.experimental.gevent
from gevent import monkey

monkey.patch_all()
grpc.experimental.gevent.init_gevent()
