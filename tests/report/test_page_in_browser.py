"""The page in Chromium: that it is shown without a complaint and without a request, and can be read and used.

The browser is the system's own (CHROMIUM says where it is if it has another name), driven by playwright: make
test-page.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_results import RESULTS, SOURCE, result, right, window

from gradcheck_accum.results.comparison import CompareResult

_named = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in _named if name and (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="there is no playwright"),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

TOO_FAINT = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = channels(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *:not(style)")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["title", "desc"].includes(element.tagName) || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const color = light(channels(element.ownerSVGElement ? style.fill : style.color));
    const back = light(channels(window.getComputedStyle(element) && behind(element).join(",")));
    const contrast = (Math.max(color, back) + 0.05) / (Math.min(color, back) + 0.05);
    const named = `${element.tagName}.${element.getAttribute("class")}`;
    if (contrast < 4.5) faint.push(`${named} ${contrast.toFixed(2)}: ${element.textContent.slice(0, 40)}`);
  }
  return faint;
}"""
"""What is written in a color that is too much like what is behind it (WCAG 2.2, 1.4.3)."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from gradcheck_accum.report.frame import Sources
    from gradcheck_accum.report.page import compare_page, verify_page

    folder, found = tmp_path_factory.mktemp("pages"), {}
    long = result(*(right(i) if i % 9 else window(i) for i in range(2000)))
    for name, made in {**RESULTS, "long": long}.items():
        sources = Sources({"train.py": SOURCE})
        html = compare_page(made, sources) if isinstance(made, CompareResult) else verify_page(made, sources)
        found[name] = folder / f"{name}.html"
        found[name].write_text(html, encoding="utf-8")
    return found


NAMES = ["deviating", "equivalent", "open", "error", "compared", "long"]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        profile = tmp_path_factory.mktemp("profile")
        opened = playwright.chromium.launch_persistent_context(
            profile, executable_path=CHROMIUM, headless=True, args=FLAGS
        )
        yield opened
        opened.close()


@pytest.fixture
def shown(context: Any) -> Iterator[Any]:
    """A window of the browser; at its end nothing has been complained of, and nothing asked for but the page."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else complaints.append(request.url))
    yield page
    page.close()
    assert complaints == []


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read(name: str, scheme: str, width: int, pages: dict[str, Path], shown: Any) -> None:
    shown.set_viewport_size({"width": width, "height": 800})
    shown.emulate_media(color_scheme=scheme)
    shown.goto(pages[name].as_uri())
    root = "document.documentElement"
    assert shown.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    for summary in shown.query_selector_all("summary"):
        summary.click()
    assert shown.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")
    assert shown.evaluate(TOO_FAINT) == []
    background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.strip("rgb()").split(","))) < 384) == (scheme == "dark")


def test_what_to_do_leads_to_the_line(pages: dict[str, Path], shown: Any) -> None:
    shown.emulate_media(reduced_motion="reduce")  # no time passes while it scrolls
    shown.goto(pages["deviating"].as_uri())
    shown.click(".todo a")
    assert "loss.backward()" in shown.inner_text("li:target")
    assert shown.evaluate("document.querySelector('li:target').getBoundingClientRect().top < innerHeight")


def test_it_can_be_used_with_the_keyboard_alone(pages: dict[str, Path], shown: Any) -> None:
    shown.goto(pages["deviating"].as_uri())
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    assert shown.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("document.activeElement.tagName"))
        if shown.evaluate("document.activeElement.matches('details:not([open]) > summary')"):
            shown.keyboard.press("Enter")
    assert shown.evaluate("[...document.querySelectorAll('details')].every((one) => one.open)")
    assert {"A", "SUMMARY", "DIV"} <= reached


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_it_scrolls_at_once_where_that_is_asked_for(motion: str, pages: dict[str, Path], shown: Any) -> None:
    shown.emulate_media(reduced_motion=motion)
    shown.goto(pages["deviating"].as_uri())
    behaviour = shown.evaluate("getComputedStyle(document.documentElement).scrollBehavior")
    assert behaviour == ("auto" if motion == "reduce" else "smooth")


def test_pictures_are_called_what_they_show(pages: dict[str, Path], shown: Any) -> None:
    shown.goto(pages["deviating"].as_uri())
    shown.get_by_role("img", name="Gradient error by window").wait_for()
    shown.get_by_role("img", name="Gradient error by parameter").wait_for()
    shown.get_by_role("img", name="Memory and time of the largest window").wait_for()
    shown.get_by_role("region", name="The ledger").wait_for()
