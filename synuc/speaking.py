"""The eight SPEAKING schemas (Hymes; paper, Appendix C.3): dimensions along which a constraint may change."""

from __future__ import annotations

from enum import StrEnum


class Speaking(StrEnum):
    SETTING_AND_SCENE = "setting_and_scene"
    PARTICIPANTS = "participants"
    ENDS = "ends"
    ACT_SEQUENCE = "act_sequence"
    KEY = "key"
    INSTRUMENTALITIES = "instrumentalities"
    NORMS = "norms"
    GENRE = "genre"

    @property
    def meaning(self) -> str:
        """What the dimension covers, as a prompt says it."""
        return MEANING[self]

    @property
    def example(self) -> str:
        """A change along the dimension inside one task."""
        return EXAMPLE[self]


MEANING = {
    Speaking.SETTING_AND_SCENE: "time, place and physical surroundings; the psychological or cultural scene",
    Speaking.PARTICIPANTS: "speakers, hearers, audience, addressees: who they are, their roles, what they know",
    Speaking.ENDS: "purposes, goals and intended outcomes: what the result should achieve, or make people do",
    Speaking.ACT_SEQUENCE: "form and order of the content: which speech acts or parts come, and in which sequence",
    Speaking.KEY: "tone, manner and register: formal, casual, serious, humorous, ironic, warm",
    Speaking.INSTRUMENTALITIES: "channel and code: language, dialect, script, spoken or written, medium, platform",
    Speaking.NORMS: "social and cultural rules of interaction: politeness, what may be said to whom and how",
    Speaking.GENRE: "the recognised kind of text or event: report, story, interview, letter, lecture, review, recipe",
}

EXAMPLE = {
    Speaking.SETTING_AND_SCENE: "introduction for a talk on campus → opening of an online livestream",
    Speaking.PARTICIPANTS: "explanation for middle-school pupils → for domain experts",
    Speaking.ENDS: "copy that makes people buy → copy that asks them to judge carefully whether it suits them",
    Speaking.ACT_SEQUENCE: "conclusion first → background and limits first, conclusion last",
    Speaking.KEY: "light and friendly → formal and serious",
    Speaking.INSTRUMENTALITIES: "formal written Chinese → English for social media",
    Speaking.NORMS: "tactful feedback that avoids direct negation → name the problems and demand revisions",
    Speaking.GENRE: "formal research report → interview-style questions and answers",
}
