"""Whether two wordings of a constraint, `dimension: value`, share their words: the matcher that needs no model.

It knows wordings, not meanings: "for kids" and "for children" share nothing, so it misses most paraphrases, and an
order or a single word that changes everything ("parents of toddlers", "toddlers") can escape it. Length counts on both
sides, and numbers, bounds (at most, at least) and negations must agree. English and Chinese have their rules; of other
languages the words are compared as they are.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import fsum

THRESHOLD = 0.5
"""The least similarity of two wordings of one requirement.

Chosen on the split `dev` of the labelled pairs in tests/data: one word more for every word passes (0.5), one exchanged
word of three doesn't (0.44). Less would find more paraphrases, and take "a short formal letter" for a casual one.
"""

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMERALS = (
    {word: number for number, word in enumerate(_SMALL.split())}
    | {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
    | {word: number for number, word in enumerate("零一二三四五六七八九")}
    | {"两": 2}
)
_POWERS = {"十": 10, "百": 100, "hundred": 100, "千": 1000, "k": 1000, "thousand": 1000, "万": 10_000}
_PART = re.compile("|".join([r"\d+", *sorted({*_NUMERALS, *_POWERS}, key=len, reverse=True)]))
_ENGLISH = "|".join([*_SMALL.split(), *_TENS.split(), "hundred", "thousand"])
# A lone 一 or 十分 is seldom a number.
_NUMBER = re.compile(
    rf"\b(?:{_ENGLISH})(?:[ -](?:and )?(?:{_ENGLISH}))*\b|(?<![\d.])\d+(?:k\b|[千万])"
    r"|十?[二两三四五六七八九][零一二两三四五六七八九十百千万]*|一[零一二两三四五六七八九十百千万]+|十(?!分|足)一?"
)

_THAN = r"(?:more|longer|greater|higher|larger|later|bigger) than"
_LESS = r"(?:less|fewer|shorter|lower|smaller|earlier) than"
# What is said in many ways, as one mark. The order counts: a bound may hold a negation that is none ("no more than").
_MARKS = [
    (re.compile(pattern), mark)
    for pattern, mark in (
        (rf"\b(?:no|not|never)(?: be)? {_THAN}|\b(?:not|never)(?: to)? exceed\w*", "<"),
        (r"不.?(?:超过|多于|大于|长于|高于)", "<"),
        (rf"\b(?:no|not|never)(?: be)? {_LESS}|\bat (?:the )?least\b|\bminimum\b|不.?(?:少于|低于|小于|短于)", ">"),
        (rf"\b(?:{_LESS}|at (?:the )?most|up to|maximum)\b|\b(?:under|below|within)\b(?=\W*\d)", "<"),
        (r"以内|之内|以下|上限|最多|至多|少于|低于|小于|短于", "<"),
        (rf"\b{_THAN}|\b(?:over|above)\b(?=\W*\d)|以上|下限|至少|最少|超过|多于|大于|长于|高于", ">"),
        (r"不仅|不但|不同|不过|不错|不断|无论|非常|特别|区别|分别|类别|级别|性别|个别|别人|别的|没问题", " "),
        (r"\b(?:cannot|\w+n['’]t|no|not|non|never|none|nothing|neither|nor|without)\b|(?<=\w)-free\b", "!"),
        (r"\b(?:avoid|exclud|omit|forbid|prohibit|refrain|skip)\w*|\b(?:free (?:of|from)|away from)\b", "!"),
        (r"避免|避开|远离|禁止|切忌|排除|没有|不[要能得可用含带]|[不别勿无没非]", "!"),
    )
]
_STOP = (
    "a an the and or of in on at to for with by from as is are be been it its this that these those their must should "
    "shall will would can may need want prefer please keep make use have has ensure only all any some very about "
    "around approximately roughly suitable appropriate one write written"
)
_STOPPED = frozenset(_STOP.split())
_STOP_CHINESE = re.compile(
    r"必须|应该|应当|需要|希望|使用(?!者)|采用|保持|尽量|适合|大约|左右|一[个位篇份首种些点]|[编撰]?写成?|[只请需应用要的地得了和与及为是在以可约]"
)
_CURRENCIES = str.maketrans({"$": " dollar ", "€": " euro ", "£": " pound ", "¥": " yuan ", "元": " yuan "})
_HAN = "぀-ヿ㐀-䶿一-鿿"
_WORD = re.compile(rf"\d+(?:\.\d+)?|[{_HAN}]+|[^\W\d{_HAN}]+")


# A word is one piece; Chinese without spaces is many pieces that are one unit, else its length would outvote words.
_Unit = tuple[str, ...]


@dataclass(frozen=True)
class _Wording:
    """What is compared: the units of the value and all their pieces, the dimension's pieces, what must agree."""

    units: frozenset[_Unit]
    pieces: frozenset[str]
    about: frozenset[str]
    numbers: frozenset[float]
    bounds: frozenset[str]
    negated: bool


def lexical(a: str, b: str) -> float:
    """How alike two wordings are, 0 to 1: the share of `a` that `b` holds times the share of `b` that `a` holds.

    The product is hard on what makes another requirement of it: words exchanged for others count on both sides, and
    a wording that says more than the other, such as a list of everything, is not like it. A dimension needs no match,
    but can explain words of the other value ("tone: formal", "style: a formal tone").
    """
    first, second = _normal(a), _normal(b)
    if first == second:
        return 1.0
    one, other = _read(first), _read(second)
    if one.numbers != other.numbers or one.negated is not other.negated:
        return 0.0
    if one.bounds and other.bounds and one.bounds != other.bounds:
        return 0.0
    return _share(one, other) * _share(other, one)


def _share(one: _Wording, other: _Wording) -> float:
    known = other.pieces | other.about
    # fsum: the order of a set must not show in the last digit.
    return fsum(len(known.intersection(unit)) / len(unit) for unit in one.units) / max(len(one.units), 1)


def _normal(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold().translate(_CURRENCIES)
    return " ".join(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text).split())


@lru_cache(maxsize=65_536)
def _read(text: str) -> _Wording:
    dimension, _, value = text.partition(":") if ":" in text else ("", "", text)
    value = _NUMBER.sub(lambda match: f" {_number(match[0])} ", value)
    marks = set()
    for pattern, mark in _MARKS:
        value, found = pattern.subn(" ", value)
        if found:
            marks.add(mark)
    units = frozenset(_units(value))
    about = frozenset(piece for unit in _units(dimension.replace("_", " ")) for piece in unit)
    # A value that only repeats its dimension or has only stop words still says something.
    units = frozenset(unit for unit in units if not about.issuperset(unit)) or units
    units = units or frozenset((word,) for word in _WORD.findall(value))
    return _Wording(
        units=units,
        pieces=frozenset(piece for unit in units for piece in unit),
        about=about,
        # 1 is mostly an article.
        numbers=frozenset(float(word) for (word, *_) in units if word[0].isdecimal()) - {1.0},
        bounds=frozenset(marks & {"<", ">"}),
        negated="!" in marks,
    )


def _number(text: str) -> int:
    total = below = digits = 0
    for part in _PART.findall(text):
        if part not in _POWERS:
            digits += int(part) if part.isdecimal() else _NUMERALS[part]
        elif _POWERS[part] < 1000:
            below, digits = below + max(digits, 1) * _POWERS[part], 0
        else:
            total, below, digits = total + max(below + digits, 1) * _POWERS[part], 0, 0
    return total + below + digits


def _units(text: str) -> Iterator[_Unit]:
    """Numbers as they are, stems of words, and of Chinese the different pairs of neighbouring characters."""
    for word in _WORD.findall(_STOP_CHINESE.sub(" ", text)):
        if re.match(f"[{_HAN}]", word):
            yield tuple(sorted({word[at : at + 2] for at in range(max(len(word) - 1, 1))}))
        elif word not in _STOPPED:
            yield (word if word[0].isdecimal() else _stem(word),)


def _stem(word: str) -> str:
    word = re.sub(r"(?<=\w{3})(?:(?<=[^s])s|es|ed|ing|ly)$", "", re.sub(r"ies$", "y", word))
    return re.sub(r"(?<=\w{3})(?:e|(?<=(\w))\1)$", "", word)
