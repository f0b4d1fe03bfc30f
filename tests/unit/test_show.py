"""One sample on a terminal: everything a person looks for, and nothing that the text does to the terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from pipelines.show import NoSuchSample, fold, show, visible
from synuc.sample import Sample
from synuc.types import Label
from tests.runs import LONG, Run, a_run, of_label
from tests.scripted import CARRIER, EXPLICIT, FOLLOW_UP


def shown(run: Run, id: str = "", full: bool = False, colours: bool = False, width: int = 400) -> str:
    out = io.StringIO()
    show(run.folder, id, full, Console(file=out, width=width, force_terminal=colours))
    return out.getvalue()


def sample_of(run: Run, seed: int, label: Label) -> Sample:
    [sample] = [s for s in of_label(run.samples, label) if s.seed_id == run.seeds[seed].id]
    return sample


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_an_accepted_conflict_shows_all_of_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    sample = sample_of(run, 0, Label.IC)
    text = shown(run, sample.id)
    for words in (
        sample.id,
        "IC, Implicit Conflict",
        "accepted",
        "chats|odd.jsonl, part-0.parquet:17",
        "key",
        "H_E_N_I",
        "Be kind.",
        "User 1",
        "Assistant 1",
        "User 3",
        FOLLOW_UP,
        "write a bedtime story",
        "choose the place",
        "they exclude each other",
        "it brings the new one in",
        "revision signal: no",
        "judged IC, confidence 90",
        "as claimed",
        "version 0",
        "The follow-up continues: current_subtask",
    ):
        assert words in text, words
    assert text.index("User 1") < text.index("Assistant 1") < text.index("User 2") < text.index(FOLLOW_UP)
    [anchor] = lines_with(text, "▶", EXPLICIT[0])
    assert anchor.split()[:3] == ["▶", "E", "content:"]
    assert anchor.split()[-1] == "1"
    assert not lines_with(text, "▶", EXPLICIT[1])
    [claimed] = lines_with(text, "▶", "ghosts that scare")
    assert claimed.split()[:3] == ["▶", "I", "mood:"]


def test_a_rejected_sample_says_where_and_why(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    text = shown(run, sample_of(run, 3, Label.IC).id)
    assert lines_with(text, "outcome", "rejected at anchor")
    assert lines_with(text, "reason", "pair: they fit together")
    assert lines_with(text, "✗", "the pair fits the label")
    assert lines_with(text, "▶", "ghosts that scare", CARRIER), "the constraint it was to bring in"
    assert "global stage" not in text
    low = shown(run, sample_of(run, 4, Label.ER).id)
    assert lines_with(low, "reason", "q = 79 is below tau = 80")
    assert "✗" not in low


@pytest.mark.parametrize(
    ("seed", "words"), [(5, "failed at extract (truncated)"), (6, "failed at filter (unparseable)")]
)
def test_a_failed_sample(tmp_path: Path, seed: int, words: str) -> None:
    run = a_run(tmp_path / "run")
    text = shown(run, run.seeds[seed].id + ("-ER" if seed == 5 else ""))
    assert words in text
    assert "constraints" not in text
    assert ("none: the dialogue wasn't routed" in text) == (seed == 6)


def test_a_direct_check_is_called_one(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", constraint_verifier=False)
    text = shown(run, sample_of(run, 0, Label.IC).id)
    assert "direct check" in text
    assert "anchor stage" not in text


def test_without_an_id_the_first_accepted_else_the_first(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert shown(run).startswith(run.accepted()[0].id)
    rejected = sorted((s for s in run.samples if s.outcome != "accepted"), key=lambda s: s.id)
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    run.write(rejected[::-1])
    assert shown(run).startswith(rejected[0].id)


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    seed = run.seeds[2].id
    assert shown(run, f"{seed}-I").startswith(f"{seed}-IC")
    with pytest.raises(NoSuchSample, match=f"several.*: {seed}-ER, {seed}-IC, {seed}-ND$"):
        shown(run, seed[:4])


@pytest.mark.parametrize("wrong", ["00zz", "5zz", "zzz", "\x1b[31m"])
def test_an_unknown_id_names_those_near_it(tmp_path: Path, wrong: str) -> None:
    run = a_run(tmp_path / "run")
    ids = sorted(sample.id for sample in run.samples)
    with pytest.raises(NoSuchSample) as caught:
        shown(run, wrong)
    near = str(caught.value).rpartition(": ")[2].split(", ")
    # Some before and some after the place where it would stand.
    at = sum(id < wrong for id in ids)
    assert near == ids[max(0, at - 2) : max(0, at - 2) + 5]
    assert near
    assert "\x1b" not in str(caught.value)


def test_many_that_begin_alike_are_cut_to_five(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    run.write([run.samples[0].model_copy(update={"id": f"same-{n}"}) for n in range(9)])
    with pytest.raises(NoSuchSample, match=r"same-0, same-1, same-2, same-3, same-4, \.\.\.$"):
        shown(run, "same")


def test_a_run_without_samples_says_so(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for part in run.folder.parts("samples"):
        Path(part).unlink()
    with pytest.raises(NoSuchSample, match="no samples yet"):
        shown(run)


def test_text_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for sample in run.samples:
        text = shown(run, sample.id)
        assert "[bold red]not markup[/] ␛[31mred␇ ‹U+202E›right‹U+2066› <|im_start|>system" in text
        assert "‹U+2028›" in text
        assert "中文" in text
        assert not {*"\x1b\x07\u202e\u2066\u2028\r\x00"} & {*text}


def test_on_a_terminal_the_only_escapes_are_our_own(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    text = shown(run, sample_of(run, 0, Label.IC).id, colours=True)
    assert "\x1b[" in text
    assert "\x1b[31mred" not in text
    assert "[bold red]not markup[/]" in text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x1b\x7f\x9b\r", "␀␛‹U+007F›‹U+009B›␍"),
        ("\u200e\u061c\u2069\ufeff\U000e0041", "‹U+200E›‹U+061C›‹U+2069›‹U+FEFF›‹U+E0041›"),
        ("👩\u200d🚀 می\u200cخواهم é 中", "👩\u200d🚀 می\u200cخواهم é 中"),
    ],
)
def test_what_cannot_be_seen_is_made_visible(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_long_turns_are_folded_unless_full(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    id = sample_of(run, 1, Label.ND).id
    folded, full = shown(run, id, width=5000), shown(run, id, full=True, width=5000)
    assert LONG in full
    assert LONG not in folded
    assert "begin middle" in folded
    assert "middle finish" in folded
    assert f"[… {len(LONG) - 600:,} characters; --full shows them …]" in folded


def test_folding() -> None:
    assert fold("x" * 600) == "x" * 600
    assert fold("a" * 400 + "b" * 400) == "a" * 300 + "\n[… 200 characters; --full shows them …]\n" + "b" * 300


def test_at_80_columns_nothing_is_wider(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    for sample in run.samples:
        assert max(map(cell_len, shown(run, sample.id, width=80).split("\n"))) <= 80
