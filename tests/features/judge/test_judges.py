"""Judges: both orders, ties, servers that fail, and comparisons that are stored and not repeated."""

import gzip
import json
from collections.abc import Iterator

import pytest
import torch

from specbench.analysis.points import points
from specbench.analysis.quality import judged_points, win_rates
from specbench.analysis.summary import summarize
from specbench.data.task import Data, Sample
from specbench.errors import ConfigError, MissingAsset
from specbench.features.judge.judges import Endpoint, Judge, Likelihood, Prompted, letter_of
from specbench.features.judge.judging import JudgeRequest, judge_run
from specbench.features.suites.suite import read_suite
from specbench.observer import Observer
from specbench.reporting.quality_conclusion import judged_conclusion
from tests.fixtures.console import specbench
from tests.fixtures.judge_server import Server, judge_server

TEXT, RIGHT, WRONG = (
    "Question: Ann has 3 packs with 2 cookies each. How many cookies?\nAnswer:",
    " There are",
    " zzq( xj",
)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    with judge_server() as found:
        yield found


def test_a_judge_that_favors_a_position_gives_a_tie():
    class Swayed(Prompted):
        def answer(self, prompt):
            return "A"

    judgment = Swayed(path="none").compare("text", "one", "two")
    assert (judgment.verdict, judgment.unclear, len(judgment.exchanges)) == (0.5, 0, 2)


def test_a_comparison_is_won_if_both_orders_agree(server):
    judge = Endpoint(url=server.url, model="m")
    assert judge.compare("text", "much longer", "short").verdict == 1.0
    assert judge.compare("text", "short", "much longer").verdict == 0.0
    assert judge.compare("text", "equal", "equal").verdict == 0.5
    prompts = [each["messages"][0]["content"] for each in server.received[:2]]
    assert prompts[0].index("much longer") < prompts[0].index("short")
    assert prompts[1].index("short") < prompts[1].index("much longer")
    assert server.received[0]["model"] == "m" and server.received[0]["temperature"] == 0
    assert set(server.keys) == {"Bearer secret-key"}


def test_continuations_that_contain_placeholders_are_not_filled():
    class Echo(Prompted):
        def answer(self, prompt):
            return "A" if "Continuation A: {two}" in prompt else "B"

    assert Echo(path="none").compare("text", "{two}", "other").verdict == 1.0


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("A", "A"),
        (" **B**.", "B"),
        ("Answer: C", "C"),
        ("The answer is A.", "A"),
        ("A cat is better", None),
        ("", None),
    ],
)
def test_the_letter_of_an_answer_is_found(answer, letter):
    assert letter_of(answer) == letter


def test_answers_without_a_letter_are_ties_and_counted(server):
    server.content = "Both are fine"
    judgment = Endpoint(url=server.url, model="m").compare("text", "longer", "short")
    assert (judgment.verdict, judgment.unclear) == (0.5, 2)


def test_requests_are_repeated_while_the_server_is_busy(server):
    server.first = [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"})]
    assert Endpoint(url=server.url, model="m").compare("text", "longer", "short").verdict == 1.0
    assert len(server.received) == 4


def test_a_wait_that_is_no_number_is_ignored(server, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    server.first = [(503, {"Retry-After": each}) for each in ("nan", "inf", "-5", "Wed, 21 Oct 2026 07:28:00 GMT")]
    assert Endpoint(url=server.url, model="m").answer("Continuation A: x\n\nContinuation B: y") == "C"
    assert waits == [1.0, 2.0, 0.0, 8.0]


@pytest.mark.parametrize(
    ("body", "headers", "message"),
    [
        (b"[" * 100_000, {}, "does not answer in the OpenAI format"),
        (b'{"choices": 1' + b"0" * 5000 + b"}", {}, "does not answer in the OpenAI format"),
        (b" " * 3 * 2**20, {}, "answer too large: more than 1048576 bytes"),
        (gzip.compress(b" " * 300 * 2**20), {"Content-Encoding": "gzip"}, "answer too large: more than 1048576 bytes"),
        (b"no gzip", {"Content-Encoding": "gzip"}, "does not answer in the OpenAI format"),
        (b"x", {"Content-Encoding": "br"}, r"unreadable answer: .*br"),
    ],
)
def test_an_answer_of_another_form_or_size_is_an_error(server, body, headers, message):
    server.body, server.first = body, [(200, headers)]
    with pytest.raises(MissingAsset, match=message) as found:
        Endpoint(url=server.url, model="m").answer("Continuation A: x\n\nContinuation B: y")
    assert "\n" not in str(found.value)


def test_a_compressed_answer_is_read(server):
    server.body = gzip.compress(b'{"choices": [{"message": {"content": "B"}}]}')
    server.first = [(200, {"Content-Encoding": "gzip"})]
    assert Endpoint(url=server.url, model="m").answer("Continuation A: x\n\nContinuation B: y") == "B"


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_server_that_never_ends_its_answer_is_an_error(server, part):
    server.drips = part
    with pytest.raises(MissingAsset, match=r"timeout: no answer within 0\.5 s"):
        Endpoint(url=server.url, model="m", timeout=0.5, retries=0).answer("Continuation A: x\n\nContinuation B: y")


def test_a_redirection_is_not_followed(server):
    server.first = [(307, {"Location": server.url})]
    with pytest.raises(MissingAsset, match="error status: 307"):
        Endpoint(url=server.url, model="m").answer("Continuation A: x\n\nContinuation B: y")
    assert len(server.received) == 1


def test_a_rejected_key_and_a_missing_server_are_errors_that_name_them(server):
    server.first = [(401, {})]
    with pytest.raises(MissingAsset, match=r"401 .*; is OPENAI_API_KEY set"):
        Endpoint(url=server.url, model="m").compare("text", "longer", "short")
    with pytest.raises(MissingAsset, match=r"127\.0\.0\.1:9/v1: no connection"):
        Endpoint(url="http://127.0.0.1:9/v1", model="m", retries=0).answer("prompt")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"url": "localhost", "model": "m"}, "is no URL of a server"),
        ({"url": "http://user:word@host/v1", "model": "m"}, "must not contain a password"),
        ({"url": "http://host/v1", "model": "m", "question": "Which?"}, "{text} is missing"),
        ({"url": "http://host/v1", "model": "m", "tries": 3}, "unknown key 'tries'"),
    ],
)
def test_a_wrong_key_of_a_judge_is_an_error(keys, message):
    with pytest.raises(ConfigError, match=message):
        Judge.build({"name": "endpoint", **keys}, "judge")


def test_a_likelihood_judge_prefers_likely_texts():
    judge = Likelihood(path="specbench:tiny/models/code")
    assert judge.compare(TEXT, RIGHT, WRONG).verdict == 1.0
    assert judge.compare(TEXT, WRONG, RIGHT).verdict == 0.0
    assert judge.compare(TEXT, RIGHT, RIGHT).verdict == 0.5


def test_a_local_judge_answers_with_a_letter_and_uses_its_chat_template():
    judge = Prompted(path="specbench:tiny/models/code")
    assert {letter_of(each.answer) for each in judge.compare(TEXT, RIGHT, WRONG).exchanges} <= {"A", "B", "C"}
    seen = []
    judge.tokenizer.chat_template = "<user>{{ messages[0]['content'] }}</user>"
    original = judge.log_probabilities

    class Watched(Prompted):
        def log_probabilities(self, before, continuation):
            seen.append((self.tokenizer.decode(before), continuation))
            return original(before, continuation)

    watched = Watched(path=judge.path)
    watched.tokenizer.chat_template = judge.tokenizer.chat_template
    watched.answer("Which?")
    assert seen == [("<user>Which?</user>", each) for each in ("A", "B", "C")]
    seen.clear()
    off = Watched(path=judge.path, chat="off")
    off.answer("Which?")
    assert seen[0] == ("Which?\nAnswer:", " A")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose methods generate different texts."""
    folder = tmp_path_factory.mktemp("judged")
    shape = ("-n", 6, "--repeats", 2, "--max-new-tokens", 12, "--temperature", 2)
    specbench("run", "-m", "sd,pld", "-t", "gsm8k", *shape, cwd=folder)
    return folder


def run_of(folder):
    (run,) = (each for each in (folder / "results").iterdir() if (each / "samples.jsonl").exists())
    return run


def samples_of(run):
    ids = dict.fromkeys(json.loads(line)["sample"] for line in (run / "samples.jsonl").read_text().splitlines())
    return Data([Sample(each, f"text {each}") for each in ids], "", None, "", 6)


def test_a_judged_run_has_win_rates_and_equal_texts_are_ties(folder, server):
    run, table = run_of(folder), {"name": "endpoint", "url": server.url, "model": "m"}
    request = JudgeRequest(table, "sd", "ar")
    judged = judge_run(run, samples_of(run), request, torch.device("cpu"), Observer())
    texts = {
        (r["method"], r["sample"], r["repeat"]): r["text"]
        for r in map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    }
    pairs = [(texts["sd", s, r], texts["ar", s, r]) for m, s, r in texts if m == "sd"]
    share = sum(len(one) > len(two) for one, two in pairs) / len(pairs)
    (point,) = judged_points(run, points([summarize(run)]))
    assert (point.method, point.values["wins"].value) == ("sd", pytest.approx(share))
    assert sum(point.values[key].value for key in ("wins", "ties", "losses")) == pytest.approx(1.0)
    different = [one != two for one, two in pairs]
    assert len(server.received) == 2 * sum(different) > 0, "equal texts are not sent"
    assert [bool(row["exchanges"]) for row in judged["rows"]] == different
    assert "m at 127.0.0.1" in next(map(str, judged_conclusion(judged)))
    assert "secret-key" not in (run / "judged.json").read_text()


def test_a_judge_that_was_not_called_is_not_said_to_have_judged():
    row = {"sample": "0", "repeat": 0, "verdict": 0.5, "unclear": 0, "key": "k", "exchanges": [], "equal": True}
    judged = {
        "judge": {},
        "label": "m",
        "of": "sd",
        "against": "ar",
        "comparisons": 2,
        "rows": [row, {**row, "sample": "1"}],
    }
    assert list(map(str, judged_conclusion(judged))) == [
        "All 2 texts of sd and ar are equal, so the judge was not called."
    ]
    judged["rows"][1] = {**row, "sample": "1", "verdict": 1.0, "equal": False}
    *_, last = list(map(str, judged_conclusion(judged)))
    assert last == "1 comparison had equal texts: ties, without a call of the judge."


def test_stored_comparisons_are_not_repeated(folder, server):
    run, table = run_of(folder), {"name": "endpoint", "url": server.url, "model": "again", "retries": 0}
    request = JudgeRequest(table, "sd", "ar")
    server.first = [(200, {}), (200, {}), (400, {})]
    with pytest.raises(MissingAsset, match="400"):
        judge_run(
            run, samples_of(run), JudgeRequest({**table, "parallel": 1}, "sd", "ar"), torch.device("cpu"), Observer()
        )
    judge_run(run, samples_of(run), request, torch.device("cpu"), Observer())
    before = len(server.received)
    judge_run(run, samples_of(run), request, torch.device("cpu"), Observer())
    assert len(server.received) == before


def test_lone_surrogates_lose_no_comparisons(folder, server):
    run = run_of(folder)
    data = samples_of(run)
    data = Data([Sample(each.id, f"{each.prompt} \ud800") for each in data.samples], "", None, "", 6)
    server.content = "A \udfff"
    table = {"name": "endpoint", "url": server.url, "model": "surrogates"}
    judged = judge_run(run, data, JudgeRequest(table, "sd", "ar"), torch.device("cpu"), Observer())
    assert len(judged["rows"]) == judged["comparisons"] == 12
    assert any(each["answer"] == "A ?" for row in judged["rows"] for each in row["exchanges"])
    assert all("\ud800" not in each["messages"][0]["content"] for each in server.received)
    before = len(server.received)
    judge_run(run, data, JudgeRequest(table, "sd", "ar"), torch.device("cpu"), Observer())
    assert len(server.received) == before


def test_the_answers_of_other_judges_are_kept(folder, server):
    run, cpu = run_of(folder), torch.device("cpu")
    one, two, bad = ({"name": "endpoint", "url": server.url, "model": each, "retries": 0} for each in ("1", "2", "3"))
    first = judge_run(run, samples_of(run), JudgeRequest(one, "sd", "ar"), cpu, Observer())
    judge_run(run, samples_of(run), JudgeRequest(two, "sd", "ar"), cpu, Observer())
    judge_run(run, samples_of(run), JudgeRequest(one, "pld", "ar"), cpu, Observer())
    server.first = [(400, {})] * 100
    with pytest.raises(MissingAsset):
        judge_run(run, samples_of(run), JudgeRequest(bad, "sd", "ar"), cpu, Observer())
    server.first = []
    stored = json.loads((run / "judged.json").read_text())
    assert (stored["judge"]["model"], stored["of"]) == ("1", "pld"), "a judge that fails hides no other"
    before = len(server.received)
    again = judge_run(run, samples_of(run), JudgeRequest(one, "sd", "ar"), cpu, Observer())
    assert again["rows"] == first["rows"]
    judge_run(run, samples_of(run), JudgeRequest(two, "sd", "ar"), cpu, Observer())
    judge_run(run, samples_of(run), JudgeRequest(one, "pld", "ar"), cpu, Observer())
    assert len(server.received) == before


def test_the_command_judges_a_run_and_its_report_shows_the_result(folder, server):
    run = run_of(folder).relative_to(folder)
    shown = specbench("judge", run, "--judge", server.url, "--judge-model", "m", "--of", "sd", cwd=folder).stdout
    assert "prefers sd in" in " ".join(shown.split()) and str(run) in shown
    assert "Judged by m at" in specbench("report", run, "-f", "md", "--full", cwd=folder).stdout
    wrong = specbench("judge", run, "--judge", server.url, "--judge-model", "m", cwd=folder, code=2).stderr
    assert "help: --of" in wrong
    assert "--judge-model is missing" in specbench("judge", run, "--judge", server.url, cwd=folder, code=2).stderr
    again = specbench("judge", run, "--judge", server.url, "--judge-model", "m", "--of", "s", cwd=folder, code=2).stderr
    assert "no method 's'" in again and "did you mean 'sd'" in again


def test_a_suite_is_judged_by_the_server_that_the_user_names(server):
    suite = read_suite("sprinter-table1").with_judge({"name": "endpoint", "url": server.url, "model": "m"})
    assert (suite.judge["of"], suite.judge["against"], suite.judge["model"]) == ("sprinter", "sd", "m")
    with pytest.raises(ConfigError, match="compares no continuations"):
        read_suite("se-table2").with_judge({"name": "endpoint"})


def test_wins_ties_and_losses_are_shares_with_intervals():
    def row(sample, verdict, repeat=0):
        return {"sample": str(sample), "repeat": repeat, "verdict": verdict, "unclear": 0, "key": "", "exchanges": []}

    rows = [row(i, verdict) for i, verdict in enumerate([1.0] * 10 + [0.5] * 20 + [0.0] * 30)]
    rates = win_rates(rows)
    assert (rates.wins.value, rates.ties.value, rates.losses.value) == pytest.approx((1 / 6, 1 / 3, 1 / 2))
    assert rates.half_ties.value == pytest.approx(1 / 3) and rates.half_ties.low < 1 / 3 < rates.half_ties.high
    assert rates.decided.value == pytest.approx(0.25) and rates.decided.low < 0.25 < rates.decided.high < 0.5
    ties = win_rates([row(i, 0.5) for i in range(30)])
    assert ties.decided is None and ties.ties.low < 1.0 == ties.ties.high
    spread = win_rates([row(0, 1.0, 0), row(0, 0.0, 1)])
    assert spread.wins_spread == pytest.approx(0.5)
