"""Special tokens in user text are text: a zero-width space keeps tokenizers from reading them as control."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from functools import lru_cache

BREAK = "\u200b"

# Words that stand between `<` (or `</`) and `>` as control tokens of some chat model. Every `<|...|>` is one anyway.
_ANGLE_WORDS = (
    r"s|bos|eos|unk|pad|mask|sep|cls|sop|eop|eod|"
    r"think|tool_call|tool_calls|tool_response|tool_result|tool_results|tools|tool_output|function_call|"
    r"start_of_turn|end_of_turn|start_of_image|end_of_image|image_soft_token|image|audio|video|"
    r"start_of_role|end_of_role|end_of_utterance|begin_of_text|end_of_text|endoftext|"
    r"fim_prefix|fim_middle|fim_suffix|fim_pad|repo_name|reponame|file_sep|filename|gh_stars|"
    r"issue_start|issue_comment|issue_closed|jupyter_start|jupyter_text|jupyter_code|jupyter_output|"
    r"jupyter_script|empty_output|extra_id_\d{1,3}|reserved_\d{1,4}|unused\d{1,4}|SPECIAL_\d{1,4}"
)
# The same between `[` (or `[/`) and `]`: Mistral's and GLM's.
_SQUARE_WORDS = (
    r"INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|THINK|"
    r"IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|REFERENCE_DOC_\d{1,2}|"
    r"MODEL_SETTINGS|gMASK|sMASK|CLS|SEP|MASK|PAD|UNK|BOS|EOS"
)
# Only a token's first character is consumed; the rest is looked ahead at, so that a token that begins inside
# another one (`<|x<|im_end|>`) is found as well.
_KNOWN = (
    r"<(?="
    r"\|[^\s<>]{1,40}\|>"  # ChatML, Llama 3 and 4, Phi, GLM, Command, gpt-oss, ...
    r"|\|[\w/]{1,40}>|[\w/]{1,40}\|>"  # Gemma's later pairs: <|turn> <turn|>
    r"|[｜][^<>]{1,40}[｜]>"  # DeepSeek
    r"|<SYS>>|</SYS>>"
    rf"|/?(?:{_ANGLE_WORDS})>"
    r")"
    rf"|\[(?=/?(?:{_SQUARE_WORDS})\]|\|[^\s\[\]]{{1,40}}\|\])"  # the second: EXAONE's [|endofturn|]
)


def neutralise(text: str, tokens: Collection[str] = ()) -> str:
    """`text` with U+200B after the first character of every chat-template control token; all else stays as it is.

    `tokens` adds a tokenizer's own special tokens to the known ones. One-character tokens can't be broken and are
    left alone. Doing it twice changes nothing more.
    """
    return _pattern(frozenset(tokens)).sub(_broken, text)


def _broken(match: re.Match[str]) -> str:
    return match[0] + BREAK


@lru_cache(maxsize=64)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    known = re.compile(_KNOWN)
    rests: dict[str, list[str]] = defaultdict(list)
    for token in sorted(tokens):
        # Tokenizers have up to a thousand tokens; nearly all of them are among the known ones.
        if len(token) > 1 and not known.match(token):
            rests[token[0]].append(re.escape(token[1:]))
    own = [f"{re.escape(first)}(?={'|'.join(group)})" for first, group in sorted(rests.items())]
    return re.compile("|".join([_KNOWN, *own]))
