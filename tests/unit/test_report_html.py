"""The report of evaluations, made of run folders of every protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eval.folder import EvalFolder
from eval.protocol import Result
from eval.report.blocks import Cases, Estimate, Figures, Listing, Row, Section, Table, quoted
from eval.report.drawing import COLOURS, STYLE
from eval.report.html import ReportError, build, contents_of
from eval.report.published import published
from eval.report.runs import read
from eval.uc import Classification
from synuc.formatting import Retention
from tests.report_runs import (
    ITEMS,
    LONG,
    SUBSETS,
    bench_item,
    conflictprobe,
    everything,
    response,
    uc,
    with_states,
    write,
)

VOID = {"meta", "br", "img", "link", "hr", "input"}


def contents(folders: Sequence[EvalFolder]) -> dict[str, Section]:
    return {section.id: section for section in contents_of(read(folders))}


def tables(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def figures(section: Section) -> list[str]:
    return [figure.name for block in section.blocks if isinstance(block, Figures) for figure in block.figures]


class Tags(HTMLParser):
    """Checks that tags close in order, and collects their names and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[EvalFolder]:
    """Runs of every protocol."""
    return everything(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page(folders: list[EvalFolder], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one report with everything."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    build(folders, path)
    return path


def test_the_page_is_well_formed_and_loads_nothing(page: Path) -> None:
    text = page.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    assert all(link.startswith("#") for link in tags.loaded)
    assert "@import" not in text
    assert "url(" not in text


def test_dialogues_are_text_and_not_markup(page: Path) -> None:
    text = page.read_text("utf-8")
    tags = Tags()
    tags.feed(text)
    assert "script" not in tags.seen
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in text
    assert "适合孩子的周末旅行" in text
    markdown = page.with_suffix(".md").read_text("utf-8")
    # The attack holds a fence of four; ours are longer, and it never stands outside of one.
    assert "`````text\n" in markdown
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", markdown)
    assert "<script>" not in outside


def test_markdown_holds_the_same_tables_and_its_pictures(page: Path) -> None:
    markdown = page.with_suffix(".md").read_text("utf-8")
    pictures = re.findall(r"\]\((report-figures/[^)]+\.svg)\)", markdown)
    assert len(pictures) == len(set(pictures)) == page.read_text("utf-8").count("<svg ")
    for picture in pictures:
        assert ElementTree.parse(page.parent / picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    widths: dict[str, set[int]] = {}
    caption = ""
    for line in markdown.splitlines():
        caption = line if line.startswith("*") else caption
        if line.startswith("|"):
            widths.setdefault(caption, set()).add(len(re.findall(r"(?<!\\)\|", line)))
    assert len(widths) >= 20
    assert all(len(columns) == 1 for columns in widths.values()), widths


def test_every_protocol_has_its_section_and_no_other(folders: list[EvalFolder], tmp_path: Path) -> None:
    found = contents(folders)
    related = ["coninstruct-detect", "coninstruct-resolve", "coninstruct-priority", "conflictprobe"]
    assert list(found) == ["runs", "uc", "response", "states", "rationale", "pairwise", "verifier", *related]
    assert list(contents([conflictprobe(tmp_path / "alone")])) == ["runs", "conflictprobe"]


def test_the_header_says_what_was_done_and_at_which_cost(tmp_path: Path) -> None:
    what, cost, _ = tables(section := contents([response(tmp_path / "run", 3, adapter="runs/sft")])["runs"])
    described = ("run", "response", "tiny-4b + sft", "a-judge", 12, 0, "ShareGPT-UC, WildChat-UC, LMSYS-UC")
    assert what.rows[0].cells == (*described, "2027-01-15 08:00")
    *counts, money, time = cost.rows[0].cells
    assert counts == ["run", 12, 0, 12 * 1200, 12 * 800, 12 * 90]
    assert money == pytest.approx(0.12)
    assert time == "0m02s"
    listing = section.blocks[2]
    assert isinstance(listing, Listing)
    decided = tables(contents([conflictprobe(tmp_path / "probe")])["runs"])[2]
    assert decided.rows[0].cells == ("probe", "a benchmark", "0", "4fe1", "reasoning drop, history ori")
    assert listing.lines == ("# run\nsynuc eval response --model models/tiny-4b --run runs/run --set 'seed: 1'",)


def test_table_4_has_our_rows_and_the_papers(tmp_path: Path) -> None:
    runs = [uc(tmp_path / "one", seed=1), uc(tmp_path / "two", wrong=(2, 3), seed=2), uc(tmp_path / "other", model="m")]
    table = tables(contents(runs)["uc"])[0]
    rows = {row.cells[0]: row for row in table.rows}
    assert table.columns[:6] == ("Run", "Model", "P", "R", "F1", "R(IC)")
    assert [name for name, _ in table.spans] == ["", "Overall", *SUBSETS]
    assert table.titles()[2:6] == ["Overall P", "Overall R", "Overall F1", "Overall R(IC)"]
    # 12 conflicts, all found, against two missed: 100 and 83.33; t(0.975, 1) = 12.7062 times 8.33.
    assert [row.cells[0] for row in table.rows if not row.quoted] == ["one … (2 runs)", "other"]
    assert rows["other"].cells[5] == Estimate(100, None)
    mean = rows["one … (2 runs)"].cells[5]
    assert isinstance(mean, Estimate)
    assert mean.mean == pytest.approx((100 + 100 * 10 / 12) / 2)
    assert mean.half_width == pytest.approx(12.7062 * 100 / 12, rel=1e-4)
    assert "(one … (2 runs): one, two)" in table.caption
    paper = rows["SynUC (DR-GRPO†)"]
    assert paper.quoted
    assert paper.cells[4:6] == (Estimate(81.01, 0.59), Estimate(84.09, 1.07))
    assert rows["Claude Opus 4.8"].cells[5] == 43.31
    assert rows["Claude Opus 4.8"].cells[-1] == 47.06
    printed = {row.cells[0]: cells for row, cells in table.printed() if not row.heading}
    assert (printed["SynUC (SFT)"][5].text, printed["SynUC (SFT)"][5].spread) == ("82.20", "± 2.25")
    assert [name for name, cells in printed.items() if cells[5].best] == ["other"]


def test_runs_of_one_group_are_one_row(tmp_path: Path) -> None:
    first = uc(tmp_path / "a", wrong=(2,), adapter="runs/sft-1", group="five seeds")
    second = uc(tmp_path / "b", adapter="runs/sft-2", group="five seeds")
    alone = uc(tmp_path / "c", adapter="runs/sft-3")
    table, counts = tables(contents([first, second, alone])["uc"])[:2]
    ours = [row.cells for row in table.rows if not row.quoted]
    assert [cells[:2] for cells in ours] == [("five seeds (2 runs)", "tiny-4b + 2 adapters"), ("c", "tiny-4b + sft-3")]
    # Eleven of twelve conflicts, and all.
    recall = ours[0][5]
    assert isinstance(recall, Estimate)
    assert recall.mean == pytest.approx(100 * 23 / 24)
    assert recall.half_width == pytest.approx(12.7062 * 50 / 12, rel=1e-4)
    assert "(five seeds (2 runs): a, b)" in table.caption
    # Each run is still there.
    assert [row.cells[0] for row in counts.rows] == ["a", "b", "c"]
    assert [row.cells[5] for row in counts.rows] == pytest.approx([100 * 11 / 12, 100, 100])


def test_one_group_over_other_items_is_another_row(tmp_path: Path) -> None:
    first = uc(tmp_path / "a", adapter="runs/1/adapter", group="g")
    second = uc(tmp_path / "b", adapter="runs/2/adapter", group="g", items_of="another benchmark")
    table = tables(contents([first, second])["uc"])[0]
    ours = [row.cells[:2] for row in table.rows if not row.quoted]
    assert ours == [("a", "tiny-4b + 1"), ("b", "tiny-4b + 2")]


def test_a_benchmark_without_conflicts_has_no_recall_on_them(tmp_path: Path) -> None:
    items = [item for item in ITEMS if item["label"] == "ND"]
    evaluation = Classification(Retention.PARTIAL, "trained", "reasoned", 0.01, 512)
    results = [Result(id=item["id"], kind="engine", reason="gone") for item in items]
    metrics = evaluation.figures(items, results)
    section = contents([write(tmp_path / "run", "uc", items, results, metrics)])["uc"]
    table = tables(section)[0]
    assert "Labels that no item has, and that count with 0 in the means: ER, IC in " in table.caption
    assert "ER, IC in overall." in table.caption
    assert table.rows[0].cells[5] is None
    assert "uc-recall_ic" not in figures(section)


def test_the_papers_table_4_stands_alone_where_the_subsets_are_others(tmp_path: Path) -> None:
    run = uc(tmp_path / "run")
    metrics = {**run.metrics, "subsets": {"ours": run.metrics["overall"]}}
    run.write_metrics(metrics)
    ours, papers = tables(contents([run])["uc"])[:2]
    assert [name for name, _ in ours.spans] == ["", "Overall", "ours"]
    assert not any(row.quoted for row in ours.rows)
    assert [name for name, _ in papers.spans] == ["", "Overall", *SUBSETS]
    assert {row.cells[0]: row.cells for row in papers.rows}["SynUC (DR-GRPO†)"][4] == Estimate(84.09, 1.07)
    assert not any(None in row.cells for row in papers.rows)


def test_the_papers_other_comparisons_are_at_hand(tmp_path: Path) -> None:
    found = tables(contents([uc(tmp_path / "run")])["uc"])
    papers = [table for table in found if table.caption.startswith("Published")]
    for name, table in zip(("Figure 5", "Table 5", "Table 6", "Table 7"), papers, strict=True):
        assert f" {name} " in table.caption
        assert table.folded
        assert all(row.quoted for row in table.rows)


def test_published_figures_are_printed_with_all_their_digits() -> None:
    table = quoted(published("synuc_agreement"))
    printed = {(row.cells[0], row.cells[1]): cells[2].text for row, cells in table.printed()}
    assert printed["WildChat-UC labels", "Cohen's kappa"] == "0.8696"
    assert printed["ShareGPT-UC review", "three-way exact, %"] == "87.50"
    assert printed["UC-Data labels, reviewer 1", "match, %"] == "93"
    assert table.numeric() == [False, False, True]
    # Columns of one subset stand under its name.
    wide = quoted(published("synuc_table5"))
    assert wide.spans == (("", 2), *((name, 4) for name in (*SUBSETS, "Overall")))
    assert wide.titles() == list(published("synuc_table5").columns)


def test_a_column_of_numbers_is_one_without_texts() -> None:
    rows = (Row(("a", 1.0, None, "1 to 2")), Row(("b", None, None, None)))
    assert Table("c", ("name", "some", "none", "range"), rows).numeric() == [False, True, True, False]


def test_failures_and_unreadable_answers_are_counted(tmp_path: Path) -> None:
    counts = tables(contents([uc(tmp_path / "run")])["uc"])[1]
    assert counts.columns[-4:] == ("Unparseable", "Refusal", "Cut off", "Failed")
    name, _, items, accuracy, _, _, *kinds = counts.rows[0].cells
    assert (name, items, kinds) == ("run", 24, [1, 0, 0, 1])
    assert accuracy == pytest.approx(100 * 22 / 24)


def test_errors_begin_with_conflicts_taken_for_normal_dialogue(tmp_path: Path) -> None:
    section = contents([uc(tmp_path / "run", wrong=(0, 14, 3))])["uc"]
    cases = section.blocks[-1]
    assert isinstance(cases, Cases)
    assert [(case.id, case.gold, case.predicted) for case in cases.cases] == [
        ("item-03", "IC", "ND"),
        ("item-14", "IC", "ND"),
        ("item-00", "ND", "IC"),
        ("item-05", "ER", "unparseable"),
        ("item-09", "ER", "failed"),
    ]
    assert "5 of 5 errors" in cases.caption
    missed = cases.cases[0]
    assert [message.speaker for message in missed.dialogue] == ["user", "assistant"] * 2
    assert [message.long for message in missed.dialogue] == [False, True, False, False]
    assert missed.rationale.startswith("earlier: implicit audience: 儿童也能参加\nnew: ")
    assert cases.cases[-1].answer.text == "(no answer: engine: gone)"


def test_runs_over_the_same_items_are_compared(tmp_path: Path) -> None:
    other = write(
        tmp_path / "elsewhere",
        "uc",
        ITEMS[:4],
        [Result(id=item["id"], kind="engine", reason="gone") for item in ITEMS[:4]],
        uc(tmp_path / "figures").metrics,
    )
    runs = [uc(tmp_path / "one"), uc(tmp_path / "two", wrong=(2, 3, 6)), other]
    pairs = [table for table in tables(contents(runs)["uc"]) if "McNemar" in table.caption]
    # Three items that only the first gets right: p = 2 * (1/2)^3.
    *tested, difference, interval = pairs[0].rows[0].cells
    assert tested == ["one", "two", 24, 3, 0, "0.2500"]
    # The same three items make the difference of F1, of which the interval is around it.
    f1 = [100 * run.metrics["overall"]["f1"] for run in runs[:2]]
    assert difference == pytest.approx(f1[0] - f1[1])
    assert isinstance(interval, str)
    low, high = map(float, interval.split(" to "))
    assert 0 <= low < f1[0] - f1[1] < high
    assert len(pairs[0].rows) == 1


def test_calibration_only_where_there_are_probabilities(tmp_path: Path) -> None:
    plain, sure = uc(tmp_path / "plain"), uc(tmp_path / "sure", probabilities=True)
    assert not any("reliability" in name for name in figures(contents([plain])["uc"]))
    section = contents([plain, sure])["uc"]
    assert [name for name in figures(section) if "reliability" in name] == ["uc-reliability-1"]
    table = next(table for table in tables(section) if table.caption.startswith("Calibration"))
    # The failed call has no probabilities; by the others each of 23 answers is right, and sure to 0.8.
    name, items, ece, *_ = table.rows[0].cells
    assert (name, items) == ("sure", 23)
    assert ece == pytest.approx(0.2)


def test_a_correlation_needs_three_models(folders: list[EvalFolder], tmp_path: Path) -> None:
    found = contents(folders)["response"]
    assert "correlation" in figures(found)
    ours, paper = tables(found)[1].rows
    assert ours.cells[:2] == ("ours", 3)
    assert paper.cells == ("Paper, Figure 9 (numbers given in section 3.2)", 16, 0.7223, 0.0016, 0.6696, 0.0045, 0.5217)
    two = [
        uc(tmp_path / "a", model="a"),
        response(tmp_path / "b", 1, model="a"),
        response(tmp_path / "c", 1, model="c"),
    ]
    assert figures(contents(two)["response"]) == []


def test_the_response_table(tmp_path: Path) -> None:
    table = tables(contents([response(tmp_path / "run", 3)])["response"])[0]
    assert table.rows[0].cells[:4] == ("run", "tiny-4b", 12, 25.0)
    assert table.rows[0].cells[-4:] == (1, 0, 0, 0)
    papers = tables(contents([response(tmp_path / "other", 3)])["response"])[-1]
    assert ("Kimi K2.6", 31.67) in [row.cells[:2] for row in papers.rows]
    assert papers.columns[1] == "Resp. Acc."


def test_judged_protocols(folders: list[EvalFolder]) -> None:
    found = contents(folders)
    coverage = tables(found["rationale"])[0].rows[0].cells
    # Every third answer is complete, partial, none; every second predicts IC.
    assert coverage[:8] == ("coverage", "base", "Overall", 12, 4, 4, 4, 50.0)
    subsets = [row.cells[2:4] for row in tables(found["rationale"])[0].rows[1:]]
    assert subsets == [("LMSYS-UC", 4), ("ShareGPT-UC", 4), ("WildChat-UC", 4)]
    pairs, order, people = tables(found["pairwise"])[:3]
    assert pairs.rows[0].cells == ("pairs", "base against tuned-1", "Overall", 12, 50.0, 25.0, 25.0)
    # A quarter isn't consistent, and of the consistent ones every first is a win.
    assert order.rows[0].cells == ("pairs", 25.0, 100.0, 0, 0)
    described = {row.cells[0]: row.cells[2] for row in tables(found["runs"])[0].rows}
    assert (described["coverage"], described["pairs"]) == ("answers of base", "answers of base against tuned-1")
    assert people.rows[0].cells[:6] == ("pairs", "Overall", 4, 50.0, 25.0, 25.0)
    assert people.rows[1].cells[1:3] == ("WildChat-UC", 4)
    # The evaluators never agree; people and the judge do once in four, and of so few items nobody can be sure.
    assert people.rows[0].cells[6:8] == (0.0, "0.00 to 0.00")
    assert people.rows[0].cells[10:12] == (25.0, "0.00 to 75.00")
    acceptance = next(table for table in tables(found["verifier"]) if table.caption.startswith("Acceptance"))
    assert [row.cells[1:5] for row in acceptance.rows] == [
        ("ND", 6, 6, 100.0),
        ("ER", 0, 6, 0.0),
        ("IC", 0, 12, 0.0),
    ]
    assert figures(found["verifier"]) == ["verifier-roc", "verifier-confidence-1"]


def test_states_stand_beside_the_papers(tmp_path: Path) -> None:
    section = contents([with_states(uc(tmp_path / "before"), -0.02), with_states(uc(tmp_path / "after"))])["states"]
    pictures = section.blocks[0]
    assert isinstance(pictures, Figures)
    before, after = pictures.figures
    assert (before.name, after.name) == ("states-1", "states-2")
    assert before.caption == "before, tiny-4b: UMAP, silhouette -0.020."
    assert before.drawing.width == after.drawing.width
    table = tables(section)[0]
    assert table.rows[1].cells == ("after", "tiny-4b", 24, "1 (failed 1)", 0.25, "UMAP")
    assert [row.cells[4] for row in table.rows[3:]] == [-0.024, 0.293, 0.313]


def test_related_work(folders: list[EvalFolder]) -> None:
    found = contents(folders)
    detection, papers = tables(found["coninstruct-detect"])[:2]
    assert detection.rows[0].cells[:4] == ("detect", "tiny-4b", 100.0, None)
    assert ("DeepSeek-R1", 91.5) in [(row.cells[0], row.cells[-1]) for row in papers.rows]
    behaviour = {row.cells[2]: row.cells for row in tables(found["coninstruct-resolve"])[0].rows}
    assert behaviour["none"][3:6] == (1, 100.0, 0.0)
    assert behaviour["1-2"][3:6] == (1, 0.0, 100.0)
    followed = tables(found["coninstruct-priority"])[1]
    assert followed.rows[0].cells == ("priority", "new later", "all", 1, 0.0, 100.0, 0.0, 0.0, 0.0)
    probed, joint = tables(found["conflictprobe"])[:2]
    assert probed.rows[0].cells[2:9] == ("drop", "ori", 4, 50.0, 50.0, 25.0, 100.0)
    assert probed.rows[0].cells[-3:] == (3, 0, "2 (unparseable 2)")
    assert joint.rows[0].cells == ("probe", 1, 1, 1, 1)
    assert joint.rows[1].cells == ("Published, all", 1831, 105, 866, 1038)


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = read([uc(tmp_path / "a" / "run"), uc(tmp_path / "b" / "run"), uc(tmp_path / "c")])
    assert [run.name for run in runs] == ["a/run", "b/run", "c"]


def test_what_cannot_be_reported(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no runs to report on"):
        build([], tmp_path / "report.html")
    run = uc(tmp_path / "run")
    with pytest.raises(ReportError, match="run is named twice"):
        build([run, uc(tmp_path / "other"), EvalFolder(tmp_path / "other" / ".." / "run")], tmp_path / "report.html")
    with pytest.raises(ReportError, match=r"report\.pdf is no HTML file"):
        build([run], tmp_path / "report.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="can't write the report to"):
        build([run], tmp_path / "file" / "report.html")


def test_the_page_has_every_colour_in_both_themes() -> None:
    dark = STYLE.partition("@media")[2].partition("svg")[0]
    # What stands on colours is dark in both.
    assert set(re.findall(r"--([\w-]+): #", dark)) == set(COLOURS) - {"deep"}
    assert set(re.findall(r"var\(--([\w-]+)\)", STYLE)) <= set(COLOURS)


def test_a_page_about_ten_runs_of_300_items_is_small(tmp_path: Path) -> None:
    items = [bench_item(n, ("ND", "ER", "IC")[n % 3]) for n in range(300)]
    for item in items:
        item["history"]["turns"] *= 4  # some 5,000 characters, as the dialogues of the paper
    answer = {"predicted": "ND", "kind": "", "answer": LONG * 3, "probabilities": None, "prompt_tokens": 1500}
    results = [Result(id=item["id"], value=answer) for item in items]
    metrics = Classification(Retention.PARTIAL, "trained", "reasoned", 0.01, 512).figures(items, results)
    points = [{"id": item["id"], "label": item["label"], "x": n % 17, "y": n % 23} for n, item in enumerate(items)]
    metrics["states"] = {"points": points, "silhouette": 0.1, "projection": "umap", "n": 300, "excluded": {}}
    runs = [write(tmp_path / f"run-{n}", "uc", items, results, metrics) for n in range(10)]
    build(runs, tmp_path / "report.html")
    size = (tmp_path / "report.html").stat().st_size
    assert 500_000 < size < 2_000_000
