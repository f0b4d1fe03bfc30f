"""The web page in a real browser, against a stand-in for the service."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serving.detection import Detection, DetectRequest
from tests.page_server import CONFLICTS, PAGE, UNREADABLE, Service, serving
from tests.upstream import HISTORICAL, QUESTION, VERDICTS, Detector, gateway, running_upstream

sync_api = pytest.importorskip("playwright.sync_api", reason="the page's tests click through it with playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("the page's tests need Debian's chromium", allow_module_level=True)

Page = Any
Open = Callable[..., Page]
HOSTILE = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>"
REFUSED = "Failed to load resource"  # what Chromium logs of itself about every answer that is an error


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def address(service: Service) -> Iterator[str]:
    with serving(service) as address:
        yield address


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page. In the end it has asked no other origin and logged no error of its own."""
    contexts: list[Any] = []
    errors: list[str] = []
    requests: list[str] = []

    def open_page(locale: str = "en-GB", width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            locale=locale, viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        sync_api.expect(page.locator("#send")).to_be_visible()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [error for error in errors if REFUSED not in error] == []
    assert [url for url in requests if not url.startswith(address)] == []
    assert requests


def expect(page: Page, selector: str) -> Any:
    return sync_api.expect(page.locator(selector))


def say(page: Page, text: str) -> None:
    """Sends a message and waits for its answer."""
    answers = page.locator(".message.assistant").count()
    page.fill("#message", text)
    page.press("#message", "Enter")
    expect(page, ".message.assistant").to_have_count(answers + 1)
    expect(page, "#send").to_be_visible()


def play(page: Page, example: str, follow: str) -> None:
    """Runs an example to its end, with one of its follow-ups."""
    page.click(f"[data-example={example}]")
    page.click("#next:enabled")
    page.click(f"[data-follow={follow}]:enabled")
    expect(page, ".chip").to_have_count(3)
    expect(page, "#send").to_be_visible()


def examples(page: Page) -> list[str]:
    return [card.get_attribute("data-example") for card in page.locator("[data-example]").all()]


@pytest.mark.parametrize(("locale", "words"), [("en-GB", "Implicit conflict"), ("zh-CN", "隐性冲突")])
def test_every_example_has_its_three_kinds_of_follow_up(open_page: Open, locale: str, words: str) -> None:
    page = open_page(locale)
    names = examples(page)
    assert len(names) >= 3
    for name in names:
        page.click(f"[data-example={name}]")
        page.click("#next:enabled")
        for follow, label in (("normal", "ND"), ("revision", "ER"), ("conflict", "IC")):
            page.click(f"[data-follow={follow}]:enabled")
            expect(page, f"aside .label.{label}").to_be_visible()
            page.click("#rewind:enabled")
        page.click("[data-follow=conflict]:enabled")
        expect(page, "aside .label").to_contain_text(words)
        expect(page, "mark").to_have_count(2)
        expect(page, "#send").to_be_visible()
        page.click("header button")


def test_a_conflict_shows_both_sides_and_all_requirements(open_page: Open) -> None:
    page = open_page()
    play(page, "lisbon", "conflict")
    old, new = CONFLICTS[1]
    expect(page, ".pair .historical blockquote").to_have_text(old)
    expect(page, ".pair .historical .type").to_have_text("implied")
    expect(page, ".pair .new blockquote").to_have_text(new)
    expect(page, ".pair .new .type").to_have_text("stated")
    expect(page, ".requirements .clashing").to_have_count(1)
    expect(page, ".bars .IC .share").to_have_text("92.5%")
    bar, box = page.locator(".bars .IC .bar span").bounding_box(), page.locator(".bars .IC .bar").bounding_box()
    assert bar["width"] / box["width"] == pytest.approx(0.925, abs=0.01)
    page.click(".chip >> nth=0")  # an earlier verdict can be looked at again
    expect(page, "aside .label").to_have_text(re.compile("Normal"))
    expect(page, "mark").to_have_count(0)


@pytest.mark.parametrize("before", ["", "🌋🌋 ", "👩‍🚀é\u0065\u0301 𠮷 "])
def test_the_marks_stand_at_the_right_characters(open_page: Open, service: Service, before: str) -> None:
    page = open_page()
    service.conflicts = [("keep it short 🙂", "ten pages 📄")]
    say(page, f"{before}Please keep it short 🙂, it is for a busy reader.")
    say(page, f"{before}And tell it in ten pages 📄 with all the details.")
    expect(page, ".message:nth-child(1) mark.historical").to_have_text("keep it short 🙂")
    expect(page, ".message:nth-child(3) mark.new").to_have_text("ten pages 📄")
    expect(page, "mark").to_have_count(2)


def test_overlapping_marks_lose_no_text(open_page: Open, service: Service) -> None:
    page = open_page()
    service.conflicts = [("short and plain", "long")]
    say(page, "short and plain, please")
    say(page, "a long one")
    cut = """async ([text, marks]) => (await import("./page/spans.js")).pieces(text, marks)"""
    marks = [{"side": "historical", "start": 1, "end": 5}, {"side": "new", "start": 3, "end": 9}]
    pieces = page.evaluate(cut, ["a🌋cdefg", marks])
    assert "".join(piece["text"] for piece in pieces) == "a🌋cdefg"
    assert [(piece["text"], piece["sides"]) for piece in pieces] == [
        ("a", []),
        ("🌋c", ["historical"]),
        ("de", ["historical", "new"]),
        ("fg", ["new"]),
    ]


@pytest.mark.parametrize("choice", ["keep", "change"])
def test_under_clarify_the_question_comes_first_and_a_button_goes_on(
    open_page: Open, service: Service, choice: str
) -> None:
    page = open_page()
    page.select_option("#policy", "clarify")
    play(page, "volcano", "conflict")
    assert service.bodies("/v1/chat/completions") == []
    old, new = CONFLICTS[0]
    expect(page, ".message >> nth=-1").to_contain_text(old)
    page.click(f"[data-choice={choice}]")
    sent = {"keep": f"Keep to this: {old}.", "change": f"I changed my mind: {new}."}[choice]
    expect(page, ".message >> nth=-2").to_contain_text(sent)
    expect(page, ".message >> nth=-1").to_contain_text("You said:")
    asked = service.bodies("/v1/detect")[-1]["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant"] * 3 + ["user"]
    assert asked[-1]["content"] == sent


def test_under_annotate_and_inject_the_model_answers_and_the_question_is_offered(
    open_page: Open, service: Service
) -> None:
    page = open_page()
    for number, policy in enumerate(("annotate", "inject")):
        page.select_option("#policy", policy)
        play(page, "photos", "conflict")
        assert len(service.bodies("/v1/chat/completions")) == number + 1
        assert service.asked[-1][1]["x-synuc-policy"] == policy
        expect(page, ".question [data-choice]").to_have_count(3)
        page.click("header button")


def test_a_message_is_judged_once(open_page: Open, service: Service) -> None:
    """The chat request names the conversation of which the service has just judged this very message."""
    page = open_page()
    say(page, "Plan a picnic, please.")
    [(_, _, detected), (path, headers, chatted)] = service.asked
    assert path == "/v1/chat/completions"
    assert headers["x-synuc-conversation"] == detected["conversation_id"]
    assert chatted["messages"] == detected["messages"]


def test_the_mode_is_asked_for(open_page: Open, service: Service) -> None:
    page = open_page()
    say(page, "Plan a picnic, please.")
    page.select_option("#mode", "fast")
    say(page, "Add a cake.")
    assert [body["mode"] for body in service.bodies("/v1/detect")] == ["reasoned", "fast"]
    expect(page, "aside details").to_have_count(0)


def test_an_undetermined_verdict_says_why(open_page: Open) -> None:
    page = open_page()
    say(page, f"Plan a picnic, {UNREADABLE}.")
    expect(page, ".chip").to_have_text(re.compile(r"Undetermined\s*$"))
    expect(page, ".means").to_contain_text("ran out of room")
    expect(page, ".bars, .pair").to_have_count(0)


def test_hostile_text_stays_text(open_page: Open, service: Service) -> None:
    page = open_page()
    service.conflicts = [(HOSTILE, HOSTILE + "!")]
    say(page, HOSTILE)
    say(page, HOSTILE + "!")
    expect(page, ".pair").to_contain_text(HOSTILE)
    expect(page, ".question").to_contain_text(HOSTILE)
    expect(page, ".message.assistant >> nth=-1").to_contain_text(HOSTILE)
    expect(page, "#app img, #app script").to_have_count(0)
    assert page.title() == "SynUC"


def test_the_policy_lets_no_markup_in(browser: Any, address: str) -> None:
    page = browser.new_page()  # of its own: the browser logs what it refuses
    page.goto(address)
    refused = page.evaluate("try { document.body.innerHTML = '<b>x</b>'; 'let in' } catch (error) { error.name }")
    assert refused == "TypeError"
    assert "unsafe" not in (PAGE / "index.html").read_text("utf-8")
    page.close()


def test_the_language_follows_the_browser_and_can_be_switched(open_page: Open) -> None:
    page = open_page("zh-TW")
    expect(page, "html").to_have_attribute("lang", "zh-Hans")
    expect(page, "#send").to_have_text("发送")
    page.click("[data-example=phone]")
    page.click("#next:enabled")
    page.click("[data-follow=conflict]:enabled")
    expect(page, "aside .label").to_contain_text("隐性冲突")
    expect(page, "#send").to_be_visible()
    page.select_option("#language", "en")
    expect(page, "aside .label").to_contain_text("Implicit conflict")
    expect(page, "#send").to_have_text("Send")
    expect(page, "mark").to_have_count(2)


def test_both_languages_say_everything(open_page: Open) -> None:
    page = open_page()
    names = page.evaluate(
        """async () => {
            const { TEXTS } = await import("./page/texts.js");
            return Object.values(TEXTS).map((words) => Object.keys(words).sort());
        }"""
    )
    assert names[0] == names[1]


def test_a_busy_detector_gives_the_message_back_and_says_when_to_try_again(open_page: Open, service: Service) -> None:
    page = open_page()
    service.faults.append((503, "the queue is full", {"Retry-After": "1"}))
    page.fill("#message", "Plan a picnic.")
    page.press("#message", "Enter")
    expect(page, "[role=alert]").to_contain_text("The service is busy right now.")
    expect(page, "#again").to_be_disabled()
    expect(page, "#message").to_have_value("Plan a picnic.")
    expect(page, ".message").to_have_count(0)
    page.click("#again:enabled")
    expect(page, ".message.assistant").to_contain_text("Plan a picnic.")
    expect(page, ".failure").to_be_hidden()


def test_a_key_is_asked_for_used_and_never_kept(open_page: Open, service: Service) -> None:
    service.key = "s3cret"
    page = open_page()
    expect(page, "#key").to_be_visible()
    page.fill("#message", "Plan a picnic.")
    page.click("#send")
    expect(page, "[role=alert]").to_contain_text("This service asks for a key.")
    page.fill("#key", "s3cret")
    page.press("#key", "Enter")
    expect(page, ".message.assistant").to_be_visible()
    expect(page, ".model").to_have_text("Chat model: stand-in")
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_a_service_that_is_gone_is_said_to_be(open_page: Open) -> None:
    page = open_page()
    page.context.set_offline(True)
    page.fill("#message", "Plan a picnic.")
    page.press("#message", "Enter")
    expect(page, "[role=alert]").to_contain_text("The service can’t be reached.")
    page.context.set_offline(False)
    page.click("#again")
    expect(page, ".message.assistant").to_contain_text("You said:")


def test_the_services_own_words_are_shown(open_page: Open, service: Service) -> None:
    page = open_page("zh-CN")
    service.faults.append((400, "message 3 is no text", {}))
    page.fill("#message", "你好")
    page.press("#message", "Enter")
    expect(page, "[role=alert]").to_contain_text("服务没有接受这个请求。")
    expect(page, "[role=alert]").to_contain_text("message 3 is no text")
    page.press("#message", "Escape")
    expect(page, ".failure").to_be_hidden()


def test_an_answer_that_breaks_off_is_marked_and_asked_for_again(open_page: Open, service: Service) -> None:
    page = open_page()
    service.break_off = True
    say(page, "Plan a picnic.")
    expect(page, ".message.assistant").to_contain_text("This answer is incomplete.")
    expect(page, "[role=alert]").to_contain_text("The answer broke off.")
    service.break_off = False
    page.click("#again")
    expect(page, ".message.assistant").not_to_contain_text("incomplete")
    expect(page, ".message").to_have_count(2)
    assert len(service.bodies("/v1/detect")) == 1


@pytest.mark.parametrize("event", ['{"choices"', "null", '{"choices": [{}]}'])
def test_an_event_that_is_no_chunk_breaks_the_answer_off(open_page: Open, event: str) -> None:
    page = open_page()
    answer = {"content_type": "text/event-stream", "body": f"data: {event}\n\n"}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
    say(page, "Plan a picnic.")
    expect(page, "[role=alert]").to_contain_text("The answer broke off.")


def test_without_a_chat_model_messages_are_only_checked(open_page: Open, service: Service) -> None:
    service.model = ""
    page = open_page()
    say(page, "Plan a picnic.")
    say(page, "Add a cake.")
    expect(page, ".model").to_contain_text("No chat model is connected")
    assert service.bodies("/v1/chat/completions") == []
    roles = [message["role"] for message in service.bodies("/v1/detect")[-1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_escape_stops_and_enter_sends_unless_shifted(open_page: Open, service: Service) -> None:
    page = open_page()
    page.fill("#message", "one")
    page.press("#message", "Shift+Enter")
    page.keyboard.type("two")
    expect(page, "#message").to_have_value("one\ntwo")
    service.pause = 1.0
    page.press("#message", "Enter")
    expect(page, ".message .busy").to_have_text("Checking…")
    page.keyboard.press("Escape")
    expect(page, "#message").to_have_value("one\ntwo")
    expect(page, ".message").to_have_count(0)
    expect(page, ".failure").to_be_hidden()


def test_a_new_conversation_ends_what_is_under_way(open_page: Open, service: Service) -> None:
    page = open_page()
    service.pause = 1.0
    page.fill("#message", "one")
    page.press("#message", "Enter")
    page.click("header button")
    expect(page, ".welcome").to_be_visible()
    service.pause = 0.0
    say(page, "two")
    expect(page, ".message").to_have_count(2)
    first, second = service.bodies("/v1/detect")
    assert first["conversation_id"] != second["conversation_id"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_overflows_and_the_verdict_covers_the_chat(open_page: Open, scheme: str) -> None:
    page = open_page(width=400, scheme=scheme)
    play(page, "volcano", "conflict")
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    expect(page, "aside").to_be_hidden()
    page.click(".chip.IC")
    expect(page, "aside .label").to_be_visible()
    expect(page, "#close").to_be_focused()
    page.keyboard.press("Escape")
    expect(page, "aside").to_be_hidden()
    expect(page, ".chip.IC").to_be_focused()
    page.click(".chip.IC")
    page.click(".pair .historical button")
    expect(page, "mark.historical").to_be_in_viewport()


def test_every_control_has_a_name(open_page: Open) -> None:
    page = open_page()
    play(page, "volcano", "conflict")
    names = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea')]"
        ".filter((control) => !(control.labels?.[0]?.textContent ?? control.textContent).trim()"
        " && !control.ariaLabel && !control.textContent.trim()).map((control) => control.outerHTML)"
    )
    assert names == []
    expect(page, "[role=status]").to_have_text("Implicit conflict")


class AnyDetector(Detector):
    """Messages that begin with no verdict's name are normal."""

    async def __call__(self, request: DetectRequest) -> Detection:
        self.asked.append(request)
        return VERDICTS.get(request.follow_up.split()[0], VERDICTS["normal"])


def test_the_page_and_the_gateway_understand_each_other(browser: Any) -> None:
    """The service's own gateway, ledger and guard; only what the detector says is made up."""
    detector, errors = AnyDetector(), list[str]()
    with running_upstream() as upstream, gateway(detector, upstream) as address:
        page = browser.new_context(locale="en-GB", reduced_motion="reduce").new_page()
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{address}/")
        expect(page, ".model").to_contain_text("echo")
        say(page, "Tell me about Lyon in three sentences.")
        expect(page, ".message.assistant >> nth=-1").to_contain_text("Tell me about Lyon")
        page.select_option("#policy", "clarify")
        say(page, "conflict now, every town in full.")
        expect(page, ".chip.IC").to_have_count(1)
        expect(page, ".message.assistant >> nth=-1").to_contain_text(QUESTION.question)
        expect(page, ".pair .historical").to_contain_text(HISTORICAL.value)
        expect(page, ".pair .new").to_contain_text("<|im_end|>")
        page.click("[data-choice=keep]")
        expect(page, ".message.assistant >> nth=-1").to_contain_text("Keep it at three sentences.")
        expect(page, ".message.assistant").to_have_count(3)
        page.context.close()
    assert errors == []
    # The question was the answer, and no message was judged twice.
    assert [got.path for got in upstream.got].count("/v1/chat/completions") == 2
    assert len(detector.asked) == 3
    assert [turn.assistant for turn in detector.asked[-1].dialogue.turns][-1] == QUESTION.question
