"""Our server in several forms, and one that runs already, under every load; answers that differ are found."""

import json
import re
import threading
import urllib.request
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.serving.__main__ import _prompts, main, run, verdict
from benchmarks.serving.forms import DRAFT_SERVICE, NotReadyError, Running, form, started
from benchmarks.serving.options import parse
from benchmarks.serving.session import Budget
from benchmarks.serving.tables import text

ARGUMENTS = ("--drain-seconds 2",)
LOADS = ("--count", "6", "--new-tokens", "12", "--processes", "2", "--warm", "once")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    records = [{"prompt": f"Bread needs flour, water, salt and {number} more."} for number in range(8)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture(scope="module")
def running(tiny_model, tmp_path_factory):
    """A server whose n-grams are drafted in a draft service."""
    chosen = form(DRAFT_SERVICE, tiny_model, "ngram", "cpu", ARGUMENTS)
    with started(chosen, tmp_path_factory.mktemp("logs") / "serve.log", 60.0) as running:
        yield running


@pytest.mark.slow
def test_forms_under_all_loads(tiny_model, prompts, tmp_path):
    output, picture = tmp_path / "serving.json", tmp_path / "serving.png"
    ours = ("--model", str(tiny_model), "--draft", "ngram", "--device", "cpu", "--forms", "plain,inproc")
    loads = ("--concurrency", "1,3", "--rates", "20", "--ramp", "3/1", "--contexts", "64")
    results = ("--output", str(output), "--plot", str(picture), "--ttft-bound-ms", "60000")
    serve = [f"--serve-arg={argument}" for argument in ARGUMENTS]
    assert main(["--prompts", str(prompts), *ours, *LOADS, *loads, "--budgets", "default,8/3", *serve, *results]) == 0
    found = json.loads(output.read_text())
    names = {(cell["form"], cell["budget"], cell["context"], cell["load"]) for cell in found["cells"]}
    assert names == {
        (*which, 64, load)
        for which in (("plain", "default"), ("inproc", "default"), ("inproc", "8/3"))
        for load in ("1", "3", "20/s", "1 to 3 to 1 in 1 s")
    }
    for cell in found["cells"]:
        assert cell["failures"] == {}
        assert cell["tokens_per_second"] > 0
        assert cell["good_share"] == 1.0
        assert cell["answers"] == 6 or cell["kind"] == "ramp"
        assert cell["tokens"] == 12 * cell["answers"] or cell["kind"] == "ramp"
    assert found["comparison"]["differing"] == 0
    assert found["comparison"]["prompts"] == 6
    assert found["comparison"]["compared_by_token_ids"] == 12
    assert found["servers"]["inproc"]["transport"] == "inproc"
    drafted = [cell for cell in found["cells"] if cell["budget"] == "8/3"]
    assert any((cell["tokens_a_step"] or 0) > 1 for cell in drafted)
    assert picture.stat().st_size > 1000
    assert "plain, default, context 64" in text(found)


def test_a_server_that_runs_is_found_by_its_url(running, prompts, tmp_path, capsys):
    assert running.facts["transport"] in {"shm", "grpc"}
    output = tmp_path / "served.json"
    options = ("--server", running.url + "/v1", "--label", "theirs", "--send", "text", "--token-ids", "always")
    assert main(["--prompts", str(prompts), *options, *LOADS, "--concurrency", "2", "--output", str(output)]) == 0
    (cell,) = json.loads(output.read_text())["cells"]
    assert (cell["form"], cell["answers"], cell["failures"]) == ("theirs", 6, {})
    assert "theirs, default" in capsys.readouterr().out


class Meddler(BaseHTTPRequestHandler):
    """Passes requests on to the server at `server.url`, and changes one token id of answers to `server.prompt`."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        request = urllib.request.Request(self.server.url + self.path, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            answer = reply.read()
        if json.loads(body)["prompt"] == list(self.server.prompt):
            answer = re.sub(rb'"token_ids":\[(\d+)', lambda found: found[0] + b"1", answer, count=1)
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_one_token_that_differs_is_found(running, tiny_model, prompts):
    arguments = ("--tokenizer", str(tiny_model), "--token-ids", "always", "--concurrency", "2")
    options = parse("", ["--prompts", str(prompts), "--server", running.url, *LOADS, *arguments])
    read = _prompts(options)
    with ThreadingHTTPServer(("127.0.0.1", 0), Meddler) as meddler:
        meddler.url, meddler.prompt = running.url, read[0].token_ids[4]
        threading.Thread(target=meddler.serve_forever).start()
        between = Running(f"http://127.0.0.1:{meddler.server_port}", running.model)
        servers = {
            name: (lambda each=each: nullcontext(each), [Budget()])
            for name, each in (("own", running), ("met", between), ("again", running))
        }
        content = run(options, read, servers)
        meddler.shutdown()
    assert [cell["differing"] for cell in content["cells"]] == [0, 2, 0]
    assert {(each["prompt"], each["unit"]) for each in content["comparison"]["examples"]} == {(4, "token")}
    assert "2 differ" in text(content)
    assert verdict(content, judged=True) == 1
    assert verdict(content, judged=False) == 0


def test_nothing_answered_is_no_success(prompts):
    options = ("--server", "http://127.0.0.1:9", "--model", "m", "--attach-seconds", "0", "--warm", "none")
    assert main(["--prompts", str(prompts), *options, "--count", "2", "--concurrency", "1"]) == 1


def test_a_form_that_does_not_start_is_told_and_the_others_are_measured(running, prompts, tmp_path):
    def refused():
        raise NotReadyError("not attached: no such head")

    output = tmp_path / "out.json"
    options = parse("", ["--prompts", str(prompts), "--server", running.url, *LOADS, "--output", str(output)])
    options.concurrency = (2,)
    servers = {"broken": (refused, [Budget()]), "own": (lambda: nullcontext(running), [Budget()])}
    content = run(options, _prompts(options), servers)
    assert json.loads(output.read_text()) == content
    assert [(cell["form"], cell["answers"]) for cell in content["cells"]] == [("own", 6)]
    assert "broken failed: not attached: no such head" in text(content)
    assert verdict(content, judged=False) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--forms", "mps", "--device", "cpu"], "needs a GPU"),
        (["--forms", "plain,boat", "--device", "cpu"], "no form"),
        (["--model", "somewhere", "--device", "cpu"], "--draft"),
        (["--budgets", "16", "--device", "cpu"], "ROWS/DEPTH"),
        (["--server", "here"], "http://HOST:PORT"),
        (["--server", "http://127.0.0.1:9", "--forms", "plain"], "runs already"),
        (["--concurrency", "0", "--device", "cpu"], "positive"),
        (["--ramp", "4", "--device", "cpu"], "--ramp"),
        (["--body", "[]", "--device", "cpu"], "JSON object"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        parse("", ["--prompts", "somewhere.jsonl", *arguments])
    assert said in capsys.readouterr().err
