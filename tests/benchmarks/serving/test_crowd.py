"""Real processes on a real server of HTTP that says what was asked, slowly, badly or not at all."""

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.serving.client import ServerAddress
from benchmarks.serving.crowd import Crowd
from benchmarks.serving.load import Closed, Open, Ramp
from benchmarks.serving.prompt_sets import bodies


class Handler(BaseHTTPRequestHandler):
    """Says the prompt letter by letter. "refuse", "break" and "hang" do what they say."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = asked["prompt"]
        with self.server.lock:
            self.server.asked.append((prompt, self.path, self.headers.get("authorization")))
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        if prompt == "hang":
            self.server.over.wait()
        if prompt == "refuse":
            self.send_response(503)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"full")
        else:
            self.say(prompt)
        with self.server.lock:
            self.server.running -= 1

    def say(self, prompt):
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for index, letter in enumerate(prompt):
            end = "length" if index == len(prompt) - 1 else None
            self.chunk(json.dumps({"choices": [{"index": 0, "text": letter, "finish_reason": end}]}))
            if prompt == "break":
                self.close_connection = True
                return
        self.chunk("[DONE]")
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.server.closes  # although the head does not say so

    def chunk(self, data):
        part = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.lock, server.over = [], threading.Lock(), threading.Event()
        server.running, server.most, server.closes = 0, 0, False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def crowd():
    with Crowd(2) as crowd:
        yield crowd


def play(crowd, server, load, prompts, **options):
    target = ServerAddress.of(f"http://127.0.0.1:{server.server_port}/v1/", **options)
    return crowd.play(target, load.plan(len(prompts)), bodies(prompts, "m", 4, token_ids=False))


def test_a_closed_loop_asks_each_prompt_once_and_so_many_at_a_time(crowd, server):
    prompts = [f"say {number}" for number in range(20)]
    played = play(crowd, server, Closed(3), prompts, api_key="secret")
    assert sorted(server.asked) == sorted((prompt, "/v1/completions", "Bearer secret") for prompt in prompts)
    assert server.most <= 3
    assert all(answer.whole and answer.text == prompts[answer.prompt] for answer in played.answers)
    assert all(
        played.begin <= each.due <= each.sent <= each.times[0] <= each.times[-1] <= each.ended
        for each in played.answers
    )


def test_a_server_that_closes_what_it_seemed_to_keep_open_is_asked_again(crowd, server):
    server.closes = True
    played = play(crowd, server, Closed(1), ["one", "two", "three"])
    assert [answer.text for answer in played.answers] == ["one", "two", "three"]
    assert [prompt for prompt, _, _ in server.asked] == ["one", "two", "three"]


def test_an_open_loop_sends_when_due_and_does_not_wait(crowd, server):
    load = Open(40.0, seed=3)
    prompts = ["hang", "hang", *(f"say {number}" for number in range(10))]
    threading.Timer(1.0, server.over.set).start()
    played = play(crowd, server, load, prompts)
    assert {(round(each.due - played.begin, 6), each.prompt) for each in played.answers} == {
        (round(at, 6), prompt) for at, prompt in load.plan(len(prompts)).arrivals
    }
    assert all(answer.whole and answer.sent >= answer.due for answer in played.answers)
    assert server.most >= 3


def test_a_ramp_begins_the_prompts_again_and_ends(crowd, server):
    begun = time.perf_counter()
    played = play(crowd, server, Ramp(4, 1.0), ["one", "two"])
    assert time.perf_counter() - begun >= 1.0
    counts = Counter(answer.text for answer in played.answers)
    assert set(counts) == {"one", "two"}
    assert abs(counts["one"] - counts["two"]) <= 1
    assert all(answer.due < played.begin + 1.0 for answer in played.answers)
    assert server.most <= 4


def test_failures_say_what_happened_and_others_go_on(crowd, server):
    played = play(crowd, server, Closed(2), ["refuse", "say", "break", "hang", "go on"], patience=2.0)
    found = {answer.prompt: answer.failure for answer in played.answers}
    assert found == {
        0: "HTTP 503: full",
        1: "",
        2: "connection: the connection was closed in the middle of a response",
        3: "not done after 2 s",
        4: "",
    }


def test_nobody_there(crowd):
    played = crowd.play(ServerAddress("127.0.0.1", 9), Closed(1).plan(1), [b"{}"])
    (answer,) = played.answers
    assert answer.failure.startswith("connection: ")


@pytest.mark.parametrize("url", ["https://127.0.0.1", "127.0.0.1:8000", "http://"])
def test_other_urls_are_refused(url):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        ServerAddress.of(url)
