"""Which language a text is in: as a record names it, as its words show, and which of our two we speak to its writer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

# ISO 639-1 codes with the names that WildChat and LMSYS-Chat-1M give them. Only records name the last line's:
# the detector doesn't know them, or takes short English for them.
_LANGUAGES = """
en English zh Chinese ja Japanese ko Korean vi Vietnamese th Thai id Indonesian ms Malay tl Tagalog
hi Hindi bn Bengali ur Urdu ta Tamil te Telugu ml Malayalam kn Kannada mr Marathi gu Gujarati pa Punjabi
ne Nepali si Sinhala my Burmese km Khmer lo Lao mn Mongolian kk Kazakh uz Uzbek tr Turkish az Azerbaijani
fa Persian ar Arabic he Hebrew ku Kurdish ps Pashto ru Russian uk Ukrainian be Belarusian bg Bulgarian
sr Serbian hr Croatian bs Bosnian sl Slovenian mk Macedonian cs Czech sk Slovak pl Polish hu Hungarian
ro Romanian el Greek sq Albanian lt Lithuanian lv Latvian et Estonian fi Finnish sv Swedish no Norwegian
nn Nynorsk da Danish is Icelandic nl Dutch de German fr French es Spanish pt Portuguese it Italian
ca Catalan gl Galician eu Basque ga Irish cy Welsh af Afrikaans sw Swahili am Amharic ha Hausa yo Yoruba
zu Zulu so Somali eo Esperanto hy Armenian ka Georgian
nb Bokmal mi Maori sn Shona st Sotho tn Tswana ts Tsonga xh Xhosa lg Ganda la Latin
""".strip()
_CODES = _LANGUAGES.split()[::2]
_NAMES = dict(zip(_LANGUAGES.casefold().split()[1::2], _CODES, strict=True))
_DETECTABLE = _LANGUAGES.rpartition("\n")[0].split()[::2]
_ALIASES = {
    "cmn": "zh",
    "yue": "zh",
    "wuu": "zh",
    "zho": "zh",
    "cantonese": "zh",
    "mandarin": "zh",
    "eng": "en",
}
UNDETERMINED = "und"
"""ISO 639-2's code for a language that can't be told."""

SAMPLE_CHARS = 2_000
"""Characters of a text that are looked at."""

TELLING_BYTES = 60
"""Of a user's text; in less (`continue`, `hi`) any language is found, so that the answers have to help."""

_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)

DENSE = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters, as ranges in a regular expression's class: a script without spaces."""

KANA = r"\u3040-\u30ff"
UNSPACED = rf"\u2e80-\u2fdf{KANA}{DENSE}"
"""Chinese characters, their radicals, and kana, likewise: of what sets no spaces, all that we read by the character."""

_HAN = re.compile(rf"[{DENSE}]")
_KANA = re.compile(rf"[{KANA}]")
_WORD = re.compile(rf"[^\W\d_{UNSPACED}]+")

Language = Literal["en", "zh"]
"""The languages in which we speak to users."""


def language_of(given: object, user: Iterable[str], assistant: Iterable[str] = ()) -> str:
    """ISO 639-1 code of a dialogue: the one that its record gives, else that of what the user wrote; `und` if nothing
    tells.

    `given` may be a code or a name (`zh-CN`, `Chinese`). Of too few words of the user's, `assistant`'s texts count too;
    code blocks never do.
    """
    word = re.match(r"[a-z]+", given.strip().casefold()) if isinstance(given, str) else None
    if word:
        known = _NAMES.get(word[0]) or _ALIASES.get(word[0])
        if known or word[0] in _CODES:
            return known or word[0]
    text = _prose(user)
    if len(text.encode()) < TELLING_BYTES:
        text += "\n" + _prose(assistant)
    return detect_language(text[:SAMPLE_CHARS])


def detect_language(text: str) -> str:
    """ISO 639-1 code of a text, or `und` if it has no letters."""
    if not any(char.isalpha() for char in text):
        return UNDETERMINED
    label = str(_identifier().classify(text)[0])
    return _ALIASES.get(label, label)


def spoken_to(*texts: str) -> Language:
    """In which of our languages to speak to who wrote `texts`: that of the first text that has letters. It is Chinese
    with at least as many Chinese characters as words of other scripts, else English.

    Works on a few words, also where names and code stand between them. Chinese characters beside kana are Japanese.
    """
    text = next((text for text in texts if any(char.isalpha() for char in text)), "")
    han, kana, words = (len(pattern.findall(text)) for pattern in (_HAN, _KANA, _WORD))
    return "zh" if han and han >= words and kana * 5 <= han else "en"


def _prose(texts: Iterable[str]) -> str:
    # Text by text: a fence that is never closed must not swallow the texts behind it.
    return "\n".join(_CODE_BLOCK.sub("", text) for text in texts)


@cache
def _identifier() -> LanguageIdentifier:
    # Its model takes a while to load, and many commands need no language.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    identifier.set_languages([*_DETECTABLE, "yue", "wuu"])
    return identifier
