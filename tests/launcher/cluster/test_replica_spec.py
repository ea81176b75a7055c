from __future__ import annotations

import json
from pathlib import Path

from launcher.cluster.autoscaler import Scaling
from launcher.cluster.replica_spec import ReplicaSpec
from launcher.services.tls_files import TlsFiles


def test_what_is_remembered_as_text_is_the_same_afterwards():
    files = TlsFiles(Path("/ca"), Path("/cert"), Path("/key"), "name")
    spec = ReplicaSpec("/m", ("ngram",), ("--mode", "exact"), (), 2.0, 1).with_tls(files)
    assert ReplicaSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert spec.tls_files == files and ReplicaSpec("/m").tls_files is None
    scaling = Scaling(1, 3, longest_wait=2.0)
    assert Scaling.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling
