"""Schema matching by similarity instead of by an LLM (paper, section 7.3): BM25, or the cosine of embeddings.

Every constraint among which the anchor may be chosen is a query, every schema's description a document; the most
similar pair gives the anchor and its schema. Lexical similarity often finds nothing at all, and then every pair is the
most similar one. Such ties are decided by a hash of the sample's id: evenly, and in the same way every time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from synuc.effects import Compare, Program
from synuc.speaking import Speaking
from synuc.types import Constraint

CHINESE = {
    Speaking.SETTING_AND_SCENE: "时间、地点、场合、环境；心理或文化上的场景与氛围",
    Speaking.PARTICIPANTS: "参与者、说话人、听众、读者、受众、对象：身份、角色、年龄、背景知识",
    Speaking.ENDS: "目的、目标、用途、预期效果：要达成什么，让人做什么",
    Speaking.ACT_SEQUENCE: "内容的形式与顺序、结构、步骤、段落：先写什么，后写什么",
    Speaking.KEY: "语气、语调、风格、态度：正式、轻松、严肃、幽默、温暖",
    Speaking.INSTRUMENTALITIES: "渠道与语码：语言、方言、中文、英文、口语、书面语、媒介、平台",
    Speaking.NORMS: "交往的社会与文化规范：礼貌、委婉、禁忌，什么话可以对谁怎么说",
    Speaking.GENRE: "体裁、文体、文本类型：报告、故事、访谈、书信、讲座、评论、食谱",
}
"""What the schemas cover, for constraints in Chinese: words of two languages have nothing in common."""


def description(speaking: Speaking) -> str:
    """The document of a schema."""
    name = speaking.value.replace("_", " ")
    return f"{name}: {speaking.meaning}. {speaking.example}. {CHINESE[speaking]}"


def query(constraint: Constraint) -> str:
    """The query of a constraint: its dimension and value."""
    return f"{constraint.dimension.replace('_', ' ')}: {constraint.value}"


def retrieve(key: str, candidates: Sequence[Constraint]) -> Program[tuple[Constraint, Speaking]]:
    """MatchSchema by similarity: the anchor and the schema. `key` is the sample's id and decides ties."""
    documents = tuple(description(speaking) for speaking in Speaking)
    scores: list[list[float]] = yield Compare(tuple(map(query, candidates)), documents)
    pairs = [(c, s) for c in range(len(candidates)) for s in range(len(documents))]
    best = max(pairs, key=lambda pair: (scores[pair[0]][pair[1]], _lot(key, pair)))
    return candidates[best[0]], list(Speaking)[best[1]]


def _lot(key: str, pair: tuple[int, int]) -> bytes:
    return hashlib.sha256(f"{key}/{pair[0]}/{pair[1]}".encode()).digest()
