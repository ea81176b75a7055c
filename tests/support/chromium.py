"""A real Chromium without a window, that notes what a page must not do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
READY = ".ask button[type=submit]:enabled"
# Containers and CI machines often run as root, or without namespaces for the sandbox; the pages here are our own.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def executable() -> str:
    """Where it is. Skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs a Chromium, such as Debian's package `chromium`")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Watch:
    """What a page did: errors in its console or scripts, and requests to any origin but its own."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


@contextmanager
def watched_page(
    browser: Browser, url: str, *, refusals: int | None = 0, ready: str = READY, **options: Any
) -> Iterator[Page]:
    """An open page with storage of its own. At the end it must have made no error, and stayed with its origin.

    refusals: answers that are errors, which the browser itself tells the console; None: any number. ready: what is
        there once the page can be used.
    """
    watch, origin = Watch(), urlsplit(url).netloc
    context = browser.new_context(**options)
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.on(
        "console", lambda message: watch.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("request", lambda request: urlsplit(request.url).netloc == origin or watch.elsewhere.append(request.url))
    page.on("dialog", lambda dialog: (watch.errors.append(dialog.message), dialog.dismiss()))
    try:
        page.goto(url)
        page.wait_for_selector(ready)
        yield page
        refused = [error for error in watch.errors if error.startswith("Failed to load resource")]
        assert refusals in (None, len(refused)), watch.errors
        assert (len(watch.errors), watch.elsewhere) == (len(refused), []), watch
    finally:
        context.close()
