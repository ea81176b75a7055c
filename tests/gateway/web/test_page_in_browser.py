"""The page in a real browser, before real services: it answers, shows trees, races, and outlives its drafter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.tokens.tokenizer import Tokenizer
from support.ask import state
from support.chromium import READY, chromium, watched_page
from support.cluster import Cluster
from support.fake_verify import FakeVerify
from support.gateway_process import GatewayProcess
from support.second_draft import draft_service

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
IDENTICAL = re.compile(r"Identical so far: (\d+) of (\d+)")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(browser: Browser, demo_model: Path, demo_draft_model: Path) -> Iterator[Cluster]:
    draft = (f"draft-model:{demo_draft_model}", "ngram")
    patient = ("--draft-deadline-ms", "5000")
    with Cluster(demo_model, draft=draft, verify_args=patient, gateway_args=("--allow-shares",)) as started:
        yield started


@pytest.fixture
def page(browser: Browser, cluster: Cluster) -> Iterator[Page]:
    with watched_page(browser, f"{cluster.http_url}/") as opened:
        yield opened


def set_field(page: Page, name: str, value: str) -> None:
    field = page.locator(f".settings [name={name}]")
    if field.evaluate("field => field.tagName") == "SELECT":
        field.select_option(value)
    else:
        field.fill(value)


def ask(page: Page, question: str) -> None:
    page.fill("#question", question)
    page.keyboard.press("Enter")


def wait_answered(page: Page) -> None:
    page.wait_for_selector(".chat button[type=submit]")
    page.wait_for_selector(".message.assistant .note")


def race(page: Page, temperature: str, tokens: str) -> None:
    page.click("#tab-race")
    for name, value in (("temperature", temperature), ("maxTokens", tokens), ("seed", "7")):
        set_field(page, name, value)
    page.click(".race button[type=submit]")


def test_a_chat_has_coloured_tokens_a_tree_to_scrub_through_and_outlives_a_reload(page: Page) -> None:
    set_field(page, "temperature", "0")
    set_field(page, "speculation", "on")
    page.check(".settings [name=logprobs]")
    ask(page, "Count from one to ten in words.")
    wait_answered(page)
    text = page.inner_text(".message.assistant .text")
    assert len(text) > 20
    assert page.locator(".token.draft").count() > 0 and page.locator(".token.bonus").count() > 0
    page.locator(".message .token.draft").first.hover()
    assert re.search(
        r"accepted draft by draft-model · step \d+ · token \d+ · path probability 0\.\d+ · log probability -?\d",
        page.inner_text(".chat .pointed"),
    )
    accepted = int(page.locator(".tree g.draft.accepted").count())
    assert accepted == int(page.inner_text(".sentence").split(": ")[1].split(" of ")[0])
    assert page.locator(".tree path.accepted").count() >= accepted
    page.focus(".scrub input")
    page.keyboard.press("Home")
    expect(page.locator(".sentence")).to_contain_text("Step 1:")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sentence")).to_contain_text("Step 2:")
    assert page.locator(".step.chosen").count() == 1
    page.locator(".message .token.draft", has_text=re.compile(r"\S")).last.click()
    assert page.locator(".live").get_attribute("aria-pressed") == "false"
    assert page.locator(".strip canvas").count() == 4
    page.reload()
    expect(page.locator(".message.assistant .text")).to_have_text(text)
    assert page.locator(".settings [name=temperature]").input_value() == "0"


def test_an_answer_can_be_stopped_from_the_keyboard_and_asked_on(page: Page, cluster: Cluster) -> None:
    set_field(page, "maxTokens", "3500")
    set_field(page, "system", "Never stop.")
    page.fill("#question", "Say the numbers from 1 to 5000.")
    page.focus("#question")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.keyboard.press("Enter")
    assert asked.value.post_data_json["messages"][0] == {"role": "system", "content": "Never stop."}
    page.wait_for_selector(".message.assistant .token")
    page.focus("#question")
    page.keyboard.press("Escape")
    expect(page.locator(".message.assistant .note")).to_contain_text("tokens a step")
    page.wait_for_selector(".chat button[type=submit]")
    set_field(page, "maxTokens", "8")
    ask(page, "And now?")
    expect(page.locator(".message.assistant .note")).to_have_count(2)
    assert [each["role"] for each in asked.value.post_data_json["messages"]] == ["system", "user"]


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_the_race_is_won_with_the_same_tokens(page: Page, temperature: str) -> None:
    race(page, temperature, "96")
    page.wait_for_selector(".tally")
    verdict = page.inner_text(".verdict")
    found = IDENTICAL.search(verdict)
    assert found is not None and found[1] == found[2] != "0", verdict
    assert "1 of 1 answers identical" in verdict
    plain, drafted = (int(each) for each in re.findall(r"(\d+) (?:steps without|with speculation)", verdict))
    assert drafted < plain
    assert page.inner_text(".column:first-child .text") == page.inner_text(".column:last-child .text")


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_twenty_races_are_won(page: Page, temperature: str) -> None:
    page.click("#tab-race")
    set_field(page, "temperature", temperature)
    set_field(page, "maxTokens", "48")
    page.click(".race .all")
    expect(page.locator(".tally")).to_contain_text("20 of 20 answers identical", timeout=300_000)


def test_the_keyboard_reaches_views_and_tokens(page: Page) -> None:
    set_field(page, "maxTokens", "12")
    set_field(page, "speculation", "on")
    ask(page, "Count from one to ten in words.")
    wait_answered(page)
    page.focus(".message .tokens")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".chat .pointed")).to_contain_text("token 1")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".chat .pointed")).to_contain_text("token 2")
    assert page.locator(".message .token.here").count() == 1
    page.keyboard.press("Enter")
    assert page.locator(".message .step.chosen .token.here").count() == 1
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-race"
    assert page.locator("#view .race").is_visible()
    page.keyboard.press("End")
    assert page.locator("#view .services").is_visible()
    page.keyboard.press("Home")
    assert page.locator("#view .chat").is_visible()
    assert page.locator("[role=tab][tabindex='0']").count() == 1


def test_a_race_follows_its_text_until_its_reader_scrolls_away(page: Page) -> None:
    page.set_viewport_size({"width": 1000, "height": 600})
    page.click("#tab-race")
    page.fill("#race-prompt", "Write a long story about a dragon and a boy.")
    race(page, "0", "2000")
    box = page.locator(".column:last-child .text")
    page.wait_for_function("box => box.scrollTop > 60", arg=box.element_handle())
    assert box.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight") < 60
    box.evaluate("box => { box.scrollTop = 0; }")
    grown = len(box.inner_text()) + 100
    page.wait_for_function("([box, most]) => box.innerText.length > most", arg=[box.element_handle(), grown])
    assert box.evaluate("box => box.scrollTop") == 0
    page.wait_for_selector(".race button[type=submit]")
    race(page, "0", "2000")
    page.click(".race .stop")
    page.wait_for_selector(".race button[type=submit]")


def test_a_verify_service_that_dies_and_comes_back_is_told_of_and_no_error(page: Page, cluster: Cluster) -> None:
    expect(page.locator(".status")).to_contain_text(": ready")
    cluster.kill("verify")
    try:
        expect(page.locator(".status .bad")).to_have_count(1)
        page.click("#tab-services")
        expect(page.locator(".services h3 .bad")).to_have_text("away")
    finally:
        cluster.start("verify")
        cluster.wait_ready()
    expect(page.locator(".status")).to_contain_text(": ready")
    expect(page.locator(".services tbody tr")).to_have_count(2)


def test_markup_in_an_answer_is_text(
    browser: Browser, gateway: GatewayProcess, verify: FakeVerify, tokenizer_folder: Path
) -> None:
    said = Tokenizer(tokenizer_folder).encode(HOSTILE, add_special_tokens=False)
    verify.reset(tokens=said)
    with watched_page(browser, f"{gateway.http_url}/") as page:
        set_field(page, "maxTokens", str(len(said)))
        ask(page, HOSTILE)
        wait_answered(page)
        assert page.inner_text(".message.assistant .text") == HOSTILE
        assert page.inner_text(".message.user .text") == HOSTILE
        assert page.locator(".message img, .message script").count() == 0
        page.locator(".message .token").first.hover()
        page.reload()
        expect(page.locator(".message.assistant .text")).to_have_text(HOSTILE)
        assert page.title() == "Slipstream"


def test_a_key_is_asked_for_and_kept_by_the_tab_alone(
    browser: Browser, verify: FakeVerify, tokenizer_folder: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys]\n"open-sesame" = "somebody"\n')
    with (
        GatewayProcess(tokenizer_folder, verify.address, "--api-keys-file", str(keys)) as process,
        watched_page(browser, f"{process.http_url}/", refusals=None, ready=".status .bad") as page,
    ):
        expect(page.locator(".status")).to_contain_text("API key")
        set_field(page, "key", "open-sesame")
        page.keyboard.press("Tab")
        page.wait_for_selector(READY)
        set_field(page, "maxTokens", "5")
        ask(page, "Hello")
        wait_answered(page)
        assert verify.seen.submits[-1].tenant == "somebody"
        page.reload()
        page.wait_for_selector(READY)
        assert "open-sesame" not in page.evaluate("JSON.stringify(localStorage)")
        assert page.evaluate("sessionStorage.length") == 1


def test_what_the_server_refuses_is_said_in_its_words(browser: Browser, cluster: Cluster) -> None:
    with watched_page(browser, f"{cluster.http_url}/", refusals=1) as page:
        set_field(page, "maxTokens", "999999")
        with page.expect_response("**/v1/chat/completions") as refused:
            ask(page, "Hello")
        assert refused.value.status == 400
        expect(page.locator(".chat .error")).to_contain_text("the model's context is 4096 tokens")


def test_a_phone_in_the_dark_sees_all_of_it(browser: Browser, cluster: Cluster) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "has_touch": True}
    with watched_page(browser, f"{cluster.http_url}/", **phone) as page:
        ask(page, "Hello")
        wait_answered(page)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 21, 26)"
        page.tap("#tab-services")
        expect(page.locator(".services tbody tr")).to_have_count(2)


def test_a_second_draft_service_takes_over_and_hands_back(page: Page, cluster: Cluster) -> None:
    page.click("#tab-services")
    expect(page.locator(".services tbody tr")).to_have_count(2)
    assert page.locator(".services button").count() == 0
    with draft_service(cluster, "ngram", arguments=("--name", "second", "--share", "0")):
        row = page.locator(".services tbody tr", has_text="second")
        row.get_by_role("button", name="Take over with second").click()
        row.get_by_role("button", name="Hand over from second").wait_for()
        set_field(page, "proposer", "ngram")
        race(page, "0", "64")
        page.wait_for_selector(".tally")
        assert "1 of 1 answers identical" in page.inner_text(".verdict")
        taken = [each for each in state(cluster).drafters if each.name == "second" and each.drafted_tokens]
        assert [each.proposer for each in taken] == ["ngram"]
        page.click("#tab-services")
        row.get_by_role("button", name="Hand over from second").click()
        row.get_by_role("button", name="Take over with second").wait_for()
    expect(page.locator(".services tbody tr")).to_have_count(2)


def test_the_race_goes_on_without_its_drafter_and_the_picture_says_so(page: Page, cluster: Cluster) -> None:
    race(page, "1", "900")
    page.wait_for_selector(".column:first-child .token.draft")
    cluster.kill("draft")
    expect(page.locator(".state.alone")).to_contain_text("the target goes on alone")
    page.wait_for_selector(".tally")
    found = IDENTICAL.search(page.inner_text(".verdict"))
    assert found is not None and found[1] == found[2]
    expect(page.locator(".absent")).to_contain_text("draft-model")
    page.click("#tab-services")
    expect(page.locator(".services .none")).to_contain_text("Nothing is attached that drafts")
