"""`specbench trace`: the rounds of one generation, and the origin of every token."""

import json

import pytest

from specbench.analysis.acceptance import TracedRound
from specbench.cli.trace import lines, plain, visible
from specbench.runs.record import RoundRecord
from tests.fixtures.console import specbench


def round_(origins, pieces, **changes):
    """Return a round as the command passes it to `lines`."""
    text = {key: changes.pop(key, empty) for key, empty in (("rejected", ""), ("inner", []))}
    counts = {"tokens": len(pieces), "drafted": 3, "tested": 2, "accepted": origins.count("a"), "proposers": ["draft"]}
    record = RoundRecord(**(counts | changes))
    return TracedRound(record, list(range(len(pieces))), pieces, origins, **text)


def test_a_rejected_draft_precedes_its_replacement_and_inner_rounds_are_indented():
    inner = round_("ab", [" x", " y"])
    outer = round_("dar", [" a", " b", " c"], untested=1, rejected=" B", inner=[inner])
    assert [plain(line) for line in lines([outer])] == [
        "1  draft: 3 drafted, 2 tested, 1 accepted, 1 untested  d[ a] a[ b] x[ B] r[ c]",
        "    1.1  draft: 3 drafted, 2 tested, 1 accepted  a[ x] b[ y]",
    ]


def test_the_drafters_of_one_round_are_counted():
    (line,) = lines([round_("aa", ["x", "y"], proposers=["draft", "draft", "target"])])
    assert line.label.startswith("1  draft 2, target 1: ")


def test_tokens_without_text_show_their_id_and_control_characters_are_escaped():
    (line,) = lines([round_("aa", ["\x1b[2J\n", ""])])
    assert line.spans == [("a", ["\\x1b[2J\\n", "<1>"])]
    assert visible("a\nb\x1b", allowed="\n") == "a\nb\\x1b"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Traces as JSON, by method."""
    folder = tmp_path_factory.mktemp("trace")

    def trace(method, *more):
        common = ("-t", "gsm8k", "--max-new-tokens", "16", "--json")
        return json.loads(specbench("trace", "-m", method, *common, *more, cwd=folder).stdout)

    chain = ("-p", "tiny-polybasic", "--temperature", "1")
    return {
        "sd": trace("sd", "--gamma", "3", "--temperature", "1", "--sample-index", "1"),
        "sprinter": trace("sprinter"),
        "polybasic": trace("polybasic", *chain),
    }


@pytest.mark.parametrize("method", ["sd", "sprinter", "polybasic"])
def test_the_rounds_tokens_are_the_output_and_each_has_an_origin(traces, method):
    trace = traces[method]
    rounds = trace["rounds"]
    assert [id_ for each in rounds for id_ in each["ids"]] == trace["tokens"]
    assert "".join(piece for each in rounds for piece in each["pieces"]) == trace["text"]
    for each in rounds:
        assert len(each["origins"]) == len(each["pieces"]) == each["tokens"]
        assert each["origins"].count("a") == each["accepted"] <= each["tested"]
        assert each["origins"].count("d") == each.get("untested", 0)
        assert each["tested"] == each["accepted"] or each["rejected"]
    assert trace["finish"] == "length"
    assert len(trace["tokens"]) == 16


def test_each_kind_of_method_shows_its_own_origins(traces):
    assert any("r" in each["origins"] and each["rejected"] for each in traces["sd"]["rounds"])
    assert any("d" in each["origins"] for each in traces["sprinter"]["rounds"])
    assert traces["sd"]["forwards"]["draft"] > traces["sd"]["forwards"]["target"] > 0


def test_a_chains_inner_rounds_are_the_draft_that_the_target_tested(traces):
    for each in traces["polybasic"]["rounds"]:
        assert set(each["proposers"]) == {"middle"}
        assert {name for inner in each["inner"] for name in inner["proposers"]} == {"eagle"}
        drafted = [id_ for inner in each["inner"] for id_ in inner["ids"]]
        assert drafted[: each["accepted"]] == each["ids"][: each["accepted"]]


def test_a_prompt_from_the_command_line_is_decoded_and_printed_without_colors(tmp_path):
    done = specbench("trace", "-m", "sd", "Question: 2 + 2", "--max-new-tokens", "6", "--gamma", "2", cwd=tmp_path)
    printed = done.stdout.splitlines()
    assert printed[0] == "sd on tiny, T = 0, seed 0"
    assert "\x1b" not in done.stdout
    assert any("accepted  " in line and ("a[" in line or "r[" in line) for line in printed)
    assert any(line.startswith("6 tokens, ") for line in printed)
    assert any(line.startswith("forwards: ") and "draft " in line for line in printed)


def test_colors_are_used_on_terminals_without_no_color(tmp_path, monkeypatch):
    """A terminal gets colors; with NO_COLOR it gets letters."""
    command = ("trace", "-m", "sd", "Question: 2 + 2", "--max-new-tokens", "6", "--gamma", "2")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    colored = specbench(*command, cwd=tmp_path).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    uncolored = specbench(*command, cwd=tmp_path).stdout
    rounds = [line for line in colored.splitlines() if " tested, " in line]
    assert any("accepted  \x1b[0m\x1b[32m" in line or "|\x1b[0m\x1b[32m" in line for line in rounds)
    assert "a[" not in colored
    assert "\x1b[32m" not in uncolored
    assert "a[" in uncolored or "r[" in uncolored


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "a prompt, or a task"), (("x", "-t", "gsm8k"), "a prompt, or a task"), (("-m", "sdd", "x"), "mean 'sd'")],
)
def test_a_mistake_is_one_line(tmp_path, arguments, message):
    assert message in specbench("trace", *arguments, cwd=tmp_path, code=2).stderr


def test_a_sample_index_out_of_range_is_an_error(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"prompt": "One"}\n')
    command = ("trace", "-m", "sd", "-t", "prompts", "--data", "own.jsonl", "--sample-index", "3")
    assert "--sample-index 3 is out of range: prompts has 1 sample" in specbench(*command, cwd=tmp_path, code=2).stderr
