"""Escaping of texts from data, names, paths and error messages: one function per output format.

Writers escape once, when a text enters the format. Tables, notes and points contain the text unchanged.
"""

import html
import json
import re
import unicodedata
from collections.abc import Mapping

# Control characters, bidirectional overrides and marks, zero-width spaces, soft hyphens, tags and lone surrogates: they would
# control a terminal, reorder the text or be invisible. Joiners are not included: several scripts and emoji need them.
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
SPACES = re.compile("[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")  # line breaks and tabs
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # starts of a formula in a spreadsheet
MARKDOWN = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`))"  # a code span is shown verbatim
    r"|(?P<backslash>\\(?=[!-/:-@\[-`{-~]))"  # would escape the next character
    r"|(?P<angle>[<>])"
    r"|(?P<entity>&(?=#?\w+;))"
    r"|(?P<star>\*)"
    r"|(?P<strike>~)"
    r"|(?P<address>:(?=//)|(?<=www)\.)"  # GitHub turns a bare address into a link
    r"|(?P<edge>(?<![^\W_])_|_(?![^\W_]))"  # within a word, an underscore is not emphasis
    r"|(?P<link>(?<=\])[(\[:])"
)
LATEX: Mapping[str, str] = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "–": "--", "—": "---", "−": "$-$", "±": r"$\pm$", "×": r"$\times$",
    "†": r"$\dagger$", "≤": r"$\leq$", "≥": r"$\geq$", "…": r"\ldots{}", "‘": "`", "’": "'", "“": "``", "”": "''",
    "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}",
    "Ł": r"\L{}", "ı": r"\i{}", "\u00a0": "~",
    "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\epsilon$", "η": r"$\eta$",
    "θ": r"$\theta$", "κ": r"$\kappa$", "λ": r"$\lambda$", "μ": r"$\mu$", "\u00b5": r"$\mu$", "π": r"$\pi$",
    "ρ": r"$\rho$", "σ": r"$\sigma$", "τ": r"$\tau$", "φ": r"$\phi$", "ω": r"$\omega$", "Δ": r"$\Delta$",
    "Σ": r"$\Sigma$", "Ω": r"$\Omega$",
}  # fmt: skip
ACCENTS: Mapping[str, str] = {  # combining characters
    "\u0300": r"\`", "\u0301": r"\'", "\u0302": r"\^", "\u0303": r"\~", "\u0304": r"\=", "\u0306": r"\u", "\u0307": r"\.",
    "\u0308": r"\"", "\u030a": r"\r", "\u030b": r"\H", "\u030c": r"\v", "\u0327": r"\c",
}  # fmt: skip


def terminal(text: str) -> str:
    """Return the text on one line, with hidden characters as visible escapes (`\\x1b`). Wrap it in `Text` for rich."""
    return HIDDEN.sub(_visible, SPACES.sub(" ", text))


def terminal_lines(text: str) -> str:
    """Return the text with its line breaks, and hidden characters as visible escapes."""
    return "\n".join(map(terminal, text.split("\n")))


def terminal_text(text: str) -> str:
    """Return the text with its line breaks and tabs, and other hidden characters as visible escapes."""
    return HIDDEN.sub(lambda match: match[0] if match[0] in "\n\t" else _visible(match), text)


def markdown(text: str) -> str:
    """Return the text for a paragraph, on one line: without HTML, emphasis, links and images. Code spans are kept."""
    return MARKDOWN.sub(_in_markdown, terminal(text))


def markdown_cell(text: str) -> str:
    """Return the text in a cell of a table."""
    return markdown(text).replace("|", r"\|")


def latex(text: str) -> str:
    """Return the text for pdfLaTeX without packages; a character that it cannot set is replaced by its code, `U+4E2D`."""
    out = "".join(map(_in_latex, terminal(unicodedata.normalize("NFC", text))))
    # A bracket at the start would be an argument of \\ or \midrule
    return f"{{{out[0]}}}{out[1:]}" if out.startswith(("[", "*")) else out


def csv_value(value: object) -> object:
    """Return a cell of CSV: text on one line, with a quote before it if a spreadsheet would interpret it as a formula.

    Numbers, and texts that are numbers, are returned unchanged.
    """
    if not isinstance(value, str):
        return value
    text = terminal(value)
    if text.lstrip().startswith(FORMULA) and not _is_number(text):
        return f"'{text}"
    return text


def html_text(text: str) -> str:
    """Return the text as the content of an HTML element."""
    return html.escape(terminal(text))


def figure(text: str) -> str:
    """Return the text in a figure, where matplotlib would read text between dollar signs as mathematics."""
    return terminal(text).replace("$", r"\$")


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON with non-ASCII letters as they are and hidden characters as escapes. A parser returns both unchanged."""
    separators = None if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return HIDDEN.sub(_in_json, text)


def json_script(value: object) -> str:
    """Return JSON as the content of a <script> element."""
    return json_text(value).replace("<", "\\u003c")


def _visible(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _in_markdown(match: re.Match[str]) -> str:
    if match["code"]:
        return match[0]
    entities = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
    return entities.get(match[0], f"\\{match[0]}")


def _in_json(match: re.Match[str]) -> str:
    return "\n" if match[0] == "\n" else json.dumps(match[0])[1:-1]  # from the indentation


def _in_latex(letter: str) -> str:
    if letter in LATEX:
        return LATEX[letter]
    if letter.isascii():
        return letter
    base, *marks = list(unicodedata.normalize("NFD", letter))
    if base.isascii() and marks and all(mark in ACCENTS for mark in marks):
        out = {"i": r"\i", "j": r"\j"}.get(base, base)
        for mark in marks:
            out = f"{ACCENTS[mark]}{{{out}}}"
        return out
    return rf"\texttt{{U+{ord(letter):04X}}}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
