"""Chats as users have them: system prompts, other names of roles, tools, pictures, and own scored tasks over them."""

import json

import pytest
from transformers import AutoTokenizer

from specbench.config.pair import PACKAGE
from specbench.data.prompting import apply_template, encode
from specbench.errors import ConfigError
from specbench.tasks.custom import Custom
from specbench.tasks.dialogues import Dialogues

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML


@pytest.fixture
def tokenizer():
    found = AutoTokenizer.from_pretrained(PACKAGE / "tiny/models/target")
    found.chat_template = CHATML
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_system_prompts_are_rendered_by_the_template(tokenizer):
    rows = [
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                user("Hi"),
                {"role": "assistant", "content": "Yes."},
                user("Bye"),
            ]
        }
    ]
    task = Dialogues(chat="auto")
    first, second = task.samples(rows, "rows")
    assert (
        tokenizer.decode(encode(tokenizer, task, first, [], None).ids)
        == "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>"
    )
    ids = encode(tokenizer, task, second, [(first, "Hello.")], None).ids
    assert tokenizer.decode(ids) == "<|system|>Be brief.\n<|user|>Hi\n<|assistant|>Hello.\n<|user|>Bye\n<|assistant|>"
    assert first.prompt == "SYSTEM: Be brief.\nUSER: Hi\nASSISTANT:", "without a template"


def test_a_template_that_rejects_system_prompts_gets_them_in_the_question(tokenizer):
    tokenizer.chat_template = NO_SYSTEM
    (sample,) = Dialogues().samples([{"messages": [{"role": "system", "content": "Be brief."}, user("Hi")]}], "rows")
    ids = encode(tokenizer, Dialogues(chat="auto"), sample, [], None).ids
    assert tokenizer.decode(ids) == "<|user|>Be brief.\n\nHi\n<|assistant|>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}"
        "{% endfor %}#",
        "{% for m in messages %}{% if m.role == 'human' %}{{ m.content }}{% endif %}{% endfor %}#",
        "{% for m in messages %}{{ m.content[:3] }}{% endfor %}#",
    ],
)
def test_a_template_that_leaves_out_the_question_is_an_error(tokenizer, template):
    tokenizer.chat_template = template
    (sample,) = Dialogues().samples([{"messages": [user("Name a river.")]}], "rows")
    with pytest.raises(ConfigError, match=r"leaves out the user's text 'Name a river\.'; help: --chat off"):
        encode(tokenizer, Dialogues(chat="auto"), sample, [], None)


@pytest.mark.parametrize("name", ["gpt", "bing", "chatgpt", "bard", "assistant", "GPT"])
def test_assistants_have_several_names(name):
    turns = [{"from": "human", "value": "Hi"}, {"from": name, "value": "Hello"}, {"from": "human", "value": "More"}]
    assert [sample.question for sample in Dialogues().samples([{"conversations": turns}], "rows")] == ["Hi", "More"]


ODD = [
    {"messages": [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
    {"messages": [user("Weather?"), {"role": "tool", "content": "sunny"}]},
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": "x"}],
            }
        ]
    },
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "narrator", "content": "x"}]},
    {"messages": ["x"]},
    {"prompt": "x"},
]


def test_a_system_prompt_that_a_template_leaves_out_begins_the_question(tokenizer):
    tokenizer.chat_template = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
    messages = [{"role": "system", "content": "Be brief."}, user("Hi")]
    assert tokenizer.decode(apply_template(tokenizer, messages, True, "")) == "[Be brief.\n\nHi]"


def test_odd_rows_are_left_out_and_counted():
    rows = [{"messages": [user("Hi")]}, *ODD, {"messages": [user("Bye")]}]
    assert [sample.question for sample in Dialogues().samples(rows, "rows")] == ["Hi", "Bye"]
    assert Dialogues().left_out(rows) == {
        "tool calls": 2, "pictures or other parts": 1, "no text": 1, "role 'narrator'": 1, "a turn of another form": 1,
        "no conversation": 1,
    }  # fmt: skip


@pytest.mark.parametrize("row", ODD)
def test_the_first_reason_is_named_if_no_row_remains(row):
    with pytest.raises(ConfigError, match=r"^rows:1"):
        Dialogues().samples([row, row], "rows")


def test_an_own_task_scores_chats(tokenizer, tmp_path):
    chat = [
        {"role": "system", "content": "Add."},
        user("1+1"),
        {"role": "assistant", "content": "2"},
        user("2+2"),
        {"role": "assistant", "content": "4"},
    ]
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"messages": chat, "topic": "sums"}) + "\n" + json.dumps(ODD[0]) + "\n"
    )
    task = Custom(
        messages="messages",
        reference="messages[-1][content]",
        metric="number",
        chat="auto",
        file=str(tmp_path / "rows.jsonl"),
    )
    data = task.data("hub")
    (sample,) = data.samples
    assert data.left_out == {"tool calls": 1} and sample.reference == "4"
    assert tokenizer.decode(encode(tokenizer, task, sample, [], None).ids) == (
        "<|system|>Add.\n<|user|>1+1\n<|assistant|>2\n<|user|>2+2\n<|assistant|>"
    )
    assert sample.prompt == "SYSTEM: Add.\nUSER: 1+1\nASSISTANT: 2\nUSER: 2+2\nASSISTANT:"
    assert task.score(sample, "It is 4.")["number"] == 1.0
    with pytest.raises(ValueError, match="messages = 'messages' and prompt conflict"):
        Custom(messages="messages", prompt="{x}")
