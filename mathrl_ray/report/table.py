"""A table of the report, and how it is written as Markdown, LaTeX and CSV. Called by tables.py and export.py. Pure: cells in, text out."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "\N{MINUS SIGN}": "$-$",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "\N{EN DASH}": "--", "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """What is shown, and the number behind it with its interval (None for words, and where there is none)."""

    text: str
    number: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column's cells are its rows' heads, or as many as num_heads says."""

    name: str
    """A file's stem: stages, known_results, comparisons, by_prompt, by_grader, by_level, by_subject, outcomes, at_k, idle, guards,
    differences_settings, differences_environment."""
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_heads: int = 1
    """How many of the first columns name the row (run, stage); the others are what is said of it."""

    def is_numeric(self, column: int) -> bool:
        """Whether its cells are numbers, which are set to the right."""
        cells = [row[column] for row in self.rows if row[column].text not in ("", "-")]
        return column >= self.num_heads and bool(cells) and all(cell.number is not None for cell in cells)

    def to_markdown(self) -> str:
        """A pipe table with its caption below."""
        marks = ["---:" if self.is_numeric(index) else "---" for index in range(len(self.columns))]
        lines = [_pipes(self.columns), _pipes(marks, raw=True), *(_pipes([cell.text for cell in row]) for row in self.rows)]
        return "\n".join([*lines, "", self.caption, ""])

    def to_latex(self) -> str:
        r"""A table that needs the package booktabs; its label is tab:<name>. Chinese names need xelatex and a font that has them."""
        columns = "".join("r" if self.is_numeric(index) else "l" for index in range(len(self.columns)))
        body = [_latex_row(self.columns), r"\midrule", *(_latex_row([cell.text for cell in row]) for row in self.rows)]
        head = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(self.caption)}}}", rf"\label{{tab:{self.name}}}"]
        tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*head, *tabular, r"\end{table}", ""])

    def to_csv(self) -> str:
        """The numbers as they are, unrounded, with columns for their intervals; words where there is no number."""
        with_interval = [any(row[index].low is not None for row in self.rows) for index in range(len(self.columns))]
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        head = [[name, *((f"{name} low", f"{name} high") if wide else ())] for name, wide in zip(self.columns, with_interval, strict=True)]
        writer.writerow([name for names in head for name in names])
        for row in self.rows:
            cells = [_values(cell, wide=wide) for cell, wide in zip(row, with_interval, strict=True)]
            writer.writerow([value for values in cells for value in values])
        return file.getvalue()


def _values(cell: Cell, *, wide: bool) -> list[str]:
    """
    >>> _values(Cell("50.0 %", 0.5, 0.4, 0.6), wide=True), _values(Cell("-"), wide=False)
    (['0.5', '0.4', '0.6'], ['-'])
    """
    ends = [cell.low, cell.high] if wide else []
    return [cell.text if cell.number is None else repr(cell.number), *("" if end is None else repr(end) for end in ends)]


def _latex_row(texts: Sequence[str]) -> str:
    r"""One line. After \\ and \midrule LaTeX reads [...] and * as theirs, across the line's end, so a row does not begin with them.

    >>> _latex_row(["[a]", "1"]), _latex_row(["b", "*"])
    ('{}[a] & 1 \\\\', 'b & * \\\\')
    """
    line = " & ".join(map(latex_text, texts))
    return f"{'{}' if line.startswith(('[', '*')) else ''}{line} " + r"\\"


def _pipes(texts: Sequence[str], *, raw: bool = False) -> str:
    return "| " + " | ".join(text if raw else markdown_text(text) for text in texts) + " |"


def markdown_text(text: str) -> str:
    r"""One line, in which nothing is read as Markdown or HTML.

    >>> markdown_text("a|b\n<i> sft_filtered *x*")
    'a\\|b &lt;i&gt; sft\\_filtered \\*x\\*'
    """
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", line)


def latex_text(text: str) -> str:
    r"""
    >>> latex_text("sft_filtered 95 % < 1 & $x")
    'sft\\_filtered 95 \\% \\textless{} 1 \\& \\$x'
    """
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
