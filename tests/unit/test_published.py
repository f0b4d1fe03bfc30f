"""The published tables against what the papers' texts say of them, and against each other."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from scipy.stats import linregress, pearsonr, spearmanr

from eval.report.published import Published, Value, names, published

SUBSETS = {"WildChat-UC": 60, "LMSYS-UC": 33, "ShareGPT-UC": 34}
"""The subsets of UC-Bench and their implicit conflicts (paper, Table 2)."""


def numbers(table: str, column: str) -> list[float]:
    values = published(table).column(column)
    assert all(isinstance(value, int | float) for value in values)
    return [value for value in values if isinstance(value, int | float)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", names())
def test_every_table_can_be_read_and_names_its_source(name: str) -> None:
    table = published(name)
    assert table.rows
    assert table.source
    assert len(set(table.columns)) == len(table.columns)


def test_table_1_has_the_averages_of_the_text() -> None:
    # Section 3.2, findings 1 and 2.
    accuracy, recall = numbers("synuc_table1", "Resp. Acc."), numbers("synuc_table1", "R(IC)")
    assert len(accuracy) == 16
    assert mean(accuracy) == pytest.approx(19.79, abs=0.005)
    assert mean(recall) == pytest.approx(25.00, abs=0.005)
    assert mean(numbers("synuc_table1", "F1")) == pytest.approx(52.04, abs=0.005)
    assert (max(accuracy), max(recall)) == (31.67, 53.33)
    assert sum(value <= 20 for value in accuracy) == 8
    assert sum(value <= 20 for value in recall) == 9


def test_table_1_has_the_correlation_of_the_text() -> None:
    # Section 3.2, finding 3.
    recall, accuracy = numbers("synuc_table1", "R(IC)"), numbers("synuc_table1", "Resp. Acc.")
    figure = published("synuc_figure9").column("Value")
    assert pearsonr(recall, accuracy).statistic == pytest.approx(figure[0], abs=5e-5)
    assert spearmanr(recall, accuracy).statistic == pytest.approx(figure[1], abs=5e-5)
    assert linregress(recall, accuracy).rvalue ** 2 == pytest.approx(figure[2], abs=5e-5)


def test_table_1_is_the_wildchat_part_of_table_4() -> None:
    main = {row["Method"]: row for row in published("synuc_table4").records()}
    for row in published("synuc_table1").records():
        for metric in ("P", "R", "F1", "R(IC)"):
            assert row[metric] == main[row["Model"]][f"WildChat-UC {metric}"]


def test_a_single_run_recalls_whole_conflicts() -> None:
    """Each recall is a count over the subset's conflicts, and the overall count is their sum."""
    for row in published("synuc_table4").records():
        if row["Group"] == "SynUC":  # means over five runs
            continue
        found = 0
        for subset, conflicts in SUBSETS.items():
            recall = row[f"{subset} R(IC)"]
            assert isinstance(recall, float)
            count = round(recall / 100 * conflicts)
            assert recall == pytest.approx(100 * count / conflicts, abs=0.0101), row["Method"]
            found += count
        assert row["Overall R(IC)"] == pytest.approx(100 * found / 127, abs=0.0101), row["Method"]


@pytest.mark.parametrize(
    ("table", "setting"),
    [("synuc_table5", "Partial omission"), ("synuc_table6", "LLM-guided"), ("synuc_table7", "DeepSeek-V4-Flash")],
)
def test_the_default_of_every_comparison_is_table_4s(table: str, setting: str) -> None:
    main = {row[1]: row[3:] for row in published("synuc_table4").rows if row[2] == "mean"}
    rows = {row[1]: row[2:] for row in published(table).rows if row[0] == setting}
    assert rows == {"SFT": main["SynUC (SFT)"], "DR-GRPO†": main["SynUC (DR-GRPO†)"]}


def differences(table: str, setting: str, metric: str, training: str) -> float:
    rows = published(table).records()
    values: list[Value] = [row[f"Overall {metric}"] for row in rows if row["Training"] == training]
    settings = [row[published(table).columns[0]] for row in rows if row["Training"] == training]
    default, other = (values[settings.index(name)] for name in (settings[0], setting))
    assert isinstance(default, float)
    assert isinstance(other, float)
    return default - other


def test_the_differences_of_section_7_3() -> None:
    assert differences("synuc_table6", "Lexical", "F1", "SFT") == pytest.approx(3.81)
    assert differences("synuc_table6", "Dense", "F1", "SFT") == pytest.approx(3.18)
    assert differences("synuc_table6", "Lexical", "F1", "DR-GRPO†") == pytest.approx(3.33)
    assert differences("synuc_table6", "Dense", "F1", "DR-GRPO†") == pytest.approx(5.10)
    assert differences("synuc_table6", "Lexical", "R(IC)", "SFT") == pytest.approx(9.23)
    assert differences("synuc_table6", "Dense", "R(IC)", "DR-GRPO†") == pytest.approx(3.25)


def test_the_statistics_add_up() -> None:
    for name, columns in (
        ("synuc_table2", ("WildChat-UC", "LMSYS-UC", "ShareGPT-UC")),
        ("synuc_table3", ("ND", "ER", "IC")),
    ):
        for row in published(name).records():
            if not str(row["Statistic"]).startswith(("Avg", "Max")):
                assert sum(numbers_of(row, columns)) == row["Total"], row["Statistic"]


def numbers_of(row: dict[str, Value], columns: tuple[str, ...]) -> list[float]:
    return [value for name in columns if isinstance(value := row[name], int | float)]


def test_coninstruct_averages_over_the_nine_types() -> None:
    table = published("coninstruct_detection")
    types = table.columns[1:-1]
    assert types == ("CC", "KK", "PP", "LL", "FF", "SS", "KP", "PC", "PS")
    complete = [row for row in table.records() if row["CC"] is not None]
    assert len(complete) == 5
    for row in complete:
        assert mean(numbers_of(row, types)) == pytest.approx(row["Average"], abs=0.051), row["Model"]


def test_conflictprobes_joint_outcomes_give_its_shares() -> None:
    overall = published("conflictprobe_overall").records()[0]
    counts = {(row[0], row[1]): row[2] for row in published("conflictprobe_joint").rows}
    assert sum(numbers("conflictprobe_joint", "Replies")) == overall["n"] == 3840
    for name, cells in (
        ("Present and named", [("present", "named")]),
        ("Present", [("present", "named"), ("present", "unnamed")]),
        ("Named", [("present", "named"), ("absent", "named")]),
    ):
        share = sum(value for cell in cells if isinstance(value := counts[cell], int)) / 38.40
        assert share == pytest.approx(overall[name], abs=0.051), name


def test_conflictprobes_models_and_conditions_average_to_the_whole() -> None:
    overall = published("conflictprobe_overall").records()[0]
    for metric in ("Present", "Named", "Present and named"):
        assert mean(numbers("conflictprobe_models", metric)) == pytest.approx(overall[metric], abs=0.1)
        cells = [row[metric] for row in published("conflictprobe_conditions").records() if row["Present"] is not None]
        assert mean([cell for cell in cells if isinstance(cell, float)]) == pytest.approx(overall[metric], abs=0.1)


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(ValidationError, match="Table 9: a row has more or fewer cells than 2"):
        Published(source="s", table="Table 9", title="t", columns=("a", "b"), rows=((1.0, 2.0), (1.0,)))
