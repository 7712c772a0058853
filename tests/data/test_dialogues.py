"""Dialogues as prompts and as training texts, and chat templates that a pair names."""

import json

import pytest
from transformers import AutoTokenizer

from specbench.config.pair import PACKAGE
from specbench.config.presets import chat_template
from specbench.data.prompting import dialogue_ids, encode
from specbench.data.rows import read_file
from specbench.errors import ConfigError, MissingAsset
from specbench.tasks.dialogues import Dialogues, SpecBench, SpeedBench
from tests.fixtures import console

SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and"
    " polite answers to the user's questions."
)
ROWS = [
    {"conversations": [
        {"from": "gpt", "value": "Welcome."}, {"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hello."},
        {"from": "human", "value": "More."}, {"from": "gpt", "value": "Yes."},
    ]},
    {"conversations": [{"from": "gpt", "value": "Nothing was asked."}]},
    {"conversations": [{"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "The Nile."}]},
]  # fmt: skip


@pytest.fixture
def tokenizer():
    found = AutoTokenizer.from_pretrained(PACKAGE / "tiny/models/target")
    found.chat_template = None
    return found


def test_questions_follow_the_answers_to_earlier_ones():
    samples = Dialogues().samples(ROWS, "rows")
    assert [(each.id, each.turn, each.after) for each in samples] == [
        ("1", "Hi.", ""), ("1.2", "More.", "1"), ("2", "Name a river.", ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("turn", "wrong"),
    [
        ({"role": "narrator", "content": "x"}, "'role' is 'narrator'; known: human, user, gpt, assistant, model"),
        ({"content": "x"}, "'role' is None"),
        ({"role": "assistant", "content": None}, "'content' is None; needed: a text, or a list of parts of type text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "'content' is [{'type': 'image_url'}]; needed"),
        ("x", "is not an object with 'role' and 'content'"),
    ],
)
def test_a_wrong_turn_is_named_with_its_file_line_and_key(turn, wrong):
    good = {"role": "user", "content": "Hi."}
    with pytest.raises(ConfigError) as error:
        Dialogues().samples([{"messages": [good, turn]}], "chats.jsonl")
    text = str(error.value)
    assert text.startswith("chats.jsonl:1: turn 2 of 'messages'") and wrong in text


def test_content_parts_of_type_text_are_joined():
    parts = [{"type": "text", "text": "Name a river."}, {"type": "text", "text": "And a lake."}]
    (sample,) = Dialogues().samples([{"messages": [{"role": "user", "content": parts}]}], "rows")
    assert sample.turn == "Name a river.\nAnd a lake."


def test_openais_messages_are_the_same_dialogues():
    roles = {"human": "user", "gpt": "assistant"}
    messages = [
        {"messages": [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]}
        for row in ROWS
    ]
    assert Dialogues().dialogues(messages) == Dialogues().dialogues(ROWS)
    assert Dialogues().samples(messages, "rows") == Dialogues().samples(ROWS, "rows")


def test_messages_are_measured(tmp_path):
    turns = [{"role": "system", "content": "Be short."}]
    turns += [{"role": "user", "content": "Name a river."}, {"role": "user", "content": "And a lake."}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n" + json.dumps(ROWS[2]) + "\n")
    few = ("-t", "dialogues", "--data", "chats.jsonl", "--repeats", 1, "--max-new-tokens", 4)
    console.specbench("run", "-m", "sd", *few, cwd=tmp_path)
    (run,) = json.loads(console.specbench("list", "runs", "--json", cwd=tmp_path).stdout)
    assert run["generations"] == run["expected"] == 2 * 3, "two methods, three questions"
    report = console.specbench("report", cwd=tmp_path).stdout
    assert "left out" not in report
    (tmp_path / "chats.jsonl").write_text('{"prompt": "Hi."}\n')
    shown = console.specbench("run", "-m", "sd", *few, cwd=tmp_path, code=2).stderr
    assert "chats.jsonl:1: no list under 'messages' or 'conversations'" in shown and "has: prompt" in shown
    (tmp_path / "chats.jsonl").write_text(json.dumps(ROWS[2]) + "\n")
    few = ("-t", "prompts", *few[2:])
    shown = console.specbench("run", "-m", "sd", *few, cwd=tmp_path, code=2).stderr
    assert "chats.jsonl:1: no text under 'prompt'" in shown and "has: conversations; help: -t dialogues" in shown


def test_all_turns_are_training_text(tokenizer):
    first, rest = dialogue_ids(tokenizer, Dialogues().dialogues(ROWS)[0])
    assert tokenizer.decode(first) == "USER: Hi.\nASSISTANT:"
    assert tokenizer.decode(first + rest) == "USER: Hi.\nASSISTANT: Hello.\nUSER: More.\nASSISTANT: Yes."


def test_vicunas_prompt_is_fastchats(tokenizer, tmp_path):
    template = chat_template("vicuna", tmp_path)
    assert template.label.startswith("vicuna:")
    tokenizer.chat_template = template.text
    first, rest = dialogue_ids(tokenizer, Dialogues().dialogues(ROWS)[0])
    assert tokenizer.decode(first) == f"{SYSTEM} USER: Hi. ASSISTANT:"
    assert tokenizer.decode(first + rest) == f"{SYSTEM} USER: Hi. ASSISTANT: Hello.</s>USER: More. ASSISTANT: Yes.</s>"
    turns = SpecBench(chat="auto").samples([{"category": "qa", "turns": ["Hi.", "More."]}], "rows")
    ids, _ = encode(tokenizer, SpecBench(chat="auto"), turns[1], [(turns[0], "Hello.")], None)
    assert tokenizer.decode(ids) == f"{SYSTEM} USER: Hi. ASSISTANT: Hello.</s>USER: More. ASSISTANT:"


def test_an_unknown_chat_template_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'vicuna'"):
        chat_template("vicunna", tmp_path)
    with pytest.raises(ConfigError, match="no chat template"):
        chat_template("mine.jinja", tmp_path)


def test_a_json_array_is_read_as_rows(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS))
    assert read_file(path).rows == ROWS
    for text, wrong in (("[1]", "row 1 is not a JSON object"), ("[", "not JSON")):
        path.write_text(text)
        with pytest.raises(MissingAsset, match=wrong):
            read_file(path)


def test_a_run_records_the_pairs_template_and_a_head_is_trained_on_dialogues(tmp_path):
    (tmp_path / "rows.json").write_text(json.dumps([ROWS[0], *[ROWS[2]] * 11]))
    (tmp_path / "mine.toml").write_text(
        '[models.draft]\npath = "specbench:tiny/models/draft"\n'
        '[models.target]\npath = "specbench:tiny/models/target"\nchat_template = "vicuna"\n'
    )
    few = ["-p", "mine.toml", "-t", "dialogues", "--data", "rows.json"]
    console.specbench("run", *few, "-n", 2, "--repeats", 1, "--max-new-tokens", 4, cwd=tmp_path)
    (spec,) = (tmp_path / "results").glob("*/run.toml")
    assert 'chat_template = "vicuna:' in spec.read_text()
    recipe = ["--set", "recipe.epochs=1", "--trial", 0, "-o", "head"]
    console.specbench("train", "eagle", *few, *recipe, cwd=tmp_path)
    assert (tmp_path / "head/model.safetensors").is_file()


def test_rows_of_speed_bench_have_groups_and_later_turns(tmp_path):
    rows = [
        {"question_id": "a", "category": "low_entropy", "sub_category": "sorting", "turns": ["Sort b a.", "Now c b."]},
        {"question_id": "b", "category": "mixed", "sub_category": "exams", "turns": "A question"},
    ]
    task = SpeedBench()
    made = task.samples(rows, "rows")
    assert [(each.id, each.group, each.after) for each in made] == [
        ("a", "low_entropy", ""), ("a.2", "low_entropy", "a"), ("b", "mixed", ""),
    ]  # fmt: skip
    assert made[2].prompt == "USER: A question\nASSISTANT:"
    assert SpeedBench(group="sub_category").samples(rows, "rows")[0].group == "sorting"
    rows[1]["turns"] = ["FULL BENCHMARK DATA SHOULD BE FETCHED from the source"]
    for wrong in (5, None, []):
        with pytest.raises(ConfigError, match="rows:1: 'turns' must be a list of texts"):
            task.samples([{"turns": wrong}], "rows")
    with pytest.raises(ConfigError, match="rows:2: the row is an unresolved placeholder"):
        task.samples(rows, "rows")
