"""Chat templates: prompts equal to those of lm-eval's hf backend, and one line for what cannot be rendered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from transformers import PreTrainedTokenizerFast

from mtnlg_model.chat import Chat
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role == "system" and loop.length > 3 %}
        {{- raise_exception("no system message before examples") }}
    {%- endif %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {% set told = "told" %}
{{ bos_token }}<{{ message.role }}> {{ message.content | trim }}
{% generation %}
{{ {"<é>": loop.index0} | tojson }}{{ eos_token }}
{% endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
<assistant>{% endif %}
"""
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|endoftext|>"}}
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": " Who?\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "The cook."},
        {"role": "user", "content": "<|endoftext|> & {{ bos_token }}"},
    ],
]


def write(folder: Path, template: object, tokens: dict[str, Any] = TOKENS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, **tokens}))
    return folder


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("answer", [True, False])
def test_a_chat_becomes_the_prompt_of_transformers(
    tokenizer_path: Path, tmp_path: Path, chat: list[dict[str, str]], answer: bool
) -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_path),
        chat_template=TEMPLATE,
        bos_token=TOKENS["bos_token"],
        eos_token="<|endoftext|>",  # noqa: S106
    )
    template = Chat.read([tmp_path / "none", write(tmp_path / "one", TEMPLATE)])
    goes_on = chat if answer else [*chat, {"role": "assistant", "content": "It is \n"}]
    asked = [each for each in goes_on if each["role"] != "system"] if len(goes_on) > 3 else goes_on
    expected = theirs.apply_chat_template(
        asked, tokenize=False, add_generation_prompt=answer, continue_final_message=not answer
    )
    assert template.render(goes_on, answer=answer) == expected


def test_files_of_their_own_come_before_the_config_and_are_named(tmp_path: Path) -> None:
    write(tmp_path, [{"name": "default", "template": "old"}, {"name": "tools", "template": "tools"}])
    (tmp_path / "chat_template.jinja").write_text("new {{ eos_token }}")
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "rag.jinja").write_text("rag")
    chat = Chat.read([tmp_path])
    assert chat.texts == {"default": "new {{ eos_token }}", "tools": "tools", "rag": "rag"}
    assert chat.render([]) == "new <|endoftext|>"
    chat.choose("rag")
    assert chat.render([]) == "rag"


def test_template_options_reach_the_template(tmp_path: Path) -> None:
    folder = write(tmp_path, "{{ enable_thinking }} {{ tone }}")
    assert Chat.read([folder], {"tone": "dry"}, thinking=False).render([]) == "False dry"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "no chat template"),
        ("{% for %}", "not a Jinja template"),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "cannot render a prompt: more",
        ),
        ("{{ 'x' * 10**10 }}", "cannot render a prompt: a call that could make more"),
        (7, "chat_template.* = 7: Input should be a valid string"),
        ("{{ raise_exception('only users') }}", "the chat template cannot render a prompt: only users"),
        ("{{ messages.append(1) }}", "cannot render a prompt: access to attribute 'append'"),
        ("{{ ''.__class__.__mro__ }}", "cannot render a prompt: access to attribute '__class__'"),
        ("{{ messages[0].content + 1 }}", "cannot render a prompt"),
    ],
)
def test_a_template_that_cannot_render_is_one_line(tmp_path: Path, template: object, message: str) -> None:
    with pytest.raises(Failure, match=message) as raised:
        Chat.read([write(tmp_path, template)]).render(CHATS[0])
    assert str(tmp_path) in str(raised.value) or template is None


def test_template_that_drops_the_last_message_is_refused(tmp_path: Path) -> None:
    template = Chat.read([write(tmp_path, "nothing")])
    with pytest.raises(Failure, match="it omits the last message"):
        template.render(CHATS[0], answer=False)


def test_a_folder_in_the_cache_of_the_hub_is_made_of_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "3de24cf"
    snapshot.mkdir(parents=True)
    write(blobs, "{{ messages[0].content }}").joinpath("tokenizer_config.json").rename(blobs / "0a1b")
    (snapshot / "tokenizer_config.json").symlink_to("../../blobs/0a1b")
    chat = Chat.read([tmp_path, snapshot])
    assert (chat.render(CHATS[0]), chat.begin) == (" Who?\n", "<|endoftext|>")
    (tmp_path / "tokenizer_config.json").symlink_to("/etc/hostname")
    with pytest.raises(Failure, match="not a regular file, or a link"):
        Chat.read([tmp_path])
