"""The reward of GRPO, equation 8, by hand, and what tries to get it for nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from synuc.formatting import Answer, answer_of, format_answer, grpo_example, parse_answer
from synuc.matching import THRESHOLD, lexical
from synuc.reading import read_label
from synuc.rewards import Reference, Reward, reward
from synuc.types import Label
from tests.unit.test_formatting import CASE, CASE_TEXT, FOLLOW_UP, MALFORMED, ND_CASE, changed, historical, new

IC = Reference.model_validate(grpo_example(CASE)["reference"])
ND = Reference.model_validate(grpo_example(ND_CASE)["reference"])
LENGTHS = historical("explicit", "length", "500 words"), new("explicit", "length", "900 words instead of 500")
ER_CASE = changed(CASE, label=Label.ER, constraints=LENGTHS[:1], anchor=LENGTHS[0], new=LENGTHS[1])
ER = Reference.model_validate(grpo_example(ER_CASE)["reference"])
ER_TEXT, ND_TEXT = format_answer(answer_of(ER_CASE)), format_answer(answer_of(ND_CASE))

FAMILY = "implicit content_scope: family-friendly activities"
ADULTS = "implicit audience: adults-only or couples-oriented activities"


def same(a: str, b: str) -> bool:
    return lexical(a, b) >= THRESHOLD


def of(text: str, reference: Reference = IC) -> Reward:
    return reward(text, reference, same)


def terms(result: Reward) -> tuple[float, float, float]:
    return result.label, result.fmt, result.attr


def renamed(old: str, value: str, text: str = CASE_TEXT) -> str:
    """The answer with another constraint in the place of `old`, in the list and in the pair."""
    assert text.count(old) >= 2
    return text.replace(old, value)


BARE = "[Final Judgment]\n{}"

# Equation 8 with the paper's alpha = 0.2 and beta = 0.4, every combination that can occur.


@pytest.mark.parametrize(
    ("text", "reference", "expected", "total"),
    [
        (CASE_TEXT, IC, (1, 1, 1), 1.6),
        (ER_TEXT, ER, (1, 1, 1), 1.6),
        (ND_TEXT, ND, (1, 1, 0), 1.2),
        (renamed(FAMILY, "implicit budget: at most 300 euros"), IC, (1, 1, 0), 1.2),
        (BARE.format("Implicit Conflict"), IC, (1, 0, 0), 1.0),
        (BARE.format("Normal Dialogue"), ND, (1, 0, 0), 1.0),
        (ND_TEXT, IC, (0, 1, 0), 0.2),
        (ER_TEXT, IC, (0, 1, 0), 0.2),
        (CASE_TEXT, ND, (0, 1, 0), 0.2),
        (CASE_TEXT, ER, (0, 1, 0), 0.2),
        (BARE.format("Normal Dialogue"), IC, (0, 0, 0), 0.0),
        ("I can't say.", IC, (0, 0, 0), 0.0),
        ("", ND, (0, 0, 0), 0.0),
    ],
)
def test_the_total_by_hand(text: str, reference: Reference, expected: tuple[float, float, float], total: float) -> None:
    result = of(text, reference)
    assert terms(result) == expected
    assert result.total == pytest.approx(total)


def test_the_weights() -> None:
    assert reward(CASE_TEXT, IC, same, alpha=0.5, beta=2).total == 3.5
    assert reward(CASE_TEXT, IC, same, alpha=0, beta=0).total == 1


# The parts of R_attr


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (CASE_TEXT, (True, True, True)),
        (renamed(FAMILY, "implicit audience: activities that are family-friendly"), (True, True, True)),
        (renamed(FAMILY, "implicit pace: relaxed"), (False, True, True)),
        (renamed(ADULTS, "implicit pace: hurried"), (True, False, True)),
        (renamed(FAMILY, "implicit a: b", renamed(ADULTS, "implicit c: d")), (False, False, True)),
        (BARE.format("Implicit Conflict"), (False, False, False)),
        (ND_TEXT, (False, False, False)),
    ],
)
def test_all_parts_or_nothing(text: str, parts: tuple[bool, bool, bool]) -> None:
    result = of(text)
    assert (result.found_anchor, result.found_new, result.types_right) == parts
    assert result.attr == all(parts)


def test_a_wrong_type_costs_the_attribution() -> None:
    text = CASE_TEXT.replace(ADULTS, ADULTS.replace("implicit", "explicit")).replace("H_I_N_I", "H_I_N_E")
    text = text.replace("\n  inferred from: wine-pairing … late-night jazz show", "")
    result = of(text)
    assert (result.found_anchor, result.found_new, result.types_right) == (True, True, False)
    assert terms(result) == (1, 1, 0)


def test_the_matcher_is_asked_for_wordings_of_the_named_pair_only() -> None:
    asked = []

    def asking(a: str, b: str) -> bool:
        asked.append((a, b))
        return True

    assert reward(renamed(FAMILY, "implicit tone: warm"), IC, asking).attr == 1
    assert asked == [
        ("tone: warm", "content_scope: family-friendly activities"),
        (ADULTS.removeprefix("implicit "), ADULTS.removeprefix("implicit ")),
        # Both are found: are they one? The matcher can't tell the annotated ones apart either, so that they aren't.
        ("tone: warm", ADULTS.removeprefix("implicit ")),
        (FAMILY.removeprefix("implicit "), ADULTS.removeprefix("implicit ")),
    ]
    asked.clear()
    reward(ND_TEXT, IC, asking)
    reward(CASE_TEXT, ND, asking)
    reward(CASE_TEXT + "!", IC, asking)
    assert asked == []


# What wants the reward for nothing


def with_pair(anchor: str, added: str) -> str:
    return renamed(FAMILY, f"implicit content_scope: {anchor}", renamed(ADULTS, f"implicit audience: {added}"))


def test_listing_everything_gains_nothing() -> None:
    padding = "".join(f"- explicit topic: requirement number {n}\n" for n in range(100))
    text = CASE_TEXT.replace("[Historical Constraints]\n", "[Historical Constraints]\n" + padding)
    pair = "Historical constraint: " + FAMILY
    aside = text.replace(pair, "Historical constraint: explicit topic: requirement number 7").replace(
        "H_I_N_I", "H_E_N_I"
    )
    assert of(text).attr == 1
    assert terms(of(aside)) == (1, 1, 0)
    assert not of(aside).found_anchor


BOTH = "family-friendly activities, adults-only or couples-oriented activities"
LISTED = [str(c) for c in CASE.constraints] + [str(c) for c in CASE.new_constraints]
EVERYTHING = "; ".join(LISTED)


@pytest.mark.parametrize("value", [BOTH, EVERYTHING, FOLLOW_UP, " ".join(turn.user for turn in CASE.dialogue.turns)])
def test_a_pair_that_names_everything_names_nothing(value: str) -> None:
    result = of(with_pair(value, value))
    assert terms(result) == (1, 1, 0)
    assert not (result.found_anchor and result.found_new)


def test_a_wording_of_both_in_both_places_names_neither() -> None:
    tones = historical("explicit", "tone", "a formal tone"), new("explicit", "tone", "a casual tone")
    case = changed(ER_CASE, constraints=tones[:1], anchor=tones[0], new=tones[1])
    reference = Reference.model_validate(grpo_example(case)["reference"])
    text = format_answer(answer_of(case))
    assert of(text, reference).attr == 1
    hedged = of(text.replace("a formal", "formal casual").replace("a casual", "formal, casual"), reference)
    assert terms(hedged) == (1, 1, 0)
    assert (hedged.found_anchor, hedged.found_new) == (False, False)


def test_a_pair_the_wrong_way_round_names_nothing() -> None:
    assert terms(of(with_pair("adults-only or couples-oriented activities", "family-friendly activities"))) == (1, 1, 0)


def test_the_dimension_alone_names_nothing() -> None:
    assert terms(of(with_pair("content scope", "audience"))) == (1, 1, 0)
    assert terms(of(with_pair("unspecified", "unspecified"))) == (1, 1, 0)


def test_the_right_pair_in_the_analysis_but_not_as_the_pair() -> None:
    text = with_pair("x", "y").replace("The message asks", f"{FAMILY} and {ADULTS}. The message asks")
    assert terms(of(text)) == (1, 1, 0)


def test_two_labels_are_none() -> None:
    both = "[Final Judgment]\nImplicit Conflict\n[Final Judgment]\nExplicit Revision"
    for reference in (IC, ER, ND):
        assert of(both, reference).total == 0


# The label


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_what_is_no_answer_has_no_format_and_no_attribution(text: str) -> None:
    result = of(text)
    assert (result.fmt, result.attr) == (0, 0)
    assert result.total == result.label


@given(st.sampled_from([CASE_TEXT, ND_TEXT, ER_TEXT]), st.integers(0, 2000), st.text(max_size=8))
def test_nothing_raises_and_a_label_is_the_answers(text: str, at: int, noise: str) -> None:
    broken = text[:at] + noise + text[at:]
    parsed, read = parse_answer(broken), read_label(broken)
    if isinstance(parsed, Answer):
        assert read is parsed.label
    result = of(broken)
    assert result.predicted is read
    assert 0 <= result.total <= 1.6


def test_an_answer_that_quotes_a_tag_keeps_its_label() -> None:
    quoting = CASE_TEXT.replace("The message asks", "The message says <think> and asks")
    assert isinstance(parse_answer(quoting), Answer)
    assert of(quoting).total == pytest.approx(1.6)


# The reference


@pytest.mark.parametrize(
    "change",
    [
        {"label": "ND"},
        {"label": "ER"},
        {"label": "XX"},
        {"relation": None},
        {"relation": "H_I_N_E"},
        {"historical_constraint": None},
        {"new_constraint": None},
        {"more": 1},
    ],
)
def test_a_reference_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Reference.model_validate(grpo_example(CASE)["reference"] | change)


def test_the_reference_of_a_normal_dialogue_is_empty() -> None:
    assert Reference(label=Label.ND, relation=None, historical_constraint=None, new_constraint=None) == ND
    with pytest.raises(ValidationError, match="has no pair"):
        Reference.model_validate(ND.model_dump() | {"new_constraint": IC.model_dump()["new_constraint"]})
