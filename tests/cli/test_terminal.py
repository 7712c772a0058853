"""Output on narrow terminals, without a terminal, and in encodings other than UTF-8."""

import io
import json
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from specbench.analysis.number_format import TENTHS, TIMES
from specbench.cli import console
from specbench.cli.app import replace_unprintable
from specbench.cli.console import print_table, say
from specbench.reporting.tables import Table
from tests.fixtures.console import specbench

HEADS = ["method", "rank", "tokens/s, decoding", "speedup over ar, decoding", "lossless", "acceptance", "strict"]
KEYS = ("method", "rank", "tokens_per_second", "speedup", "lossless", "acceptance_rate", "score")
ROWS = [
    ["sd", "1", "449.1", "1.45x [1.33, 1.56]", "yes", "0.862", "83.3 [58.3, 100.0]"],
    ["ar", "2", "309.1", "1.00x", "–", "–", "83.3 [58.3, 100.0]"],
]
TABLE = Table("tiny, gsm8k: Speed and quality", HEADS, ROWS, KEYS)


def printed(width: int, is_terminal: bool = True, table: Table = TABLE, **options) -> list[str]:
    out = io.StringIO()
    print_table(table, Console(file=out, width=width, force_terminal=is_terminal, color_system=None), **options)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_rows_are_never_folded(width):
    lines = printed(width)
    assert max(map(len, lines)) <= width
    assert sum("1.45x [1.33, 1.56]" in line for line in lines) == 1
    assert sum("83.3 [58.3, 100.0]" in line for line in lines) == 2


def test_a_wide_terminal_shows_every_column():
    text = "\n".join(printed(160))
    assert all(head in text for head in HEADS) and "hidden" not in text


def test_a_narrow_terminal_hides_the_least_important_columns_and_names_them():
    lines = printed(80)
    (hidden,) = (line for line in lines if "hidden columns" in line)
    assert "acceptance" in hidden and "tokens/s" in hidden
    assert "speedup" not in hidden and "strict" not in hidden


def test_the_column_lossless_is_hidden_after_the_rank():
    text = "\n".join(printed(68))
    assert "yes" in text and "rank" in text.partition("hidden columns")[2]


def test_columns_without_a_key_are_hidden_in_the_order_given():
    table = Table("", HEADS, ROWS)
    lines = printed(76, table=table, optional=["acceptance", "lossless", "rank"])
    (hidden,) = (line for line in lines if "hidden columns" in line)
    assert hidden.endswith("lossless; acceptance") and sum("1.45x [1.33, 1.56]" in line for line in lines) == 1


def test_columns_for_which_there_is_room_after_all_are_shown():
    """Hiding the long column leaves room for the short one that was hidden before it."""
    heads, keys = ["method", "n", "long", "speedup"], ("method", "tokens_per_second", "rank", "speedup")
    lines = "\n".join(printed(60, table=Table("", heads, [["sd", "7", "x" * 60, "1.45x [1.33, 1.56]"]], keys)))
    assert lines.partition("hidden columns (the terminal is too narrow): ")[2].strip() == "long"


def test_the_columns_that_a_table_is_named_for_are_never_hidden():
    table = replace(TABLE, essential=("acceptance_rate",))
    text = "\n".join(printed(68, table=table))
    assert "0.862" in text and "acceptance" not in text.partition("hidden columns")[2]


def test_a_list_is_wrapped_after_commas_and_no_cell_within_words():
    heads = ["pair", "task", "methods", "generations", "GiB"]
    rows = [["llama-vicuna", "humaneval:se-paper", "we, we-sd x2, we-se x2", "0/2460", "54.21"]]
    for width, hidden in ((68, "generations"), (90, "")):
        lines = printed(width, table=Table("", heads, rows), optional=["generations", "GiB"], listing="methods")
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert all(word in text for word in ("llama-vicuna", "humaneval:se-paper", "we-sd x2,", "we-se x2", "54.21"))
        assert text.partition("hidden columns (the terminal is too narrow): ")[2].strip() == hidden


def test_columns_of_text_are_aligned_to_the_left():
    rows = [
        ["se", "gamma=5", TIMES.cell(1.2), "–"],
        ["se", "–", TIMES.cell(10.2, "[9, 11]"), TENTHS.cell(2.0)],
        ["se", "gamma=[5, 1]", "all 2 failed", "–"],
    ]
    table = Table("", ["method", "setting", "speedup", "score"], rows)
    assert [table.is_text(i) for i in range(4)] == [True, True, False, False]
    settings = [line for line in printed(100, table=table) if "gamma" in line]
    assert len({line.index("gamma") for line in settings}) == 1


def test_a_title_is_as_wide_as_the_terminal_and_broken_between_words():
    title = "tiny, gsm8k@2-A, T = 1, a title of many words above a narrow table"
    for width in (40, 120):
        lines = printed(width, table=Table(title, ["a", "b"], [["1", "2"]]))
        above = lines[: next(i for i, line in enumerate(lines) if line.split() == ["a", "b"])]
        assert " ".join(" ".join(above).split()) == title, "no word is broken"
        assert len([line for line in above if line.strip()]) == (2 if width == 40 else 1)


def test_signatures_are_broken_between_their_parts():
    out = io.StringIO()
    signature = "exact_match|norm:strip,case|shots:2|exemplars:0123456789abcdef|version:2"
    say(f"strict: {signature}", Console(file=out, width=40))
    lines = out.getvalue().splitlines()
    assert "".join(lines) == f"strict: {signature}" and max(map(len, lines)) <= 40
    assert all(line.endswith("|") for line in lines[:-1])


@pytest.mark.parametrize("command", [("list", "methods"), ("doctor",)])
def test_columns_bound_the_lines_of_a_pipe(tmp_path, monkeypatch, command):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, specbench(*command, cwd=tmp_path).stdout.splitlines())) > 100
    monkeypatch.setenv("COLUMNS", "80")
    words = max(map(len, re.findall(r"\S+", specbench(*command, cwd=tmp_path).stdout)))
    assert max(map(len, specbench(*command, cwd=tmp_path).stdout.splitlines())) <= max(80, words + 23)


@pytest.mark.parametrize(("command", "options"), [("run", ("-m", "-t", "-p")), ("profile", ("-m", "-t", "--middle"))])
def test_what_is_measured_comes_first_in_help(tmp_path, command, options):
    what = specbench(command, "-h", cwd=tmp_path).stdout.partition("What:")[2].partition("\n\n")[0]
    assert all(option in what for option in options)


def test_plan_names_a_pair_as_runs_do_and_explains_only_what_it_shows(tmp_path):
    specbench("init", "pair", "mine.toml", cwd=tmp_path)
    plan = ("plan", "-m", "sd", "-p", "mine.toml", "--data", "synthetic")
    once = specbench(*plan, cwd=tmp_path).stdout
    assert "mine.toml" not in once and "  mine  " in once and "x2: " not in once
    assert "x2: " in specbench(*plan, "--over", "gamma=[1, 3]", cwd=tmp_path).stdout


def test_a_file_or_pipe_gets_every_column_on_one_line():
    lines = printed(60, is_terminal=False)
    assert not any("hidden" in line for line in lines)
    assert sum("1.45x [1.33, 1.56]" in line and "83.3 [58.3, 100.0]" in line for line in lines) == 1


def test_characters_that_an_encoding_lacks_are_replaced(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    replace_unprintable()
    print("1.5 ± 0.1 – 2 × ∑", flush=True)
    assert raw.getvalue() == b"1.5 +- 0.1 - 2 x ?\n"
    assert sys.stderr.errors == "strict", "UTF-8 needs no replacement"


def test_progress_without_a_terminal_has_a_rate_and_the_time_left(monkeypatch, capsys):
    seconds = iter(range(0, 1000, 12))
    monkeypatch.setattr(console.time, "monotonic", lambda: next(seconds))
    with console.progress("a run", 3) as advance:
        for _ in range(3):
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["a run: 1/3", "a run: 2/3", "a run: 3/3"]
    assert re.search(r"0\.1/s, 24 s left", lines[0]) and lines[-1].endswith("in 36 s")


HOSTILE = "\x1b]0;x\x07\x9b2J\u202e\u2066\u200b\u061c\u2028\xad"


def test_show_and_list_print_control_and_bidirectional_characters_as_escapes(tmp_path):
    """Also those of a card, which may quote the output of models. Line breaks and tabs are kept."""
    escapes = r"\u001b]0;x\u0007\u009b2J\u202e\u2066\u200b\u061c\u2028\u00ad"
    (tmp_path / "card.md").write_text(f"quoted:\t{HOSTILE}\n", encoding="utf-8")
    table = f'card = "card.md"\ndescription = "{escapes}"\n[models.target]\npath = "x"  # {HOSTILE[2:]}\n'
    (tmp_path / "own.toml").write_text(table.replace("\x07", "").replace("\x9b", "\x85"), encoding="utf-8")
    plugin = "from specbench.decoding.targets import Last\nclass Own(Last, name='own'):\n    " + repr(f"Bad {HOSTILE}")
    (tmp_path / "own.py").write_text(plugin)
    shown = specbench("show", "pair", "own.toml", cwd=tmp_path).stdout
    listed = specbench("list", "methods", "--plugin", "own.py", cwd=tmp_path).stdout
    rows = specbench("list", "methods", "--plugin", "own.py", "--json", cwd=tmp_path).stdout
    for text in (shown, listed, rows):
        assert not [each for each in text if each not in "\n\t" and not each.isprintable()]
    assert "quoted:\t\\x1b]0;x" in shown and "\\u202e" in listed
    assert any(row["description"] == f"Bad {HOSTILE}" for row in json.loads(rows))
