"""The review app's page in a real browser: two people at once, the keyboard, hostile texts, a server that goes away."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from review.forms import Kind
from tests.reviewing import HOSTILE, RECORD, Team, a_project, entries, rewrite_all, running, serving_process

sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests click through it with playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("the page's tests need Debian's chromium", allow_module_level=True)

Page = Any
WAIT_MS = 60_000
EXPECTED = ("Failed to load resource",)  # what Chromium logs of itself about every answer that is an error


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=3 * WAIT_MS)
        yield chromium
        chromium.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Team]]:
    with ExitStack() as stack:

        def start(number: int = 1, kind: Kind = Kind.BENCHMARK, turns: int = 2) -> Team:
            made = a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(number, kind, turns), kind)
            return stack.enter_context(running(*made))

        yield start


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens a person's link in a browser of their own. In the end, no page has logged an error or asked elsewhere."""
    contexts: list[Any] = []
    errors: list[str] = []
    requests: list[str] = []

    def visit(team: Team, name: str, locale: str = "en-GB") -> Page:
        context = browser.new_context(locale=locale, viewport={"width": 1400, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.set_default_navigation_timeout(WAIT_MS)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(team.url) else requests.append(request.url))
        page.goto(f"{team.url}/#{team.tokens[name]}")
        sync_api.expect(page.locator("header .who")).to_have_text(name, timeout=WAIT_MS)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [error for error in errors if not error.startswith(EXPECTED)] == []
    assert requests == []


def expect(page: Page, selector: str) -> Any:
    sync_api.expect.set_options(timeout=WAIT_MS)
    return sync_api.expect(page.locator(selector))


def key(page: Page, *keys: str) -> None:
    for one in keys:
        page.keyboard.press(one)


def test_two_people_label_with_the_keyboard_alone(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(3)
    pages = {name: visit(team, name) for name in ("Ana", "Bo")}
    for page in pages.values():
        assert "#" not in page.url  # the token isn't left in the address
    for page in pages.values():
        for answered in range(3):
            expect(page, ".bar").to_be_visible()
            item = page.locator(".desk").get_attribute("data-item")
            key(page, "3")
            expect(page, "#why").to_be_focused()
            page.keyboard.type(f"reason {answered}")
            key(page, "Control+Enter")
            expect(page, f".desk[data-item='{item}'][data-step=label]").to_have_count(0)
        expect(page, "#nothing").to_be_visible()
    progress = team["Lea"].client.get("/api/progress").json()
    assert progress["progress"]["results"] == {"IC": 3}
    assert progress["progress"]["people"] == {"Ana": 3, "Bo": 3}


def test_undo_brings_the_answer_back_as_a_draft(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(2, Kind.SPOT_CHECK)
    page = visit(team, "Ana")
    first = page.locator(".desk").get_attribute("data-item")
    key(page, "2")
    expect(page, "button.ER[aria-pressed=true]").to_be_visible()
    key(page, "n")
    expect(page, f".desk[data-item='{first}']").to_have_count(0)
    key(page, "u")
    expect(page, f".desk[data-item='{first}'] button.ER[aria-pressed=true]").to_be_visible()
    key(page, "1", "Enter")
    expect(page, f".desk[data-item='{first}']").to_have_count(0)
    said = team["Lea"].client.get(f"/api/items/{first}").json()["said"]
    assert [one["form"]["label"] for one in said] == ["ND"]


def test_a_dialogues_text_is_never_markup(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(1)
    rewrite_all(team, lambda n: (True, True))
    page = visit(team, "Cai")
    expect(page, ".desk[data-step=vote]").to_be_visible()
    assert HOSTILE in page.locator(".message.user .text").first.inner_text()
    assert page.locator("main img, main script").count() == 0
    assert "stolen" not in page.title()
    hostile = visit(team, "Lea")
    hostile.click("#go-items")
    hostile.click("[data-item]")
    expect(hostile, ".follow .text").to_contain_text("<script>")
    assert hostile.locator("main img, main script").count() == 0
    hostile.click("#go-audit")
    expect(hostile, ".log li").not_to_have_count(0)
    assert "stolen" not in hostile.title()


def test_long_dialogues_are_folded_in_the_middle(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    page = visit(start(1, turns=12), "Ana")
    expect(page, ".turn").to_have_count(3)
    expect(page, "#unfold").to_contain_text("9 turns")
    assert "/0)" in page.locator(".turn").first.inner_text()
    assert "/11)" in page.locator(".turn").last.inner_text()
    key(page, "f")
    expect(page, ".turn").to_have_count(12)


def test_a_long_follow_up_is_folded_too(tmp_path: Path, visit: Callable[..., Page]) -> None:
    (entry,) = entries(1)
    pasted = entry.content.model_copy(update={"follow_up": "Shorten this: " + "word " * 1000 + "until here."})
    long = entry.model_copy(update={"content": pasted})
    with running(*a_project(f"sqlite:///{tmp_path / 'review.db'}", [long])) as team:
        page = visit(team, "Ana")
        expect(page, ".follow button").to_contain_text("more characters")
        shown = page.locator(".follow").inner_text()
        assert "Shorten this" in shown
        assert "until here." in shown
        assert len(shown) < 1200
        page.click(".follow button")
        expect(page, ".follow").to_contain_text("word " * 1000)
        page.context.close()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_phone_is_wide_enough(start: Callable[..., Team], visit: Callable[..., Page], kind: Kind) -> None:
    team = start(2, kind)
    for name in ("Ana", "Lea"):
        page = visit(team, name)
        page.set_viewport_size({"width": 360, "height": 700})
        for place in ("work", "progress") if name == "Ana" else ("progress", "items", "audit"):
            page.click(f"#go-{place}")
            expect(page, f"main.{place} :is(section, .desk)").not_to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth") == 360, (name, place)


def test_progress_stands_in_the_order_of_the_work(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(4, Kind.SPOT_CHECK)
    for name, labels in (("Ana", ("ND", "ER", "IC")), ("Bo", ("ND", "ER", "ER"))):
        for label in labels:
            team[name].label(label)
    page = visit(team, "Lea")
    page.click("#go-progress")
    expect(page, "#agreement table").to_have_count(3)
    assert page.locator("main table").first.locator("thead th").all_inner_texts() == ["", "Label", "Done"]
    results = page.locator(".counts").first.locator("li").all_inner_texts()
    assert results == ["Normal dialogue: 1", "Explicit revision: 1", "disputed: 1"]
    found = page.locator("#agreement table").last
    assert found.locator("tbody th").all_inner_texts() == sorted(
        found.locator("tbody th").all_inner_texts(), key=["ND", "ER", "IC"].index
    )


def test_a_rewrite_is_looked_over_while_it_is_written(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(1)
    for name in ("Ana", "Bo"):
        team[name].label("ND")
    for name in ("Ana", "Bo"):
        team[name].give("target", {"target": "IC"})
    page = visit(team, "Ana")
    page.fill("#goal", RECORD["goal"])
    page.fill("#why", RECORD["why"]["text"])
    page.fill("#follow_up", "Actually, add a late jazz show.")
    expect(page, "[data-code=revision_signal]").to_contain_text("actually")
    page.fill("#follow_up", RECORD["follow_up"])
    expect(page, ".findings").to_have_count(0)
    expect(page, ".saved").to_have_text("Saved")
    page.reload()
    expect(page, "#follow_up").to_have_value(RECORD["follow_up"])
    page.focus("#follow_up")
    key(page, "Control+Enter")
    expect(page, "#nothing").to_be_visible()
    said = team["Lea"].client.get("/api/items").json()["items"][0]
    assert (said["step"], said["answered"]) == ("rewrite", 1)


def test_evaluators_review_and_vote(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(1)
    rewrite_all(team, lambda n: (True, True))
    for name in ("Cai", "Dee"):
        team[name].give("vote", {"better": "second"})
    page = visit(team, "Eli")
    expect(page, ".candidate").to_have_count(2)
    key(page, "2", "n")
    expect(page, "#nothing").to_be_visible()
    assert team["Lea"].client.get("/api/progress").json()["progress"]["results"] == {"IC": 1}


def test_the_page_speaks_chinese(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(1)
    page = visit(team, "Ana", "zh-CN")
    expect(page, "#submit").to_contain_text("下一条")
    expect(page, "button.IC").to_contain_text("隐性冲突")
    page.select_option("#language", "en")
    expect(page, "button.IC").to_contain_text("Implicit conflict")
    page.reload()
    expect(page, "button.IC").to_contain_text("Implicit conflict")


def test_everybody_sees_how_many_people_are_needed(start: Callable[..., Team], visit: Callable[..., Page]) -> None:
    team = start(1)
    for name, locale, shown in (
        ("Lea", "en-GB", ["annotators23", "adjudicators1besides the two annotators of an item2", "leads–1"]),
        ("Ana", "zh-CN", ["标注者23", "裁决者1不能是该条目的两位标注者2"]),
    ):
        page = visit(team, name, locale)
        page.click("#go-progress")
        expect(page, "#team tbody tr").to_have_count(4)
        rows = [row.text_content() for row in page.locator("#team tbody tr").all()]
        assert [row for row in shown if row not in rows] == []
        expect(page, "#team .note").to_contain_text("5")


def test_both_languages_say_the_same_things(browser: Any, start: Callable[..., Team]) -> None:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(start(1).url)
    texts = page.evaluate("import('/page/texts.js').then(({TEXTS}) => TEXTS)")
    page.close()
    assert texts["en"].keys() == texts["zh"].keys()
    for name, words in texts["en"].items():
        assert sorted(re.findall(r"{\w+}", words)) == sorted(re.findall(r"{\w+}", texts["zh"][name])), name


def test_a_closed_laptop_loses_nothing(tmp_path: Path, browser: Any) -> None:
    config, tokens = a_project(f"sqlite:///{tmp_path / 'review.db'}", entries(1))
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    with serving_process(tmp_path, config) as (process, url):
        page.goto(f"{url}/#{tokens['Ana']}")
        page.click("button.IC")
        page.fill("#why", "saved by the server")
        expect(page, ".saved").to_have_text("Saved")
        process.kill()
        process.wait()
        page.fill("#why", "written while the server was away")
        expect(page, ".saved").not_to_have_text("Saved")
        port = int(url.rpartition(":")[2])
    with serving_process(tmp_path, config, port) as (_, url):
        page.goto(f"{url}/")
        expect(page, "#why").to_have_value("written while the server was away")
        expect(page, ".saved").to_have_text("Saved")
    context.close()


def test_a_tab_that_is_closed_while_saving_loses_nothing(
    start: Callable[..., Team], visit: Callable[..., Page]
) -> None:
    team = start(1)
    page = visit(team, "Ana")
    held: list[Any] = []
    page.route("**/draft", lambda route: held.append(route))
    page.click("button.IC")
    page.fill("#why", "on its way to the server")
    for _ in range(600):
        if held:
            break
        page.wait_for_timeout(100)
    assert held
    page.close()
    again = page.context.new_page()
    again.goto(team.url)
    expect(again, "#why").to_have_value("on its way to the server")
    expect(again, ".saved").to_have_text("Saved")
    assert team["Ana"].next()["draft"]["why"]["text"] == "on its way to the server"


def test_what_a_proxy_answers_for_its_server_is_tried_again(
    start: Callable[..., Team], visit: Callable[..., Page]
) -> None:
    team = start(1)
    page = visit(team, "Ana")
    page.route("**/draft", lambda route: route.fulfill(status=502, body="<h1>Bad Gateway</h1>"))
    with page.expect_response("**/draft"):
        page.click("button.ER")
    expect(page, ".saved").to_have_text("Kept in this browser…")
    page.unroute("**/draft")
    expect(page, ".saved").to_have_text("Saved")
    assert page.locator(".failure").count() == 0


def test_without_a_link_there_is_nothing_to_see(browser: Any, start: Callable[..., Team]) -> None:
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    team = start(1)
    for address in (team.url, f"{team.url}/#guessed"):
        page.goto(address)
        expect(page, "#outside").to_be_visible()
    page.close()
