"""What people said of synthetic samples, as trajectories for a run's memory (`synuc synthesize --memory-from`).

A review is the export of a spot check: `spot-check.jsonl`, or the project's folder that holds it. Of a line are read

    id           of the sample
    synthetic    the label it was made for
    label        what people agreed on, null where they didn't
    run          the folder of the run that made the sample, where it is known

and the sample itself is looked up in that run, or in the one that is named with the review. An implicit conflict that
people confirmed is a success of its schema, one that they refuted is a failure whose reason is what they saw instead.
Both are recorded before the first dialogue, so they are on disk like all others and reach R+ and R- by the usual update
(paper, equation 3): people decide which side a trajectory is on, the LLM which ones tell most.

A trajectory keeps its sample's id, and an id is recorded once per schema. So where the new run has the same dialogue
and schema, people's verdict stands in the place of the machine's: what they refuted never comes back as a success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from pipelines.run_folder import RunFolder
from synuc.config import Reviews
from synuc.folder import Folder
from synuc.layers import fingerprint
from synuc.memory import Trajectory
from synuc.problem import Problem
from synuc.sample import Outcome, Sample
from synuc.synthesis import trajectory
from synuc.types import Frozen, Label

EXPORT = "spot-check.jsonl"
FILE = "reviewed.json"
SEEN_INSTEAD = {
    Label.ND: "people who read it saw no conflict with an earlier requirement (normal dialogue)",
    Label.ER: "people who read it saw the earlier requirement revised openly (explicit revision)",
}
"""Why a sample of IC failed, by the label that people agreed on."""


class ReviewsError(Problem):
    """Reviews that can't be used; the message says which and what to do."""


class Verdict(BaseModel):
    """What is read of a line of a spot check's export."""

    id: str
    synthetic: Label
    label: Label | None
    run: str | None = None


class Reviewed(Frozen):
    """The trajectories taken from reviews, ordered by schema and id, and how many lines gave none, by the reason."""

    trajectories: tuple[Trajectory, ...] = ()
    ignored: dict[str, int] = Field({})

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits over the trajectories; empty if there are none."""
        if not self.trajectories:
            return ""
        return fingerprint({"trajectories": [trajectory.model_dump(mode="json") for trajectory in self.trajectories]})

    @property
    def counts(self) -> dict[str, Any]:
        """What became of all lines, as plain data."""
        successes = sum(trajectory.success for trajectory in self.trajectories)
        return {
            "successes": successes,
            "failures": len(self.trajectories) - successes,
            "ignored": dict(sorted(self.ignored.items())),
        }


def summary(counts: Mapping[str, Any]) -> str:
    """`Reviewed.counts` as a sentence."""
    taken = f"successes {counts['successes']}, failures {counts['failures']}"
    return f"Into the memory from people's reviews: {taken}; lines not taken: {_listed(counts['ignored'])}."


def take(reviews: Sequence[Reviews], folder: Path) -> Reviewed:
    """What `reviews` give to the run in `folder`; if there are none, what it was begun with.

    Raises:
        ReviewsError: a review can't be read or gives nothing, or the run was begun with other verdicts.
        RunError: a reviewed run is none.
    """
    kept = Reviewed()
    if (folder / FILE).exists():
        kept = Reviewed.model_validate_json((folder / FILE).read_text("utf-8"))
    if not reviews:
        return kept
    taken = read_reviews(reviews)
    if kept.trajectories and kept.fingerprint != taken.fingerprint:
        raise ReviewsError(
            f"the reviews say something else now than when {folder} was begun: leave --memory-from out to go on with "
            "what was taken then, or begin another run folder"
        )
    return taken


def read_reviews(reviews: Sequence[Reviews]) -> Reviewed:
    """What people said of the samples in all reviews. Where two are about one attempt, a refutation counts.

    Raises:
        ReviewsError: naming the file, and the line if it is one, that can't be used.
        RunError: a reviewed run is none.
    """
    found: list[Trajectory] = []
    ignored: Counter[str] = Counter()
    for review in reviews:
        file = Path(review.review)
        if not file.is_file() and file.suffix != ".jsonl":
            file = file / EXPORT
        verdicts = list(_verdicts(file))
        run = _run(review, file, verdicts)
        samples = _samples(run, {verdict.id for verdict in verdicts})
        judged = [_judged(verdict, samples.get(verdict.id)) for verdict in verdicts]
        here = Counter(one for one in judged if isinstance(one, str))
        if here.total() == len(judged):
            raise ReviewsError(
                f"{file}: nothing to take (lines: {_listed(here)}). Only accepted IC samples of {run} count on "
                "which people agreed; is that the run that was reviewed?"
            )
        ignored += here
        found += [one for one in judged if isinstance(one, Trajectory)]
    taken: dict[tuple[str, str], Trajectory] = {}
    for one in sorted(found, key=lambda one: (one.success, one.reason)):
        key = (one.speaking.value, one.id)
        ignored["reviewed more than once"] += key in taken
        taken.setdefault(key, one)
    return Reviewed(trajectories=tuple(taken[key] for key in sorted(taken)), ignored=dict(+ignored))


def remember(reviewed: Reviewed, folder: RunFolder, k: int, threshold: int) -> None:
    """Record the trajectories in the memory of the run in `folder`, once, and keep what was taken beside it.

    For the driver, which holds the run, before there is a memory actor: an actor would hand it the lease of a full
    buffer. The first worker that records a trajectory gets that instead.
    """
    from actors.journal import load_memory, open_journal

    folder.write(FILE, reviewed.model_dump_json(indent=2))
    memory = folder.path / "memory"
    missing: Sequence[Trajectory] = reviewed.trajectories
    if (memory / "snapshot.json").exists():
        shelves = load_memory(memory).shelves
        missing = [trajectory for trajectory in missing if trajectory.id not in shelves[trajectory.speaking].seen]
    if missing:
        journal = open_journal(folder.path, folder.url, k, threshold)
        journal.write_all([{"do": "record", "trajectory": one.model_dump(mode="json")} for one in missing])


def _verdicts(file: Path) -> Iterator[Verdict]:
    try:
        lines = file.read_text("utf-8").split("\n")
    except FileNotFoundError:
        if (file.parent / "bench.jsonl").is_file():
            raise ReviewsError(
                f"{file.parent} is a benchmark. The memory shows its trajectories to the LLM that writes training "
                "data, so a detector would be trained on what it is tested on; name a spot check, made with: "
                "synuc review create --kind spot-check"
            ) from None
        raise ReviewsError(
            f"there is no {file}; write it with: synuc review export --project {file.parent} (of a spot check)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReviewsError(f"can't read {file} ({error}); name a spot check's export") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield Verdict.model_validate_json(line)
            except ValidationError:
                raise ReviewsError(f"{file}:{number}: no line of a spot check's export; name its {EXPORT}") from None


def _run(review: Reviews, file: Path, verdicts: Sequence[Verdict]) -> Path | str:
    """The run that was reviewed, a path or a URL.

    Raises:
        ReviewsError: it isn't named, and the lines name none or several, or one that isn't there any more.
    """
    if review.run is not None:
        return review.run
    told = {verdict.run for verdict in verdicts}
    anew = f"name it with --memory-from {review.review}=RUN"
    if len(told) != 1 or None in told:
        raise ReviewsError(f"the lines of {file} don't say which run was reviewed, or not all the same: {anew}")
    run = Path(str(told.pop()))
    if not Folder(run).begun():
        raise ReviewsError(f"{run}, the run that was reviewed by {file}, isn't there any more: {anew}")
    return run


def _samples(run: Path | str, ids: set[str]) -> dict[str, Sample]:
    """The accepted samples of a run that have one of these ids: spot checks are made of accepted ones."""
    accepted = RunFolder.existing(run).samples(Outcome.ACCEPTED.value)
    return {sample.id: sample for sample in accepted if sample.id in ids}


def _judged(verdict: Verdict, sample: Sample | None) -> Trajectory | str:
    """The trajectory of a reviewed sample, made as the method makes its own; or why there is none."""
    if verdict.synthetic is not Label.IC:
        return f"made for {verdict.synthetic}"
    if verdict.label is None:
        return "disputed"
    if sample is None:
        return "no accepted sample of the run"
    if not (sample.speaking and sample.anchor and sample.new and sample.tasks and sample.follow_up):
        return "made without a schema"
    return trajectory(sample, verdict.label is Label.IC, SEEN_INSTEAD.get(verdict.label, ""))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items())) or "none"
