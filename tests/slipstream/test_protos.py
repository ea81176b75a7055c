"""The protos as others compile them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.models import write_tokenizer

ROOT = Path(__file__).parents[2]
PROTOS = sorted(str(path.relative_to(ROOT / "protos")) for path in (ROOT / "protos").rglob("*.proto"))
MODULES = os.environ.get("SLIPSTREAM_NODE_MODULES", "")
CONFIG = {
    "compilerOptions": {
        "target": "es2022", "module": "nodenext", "strict": True, "noUnusedLocals": False, "types": [],
        "lib": ["es2022"], "skipLibCheck": True, "rootDir": ".", "outDir": "out",
    },
    "include": ["**/*.ts"],
}  # fmt: skip


def compile_protos(*arguments: str) -> None:
    well_known = str(files("grpc_tools").joinpath("_proto"))
    assert protoc.main(["protoc", f"-I{ROOT / 'protos'}", f"-I{well_known}", *arguments, *PROTOS]) == 0


def test_every_file_says_where_its_code_goes(tmp_path):
    compile_protos(f"--descriptor_set_out={tmp_path / 'set'}")
    described = FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    assert sorted(each.name for each in described) == PROTOS
    for each in described:
        # protoc-gen-go takes a path with a dot or a slash, and the package's name after a semicolon.
        assert each.options.go_package == "slipstream/v1;slipstreamv1"
        assert each.options.java_package == each.package == "slipstream.v1"
        assert each.options.java_multiple_files


@pytest.mark.skipif(
    not MODULES or shutil.which("node") is None,
    reason="needs node, and SLIPSTREAM_NODE_MODULES with what `make test-clients` installs",
)
def test_a_generated_typescript_client_talks_to_a_gateway(tmp_path):
    tools = Path(MODULES) / ".bin"
    plugin = f"--plugin=protoc-gen-es={tools / 'protoc-gen-es'}"
    compile_protos(plugin, f"--es_out={tmp_path}", "--es_opt=target=ts,import_extension=js")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "tsconfig.json").write_text(json.dumps(CONFIG))
    shutil.copy(ROOT / "tests" / "data" / "typescript" / "client.ts", tmp_path)
    checked = subprocess.run([tools / "tsc"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert checked.returncode == 0, checked.stdout
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    write_tokenizer(folder, vocab_size=512, max_context=512)
    with FakeVerify() as verify, GatewayProcess(folder, verify.address) as gateway:
        command = ["node", "out/client.js", gateway.grpc_address]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
        assert run.returncode == 0, run.stderr
        asked = verify.seen.submits[0]
        assert (asked.sampling.seed, asked.sampling.max_tokens) == (2**63 + 1, 5)
    answer = json.loads(run.stdout)
    assert answer["ids"] == [65, 66, 67, 65, 66]
    assert (answer["seed"], answer["finish"]) == (str(2**63 + 1), "LENGTH")
    assert answer["code"] == "InvalidArgument"
    assert "temperature" in answer["message"]
