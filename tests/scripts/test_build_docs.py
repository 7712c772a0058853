"""Pages of the documentation site that are generated from the code."""

from pathlib import Path

import pytest

from scripts import build_docs
from specbench.cli.app import COMMANDS
from specbench.cli.schema import SCHEMAS


@pytest.fixture
def site(tmp_path) -> Path:
    """A site with four pages."""
    for name in ("heads.md", "ci.md", "results/tiny-family.md", "examples/quickstart.md"):
        build_docs.write(tmp_path / name, "# Title\n")
    return tmp_path


@pytest.mark.parametrize(
    ("page", "link", "resolved"),
    [
        ("ci.md", "heads.md#training", "heads.md#training"),
        ("ci.md", "../results/tiny-family.md", "results/tiny-family.md"),
        ("decisions/0006-trained-heads.md", "../heads.md", "../heads.md"),
        ("results/tiny-family.md", "../docs/heads.md", "../heads.md"),
        ("ci.md", "../examples/quickstart.py", "examples/quickstart.md"),
        ("ci.md", "../Makefile", f"{build_docs.repository()}/blob/main/Makefile"),
        ("ci.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("ci.md", "no-such-page.md", "no-such-page.md"),  # reported by the strict build
    ],
)
def test_links_lead_to_pages_of_the_site_or_to_the_repository(site, page, link, resolved):
    assert build_docs.with_site_links(f"[text]({link})", Path(page), site) == f"[text]({resolved})"


def test_links_within_code_stay(site):
    text = "```\n[text](../Makefile)\n```\n"
    assert build_docs.with_site_links(text, Path("ci.md"), site) == text


def test_the_command_line_page_has_every_command_and_option():
    page = build_docs.cli_page()
    assert all(f"## specbench {name}\n" in page for name in COMMANDS)
    assert (
        "| `--format`, `-f` | `table`, `md`, `latex`, `csv`, `json`, `html`, `acceptance`, `speculation-profile` | `table` |"
        in page
    )
    assert "| `--alpha` | float | `0.01` | Significance level of each test. |" in page


def test_the_config_page_has_every_kind_with_types_and_defaults():
    page = build_docs.config_page()
    assert all(f"## {kind.capitalize()}\n" in page for kind in SCHEMAS)
    assert "| `proposer` | Proposer | required |" in page
    assert "| `max_new_tokens` | integer | `256` |" in page


def test_the_navigation_lists_every_page():
    docs = build_docs.ROOT / "docs"
    with pytest.raises(SystemExit, match=r"no such pages: \['CHANGELOG\.md', .*; not listed: none"):
        build_docs.check_navigation(docs)
