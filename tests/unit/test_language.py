"""Languages: what records name, what words show, and in which of our two we speak to users."""

from __future__ import annotations

import pytest

from synuc.language import detect_language, language_of, spoken_to


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("How can I write a novel about my grandmother without hurting her?", "en"),
        ("我想写一本关于我祖母的小说，应该怎么开始？", "zh"),
        ("我哋聽日去邊度食飯好呢？你話啦。", "zh"),
        ("日本の歴史について教えてください。", "ja"),
        ("Wie schreibe ich einen Roman über meine Großmutter?", "de"),
        ("1 + 1 = 2", "und"),
        ("", "und"),
    ],
)
def test_detected_language(text: str, code: str) -> None:
    assert detect_language(text) == code


@pytest.mark.parametrize(
    ("said", "language"),
    [
        (("Add a jazz show.",), "en"),
        (("再加一场爵士乐演出。",), "zh"),
        (("用 Python 重写这个 function",), "zh"),
        (("改成PDF",), "zh"),
        (("Translate 你好 into English, please",), "en"),
        (("もっと短くして、英語で書いてください",), "en"),
        (("Добавь джаз",), "en"),
        (("500?", "写一首诗"), "zh"),
        (("500?", "Write a poem"), "en"),
        (("42", "!?"), "en"),
        ((), "en"),
        (("Shorter, please", "写一首诗"), "en"),
    ],
)
def test_the_users_language(said: tuple[str, ...], language: str) -> None:
    assert spoken_to(*said) == language


def test_a_record_names_it_else_the_user_shows_it() -> None:
    german = "Was macht dieses Programm, und warum bricht es ständig mit einem Fehler ab?"
    assert language_of("zh-TW", [german]) == "zh"
    assert language_of("a tongue", [german], ["This answer is in English. " * 9]) == "de"
    assert language_of(None, ["ok"], ["This answer is in English, and so the user may be."]) == "en"
    assert language_of(None, ["```\nprint('hello, world')\n```"], ["42"]) == "und"
