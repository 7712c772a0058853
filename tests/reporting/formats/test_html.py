"""The HTML report, as data and in a browser: one file, nothing fetched, tables that sort, tokens colored by origin."""

import base64
import hashlib
import itertools
import json
import re
import shutil
from importlib import resources

import pytest

from specbench.analysis.acceptance import rejected_drafts, token_origins
from specbench.reporting.plots import styles
from specbench.runs.record import Record, RoundRecord
from tests.fixtures.console import specbench

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    run = ("run", "-m", "sd", "-t", "gsm8k,wmt", "-n", "5", "--repeats", "1", "--max-new-tokens", "24")
    specbench(*run, cwd=folder)
    runs = sorted((folder / "results").glob("*_*"))
    specbench("report", *runs, "-f", "html", "-o", "page.html", cwd=folder)
    return folder / "page.html"


def rounds(*rows):
    keys = ("tokens", "drafted", "tested", "accepted", "untested", "rejected")
    return [RoundRecord(**dict(zip(keys, each, strict=False)), proposers=[]) for each in rows]


def test_origins_of_tokens_follows_from_the_rounds():
    record = Record(method="m", sample="0", repeat=0, seed=0, order=0, tokens=list(range(9)))
    record.rounds = rounds((3, 2, 2, 2), (2, 5, 2, 1, 0, "lost words"), (3, 3, 1, 0, 2, "x"), (1, 0, 0, 0))
    assert token_origins(record) == "aabarddrm"
    assert rejected_drafts(record) == [(4, "lost words"), (7, "x")]
    record.rounds = []
    assert token_origins(record) == "m" * 9


def test_samples_have_a_piece_per_token_and_rejected_drafts(page):
    text = page.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    samples = [sample for run in data["runs"] for sample in run["samples"]]
    assert len(samples) == 20
    for sample in samples:
        pieces = sample["t"].split(data["separator"])
        assert len(pieces) == len(sample["k"]) == sample["n"]
    drafted = [sample for sample in samples if sample["m"] == "sd"]
    assert all(set(sample["k"]) <= set("arbm") for sample in drafted)
    assert all("a" in sample["k"] for sample in drafted)
    assert any(sample["x"] for sample in drafted)
    assert {sample["k"] for sample in samples if sample["m"] == "ar"} == {
        "m" * sample["n"] for sample in samples if sample["m"] == "ar"
    }


def test_the_policy_allows_the_pages_own_script_and_style_only(page):
    text = page.read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text).group(1)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    for rule, element in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        (inline,) = re.findall(element, text, re.S)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_the_page_refers_to_no_other_file(page):
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|https?://""", page.read_text())


def test_the_page_begins_with_conclusion_warnings_conditions_and_methods(page):
    text = page.read_text()
    places = [text.index(f'id="{name}"') for name in ("verdict", "warnings", "about", "methods", "speed")]
    assert places == sorted(places)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S).group(1))
    assert re.search(r"\d{4}-\d\d-\d\d; models draft .*target .*thread; T = 0; 5 prompts .* x 1 repeat", data["about"])
    assert [line.partition(":")[0] for line in data["methods"]] == ["ar", "sd"]
    assert not any("`" in line for key in ("methods", "verdict", "notes", "warnings") for line in data[key])
    assert any(line.startswith("outputs cut by the length limit") for line in data["warnings"])
    assert not any(line.startswith("outputs cut") for line in data["notes"])


def test_plots_have_a_picture_for_dark_pages(page):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.S).group(1))
    for image in data["images"]:
        light, dark = (base64.b64decode(image[key].partition(",")[2]).decode() for key in ("source", "dark"))
        assert "#ffffff" in light and "#1f2328" in light
        assert "#ffffff" not in dark and "#1f2328" not in dark and "#e6edf3" in dark


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver")
def test_the_page_works_in_a_browser(page):
    """Plots are visible, a table sorts, the sample browser works, no console error, no request leaves the file."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,1600",
    ):
        options.add_argument(word)
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        browser.get(page.as_uri())

        def ask(script):
            return browser.execute_script(f"return {script}")

        images = ask("[...document.images].map((each) => [each.naturalWidth, each.getBoundingClientRect().width])")
        assert len(images) >= 2
        assert all(natural > 100 and shown > 100 for natural, shown in images)

        def column(place):
            return ask(
                f"[...document.querySelector('table').tBodies[0].rows].map((row) => row.cells[{place}].textContent)"
            )

        def choose(name, value):
            browser.execute_script(
                "const list = document.getElementById(arguments[0]); list.value = arguments[1];"
                " list.dispatchEvent(new Event('change')); list.dispatchEvent(new Event('input'))",
                name,
                value,
            )

        assert " than ar in " in ask("document.getElementById('verdict').textContent")
        assert ask("document.querySelectorAll('#speed svg g').length") == 4, "two methods on two tasks"
        before = [float(word) for word in column(2)]
        click = "document.querySelector('table').tHead.rows[0].cells[2].firstChild.click()"
        ask(click)
        assert [float(word) for word in column(2)] == sorted(before)
        ask(click)
        assert [float(word) for word in column(2)] == sorted(before, reverse=True)
        ask("document.querySelector('table').tHead.rows[0].cells[2].firstChild.dispatchEvent(new Event('mouseenter'))")
        assert "Total tokens" in ask("document.getElementById('tip').textContent"), "columns are defined on hover"

        first = ask("document.getElementById('shown').textContent")
        assert ask("document.querySelectorAll('#shown .text .a').length") > 0
        ask("document.getElementById('next').click()")
        second = ask("document.getElementById('shown').textContent")
        assert second != first
        choose("run", "1")
        assert ask("document.getElementById('shown').textContent") not in (first, second)
        titles = "[...document.querySelectorAll('#shown .pair h3')].map((each) => each.textContent)"
        assert ask(titles) == ["sd", "ar"], "a method beside the baseline"
        choose("round", "1")
        assert ask("document.getElementById('position').textContent").startswith("1 of ")
        assert ask("document.querySelectorAll('#shown .later').length") > 0, "tokens of later rounds are faint"
        choose("task", "wmt@1-A")
        assert ask("document.querySelectorAll('#speed svg g').length") == 2
        visible = "[...document.querySelector('table').tBodies[0].rows].filter((row) => !row.hidden).length"
        assert ask(visible) == 2, "the filter applies to tables"
        browser.execute_script("document.querySelector('.chip').click()")
        assert ask(visible) == 1 and ask("document.querySelectorAll('#speed svg g').length") == 1
        light = ask("document.images[0].src")
        ask("document.getElementById('theme').click()")
        assert ask("document.images[0].src") != light, "plots follow the theme"
        assert ask("document.documentElement.dataset.theme") == "dark"
        long = "sd+pld+se_tiny_gsm8k_" + 12 * "0123456789"
        browser.execute_script("document.querySelector('summary').textContent = arguments[0]", long)
        narrow = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", narrow)
        browser.execute_script("document.querySelector('.chip').click(); dispatchEvent(new Event('resize'))")
        assert ask("document.documentElement.scrollWidth") <= 400, "the page does not scroll sideways"
        labels = ask(
            "[...document.querySelector('#speed svg').querySelectorAll('.soft')].map((each) => each.getBBox())"
        )
        assert labels
        assert all(one["x"] + one["width"] < other["x"] for one, other in itertools.pairwise(labels))
        shapes = ask("[...document.querySelectorAll('#speed .marker')].map((each) => each.getAttribute('d'))")
        assert len(shapes) == 2 and all(shapes)
        assert browser.get_log("browser") == []
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
        assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    finally:
        browser.quit()


def luminance(color: str) -> float:
    parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_interval_bars_are_visible_on_a_dark_page():
    """A contrast of at least 3:1, as WCAG 1.4.11 asks of graphics, with the opacity that the chart gives bars."""
    chart = (resources.files("specbench.reporting.formats") / "page" / "chart.js").read_text(encoding="utf-8")
    (bar,) = (line for line in chart.splitlines() if "stroke: row.color" in line)
    opacity = float((re.search(r"opacity: ([\d.]+)", bar) or ["", "1"])[1])
    paper = styles.DARK["#ffffff"]
    colors = {*styles.NAMED.values(), *styles.COLORS}
    for color in (styles.shade(color, step) for color in colors for step in range(4)):
        mixed = (opacity * int(color[i : i + 2], 16) + (1 - opacity) * int(paper[i : i + 2], 16) for i in (1, 3, 5))
        shown = "#" + "".join(f"{round(part):02x}" for part in mixed)
        assert (luminance(shown) + 0.05) / (luminance(paper) + 0.05) >= 3.0, color
