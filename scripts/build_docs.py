"""Assemble the pages of the documentation site in build/docs: the pages of docs/, and pages generated from the code.

`make docs` runs this and then Zensical (mkdocs.yml). The references of the command line and of the TOML files, a page per
example, and an example of an HTML report are generated. Links to files that are not pages of the site become links to the
repository.
"""

import ast
import os
import re
import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml

import specbench
from scripts.example_run import ARCHIVE, runs_of
from specbench._logging import quiet
from specbench.cli.app import LazyGroup, app
from specbench.cli.schema import SCHEMAS

ROOT = Path(__file__).parents[1]
EXAMPLE = "example.html"  # an HTML report
STYLE = "site.css"  # names of options and keys stay on one line
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")  # beside docs/ and results/
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Write build/docs."""
    quiet()
    out = ROOT / "build" / "docs"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(ROOT / "docs", out)
    for path in [*(ROOT / name for name in PAGES), *(ROOT / "results").glob("*.md"), *(ROOT / "results").glob("*.svg")]:
        copy(path, out / path.relative_to(ROOT))
    for path in (ROOT / "results" / "suites").rglob("*"):
        if path.suffix in (".md", ".svg"):
            copy(path, out / path.relative_to(ROOT))
    for path in sorted((ROOT / "examples").glob("*.py")):
        write(out / "examples" / f"{path.stem}.md", example_page(path))
    write(out / "reference" / "cli.md", cli_page())
    write(out / "reference" / "config.md", config_page())
    write(out / STYLE, "td:first-child code { white-space: nowrap; }\n")
    write(out / EXAMPLE, example_report())
    for page in out.rglob("*.md"):
        page.write_text(with_site_links(page.read_text(), page.relative_to(out), out), encoding="utf-8")
    check_navigation(out)


def example_report() -> str:
    """Return the HTML report of the README's runs."""
    with runs_of(ROOT / ARCHIVE) as folder:
        runs = sorted(path.parent for path in folder.glob("results/*/run.toml"))
        return specbench.report(specbench.load(*runs), "html")


def check_navigation(out: Path) -> None:
    """Exit with an error for a page in the navigation that is missing, and for a page of docs/ that is not in it.

    Zensical does not report either.
    """
    listed = set(paths_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    missing = sorted(path for path in listed if not (out / path).exists())
    omitted = sorted(there - listed)
    if missing or omitted:
        raise SystemExit(f"mkdocs.yml: nav: no such pages: {missing or 'none'}; not listed: {omitted or 'none'}")


def paths_of(nav: Any) -> list[str]:
    """Return the paths of a navigation."""
    if isinstance(nav, str):
        return [nav]
    return [path for each in (nav.values() if isinstance(nav, dict) else nav) for path in paths_of(each)]


def copy(path: Path, to: Path) -> None:
    """Copy a file, and create its folder."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


def write(path: Path, text: str) -> None:
    """Write a generated page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def with_site_links(text: str, page: Path, out: Path) -> str:
    """Return a page with its links resolved: to a page of the site, else to the file in the repository."""
    generated = page.parts[0] in ("examples", "reference") and not (ROOT / "docs" / page).exists()
    source = Path("docs") / page if generated or (ROOT / "docs" / page).exists() else page

    def replaced(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[2]))
        place = on_site(target, out)
        if place is not None:
            return f"{match[1]}{os.path.relpath(place, page.parent)}{match[3]}"
        return f"{match[1]}{repository()}/blob/main/{target}{match[3]}" if (ROOT / target).exists() else match[0]

    parts = FENCE.split(text)  # code stands at the odd places
    return "".join(part if i % 2 else LINK.sub(replaced, part) for i, part in enumerate(parts))


def on_site(target: Path, out: Path) -> Path | None:
    """Return the page or image of the site that a path in the repository became."""
    inside = target.relative_to("docs") if target.parts[:1] == ("docs",) else target
    if inside.suffix == ".py" and (out / inside.with_suffix(".md")).is_file():
        return inside.with_suffix(".md")
    return inside if (out / inside).is_file() else None


def repository() -> str:
    """Return the address of the repository, which pyproject.toml holds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"])


def example_page(path: Path) -> str:
    """Return the page of an example: the docstring and the code."""
    source = path.read_text()
    docstring = ast.get_docstring(ast.parse(source)) or ""
    title = path.stem.replace("_", " ").capitalize()
    return f'# {title}\n\n{docstring}\n\n```python title="examples/{path.name}"\n{source.rstrip()}\n```\n'


def cli_page() -> str:
    """Return the reference of the command line: every command with its arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, LazyGroup)
    parts = ["# Command line", "", str(group.help), ""]
    for name, command in group.commands.items():
        loaded = command.load() if hasattr(command, "load") else command
        parts += [f"## specbench {name}", "", prose(loaded.help or ""), ""]
        rows = [parameter(each) for each in loaded.params if not getattr(each, "hidden", False)]
        parts += table(("parameter", "values", "default", "description"), rows)
    return "\n".join(parts)


def parameter(each: Any) -> tuple[str, str, str, str]:
    """Return the row of a parameter. A default in brackets at the end of its help is shown as the default."""
    option = each.param_type_name == "option"
    name = (
        ", ".join(f"`{flag}`" for flag in (*each.opts, *each.secondary_opts))
        if option
        else f"`{each.human_readable_name}`"
    )
    text, default = each.help or "", "" if each.default is None or callable(each.default) else str(each.default)
    if bracket := re.search(r"\s*\[([^\[\]]*)\]$", text):
        text, default = text[: bracket.start()], bracket[1]
    values = getattr(each.type, "choices", None)
    kind = (
        ", ".join(f"`{value}`" for value in values)
        if values
        else ""
        if getattr(each, "is_flag", False)
        else each.type.name
    )
    default = "required" if each.required else "" if default in ("", "False", "[]") else f"`{default}`"
    return name, kind, default, text.replace("[", "\\[")  # Markdown takes brackets for a link


def config_page() -> str:
    """Return the reference of the TOML files, by kind, from their JSON Schemas."""
    parts = [
        "# TOML files",
        "",
        "This page lists the keys of every kind of TOML file. It is generated from the types that the files are read into."
        " `specbench schema -o FOLDER` writes the same as JSON Schemas. [TOML files in an editor](../editor.md) shows how to"
        " use them.",
        "",
    ]
    for kind, make in SCHEMAS.items():
        schema = make()
        parts += [f"## {kind.capitalize()}", ""]
        parts += [*section(schema), ""]
        for each in schema.get("oneOf", []):
            if "name" in each.get("properties", {}):
                parts += [f"### {kind.capitalize()} `{each['properties']['name']['const']}`", "", *section(each)]
        for name, each in schema["$defs"].items():
            family, _, member = name.partition(".")
            parts += [
                f"### {kind.capitalize()}: {family} `{member}`" if member else f"### {kind.capitalize()}: {family}",
                "",
            ]
            parts += section(each)
    return "\n".join(parts)


def section(node: dict[str, Any]) -> list[str]:
    """Return the description of a table and its keys."""
    required = node.get("required", [])
    rows = []
    for key, each in node.get("properties", {}).items():
        default = "required" if key in required else f"`{each['default']!r}`" if "default" in each else ""
        rows.append(
            (f"`{key}`", kind_of(each), default, prose(each.get("description", "")) if "default" not in each else "")
        )
    return [
        prose(node.get("description", "")),
        "",
        *(table(("key", "type", "default", "description"), rows) if rows else []),
    ]


def kind_of(node: dict[str, Any]) -> str:
    """Return the type of a value, in words."""
    if "$ref" in node:
        return str(node["$ref"].removeprefix("#/$defs/"))
    if "const" in node:
        return f'`"{node["const"]}"`'
    if "enum" in node:
        return ", ".join(f'`"{value}"`' for value in node["enum"])
    if "anyOf" in node:
        return " or ".join(map(kind_of, node["anyOf"]))
    if node.get("type") == "array":
        items = node.get("items", {})
        return (
            f"list of {kind_of(items)}"
            if items and "properties" not in items
            else "list of tables"
            if items
            else "list"
        )
    if isinstance(values := node.get("additionalProperties"), dict):
        return f"table of {kind_of(values)}" if values else "table"
    return str({"object": "table"}.get(node.get("type", ""), node.get("type", "any")))


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a Markdown table without its empty columns."""
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = [[heads[i] for i in kept], [":--"] * len(kept), *([cell(row[i]) for i in kept] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines] + [""] if rows else []


def cell(text: str) -> str:
    """Return a text as a cell of a table."""
    return text.replace("\n", " ").replace("|", "\\|")


def prose(text: str) -> str:
    """Return a docstring as Markdown: no placeholders that would be HTML."""
    return re.sub(r"<(?=\w)", "&lt;", text)


if __name__ == "__main__":
    main()
