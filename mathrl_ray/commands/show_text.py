"""How the command `show` prints a run's responses: ours at the left, a stranger's text behind a bar.

Called by show.py. On a terminal lines are wrapped to its width, in a pipe they stay whole. What a model or a data set wrote stands behind
"| " on every line and has no character that cannot be seen, so that it cannot pass for ours.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mathrl_ray.commands.run_samples import Sample
from mathrl_ray.config import Recipe, RecipeError
from mathrl_ray.core.one_line import one_line
from mathrl_ray.core.prompts import Prompt, question_in
from mathrl_ray.core.visible_text import shortened, visible
from mathrl_ray.data.prompt_file import load_prompt

BAR = "| "
NARROWEST = 40


@dataclass(frozen=True, slots=True)
class Page:
    """What is printed on."""

    prompts: Sequence[Prompt]
    """The run's, as far as they can be read."""
    full: bool
    """Texts whole."""
    width: int | None
    """Of the terminal; None in a pipe."""

    @classmethod
    def of(cls, recipe: Recipe, *, full: bool) -> "Page":
        width = max(NARROWEST, Console().width) if sys.stdout.isatty() else None
        return cls(list(_prompts(recipe)), full, width)

    def say(self, text: str, indent: int = 0, *, is_head: bool = False) -> None:
        """A line of ours."""
        for number, line in enumerate(_wrapped(text, self._room(indent))):
            shown = f"{' ' * (indent + (2 if number else 0))}{line}"
            if is_head and self.width:
                Console(markup=False, emoji=False, highlight=False, soft_wrap=True).print(Text(shown, style="bold"))
            else:
                print(shown)

    def quote(self, text: str, indent: int) -> None:
        """A stranger's text."""
        whole = visible(text if self.full else shortened(text))
        for line in whole.split("\n") if whole else ["(empty)"]:
            for part in _wrapped(line, self._room(indent + len(BAR))):
                print(f"{' ' * indent}{BAR}{part}")

    def _room(self, indent: int) -> int | None:
        return None if self.width is None else max(NARROWEST // 2, self.width - indent - 2)


def _prompts(recipe: Recipe) -> Iterator[Prompt]:
    for spec in dict.fromkeys([recipe.data.prompt, *recipe.eval.prompts]):
        try:
            yield load_prompt(spec, "data.prompt")
        except RecipeError:  # the file is not here any more: prompts are then shown whole
            continue


def _wrapped(text: str, room: int | None) -> Sequence[str]:
    """Lines of at most so many columns, wide characters counted as two; spaces stay."""
    if room is None or not text:
        return [text]
    *before, last = (line.plain for line in Text(text).wrap(Console(width=room), room, overflow="fold"))
    return [*(line.rstrip() for line in before), last]


def print_samples(page: Page, samples: Sequence[Sample], heads: Mapping[Path, str]) -> None:
    """Samples in their order, under the name of their file and their problem.

    Args:
        page: what is printed on.
        samples: of one file behind the other.
        heads: a line for each file.
    """
    told: set[str] = set()
    for path, of_file in groupby(samples, key=lambda each: each.file.path):
        print()
        page.say(one_line(heads.get(path, path.name), most=400), is_head=True)
        for _, siblings in groupby(of_file, key=lambda each: (each.problem_id, each.group_id)):
            _print_siblings(page, list(siblings), told)


def _print_siblings(page: Page, siblings: Sequence[Sample], told: set[str]) -> None:
    first = siblings[0]
    prompt, question = _question(page.prompts, first)
    if prompt is not None and prompt.name not in told:
        told.add(prompt.name)
        page.say(f"prompt {prompt.name}, around every problem:", 2)
        page.quote(prompt.template, 4)
    facts = [f"level {first.facts['level']}"] if first.facts.get("level") is not None else []
    facts += [one_line(first.facts["subject"])] if first.facts.get("subject") else []
    facts += [f"gold {one_line(first.gold)}"] if first.gold is not None else []
    print()
    page.say(", ".join([one_line(first.problem_id), *facts]), 2, is_head=True)
    page.quote(question if prompt is not None else first.prompt, 2)
    for sample in siblings:
        page.say(sample_line(sample), 4)
        page.quote(sample.response, 4)


def _question(prompts: Sequence[Prompt], sample: Sample) -> tuple[Prompt | None, str]:
    """The run's prompt that a text is, and the question in it; None where it is none of them (a chat template)."""
    for prompt in prompts:
        if (question := question_in(prompt, sample.prompt)) is not None:
            return prompt, question
    return None, ""


def sample_line(sample: Sample) -> str:
    """What is known of one response, in a line."""
    parts = ", ".join(f"{one_line(name)} {_number(value)}" for name, value in sample.parts.items())
    told = [f"sample {sample.sample}: {sample.outcome}", f"reward {_number(sample.reward)} ({parts})"]
    told += [f"answer {one_line(sample.extracted_answer, most=60)}"] if sample.extracted_answer is not None else []
    told += [f"advantage {_signed(sample.advantage)}"] if sample.advantage is not None else []
    told.append(f"{sample.num_tokens} tokens, {sample.finish_reason}")
    told.append(_versions(sample.version_runs))
    told += [f"staleness {sample.staleness}"] if sample.staleness is not None else []
    told += [f"not trained on: {one_line(sample.drop_reason)}"] if sample.drop_reason else []
    return "; ".join(told)


def _versions(runs: Sequence[tuple[int, int]]) -> str:
    """
    >>> _versions([(3, 10)]), _versions([(3, 10), (4, 2)])
    ('version 3', 'versions 3 (10 tokens), 4 (2)')
    """
    if len(runs) == 1:
        return f"version {runs[0][0]}"
    first, *rest = runs
    return f"versions {first[0]} ({first[1]} tokens)" + "".join(f", {version} ({count})" for version, count in rest)


def _number(value: float) -> str:
    return "no number" if isnan(value) else f"{value:.4g}"


def _signed(value: float) -> str:
    return "no number" if isnan(value) else f"{value:+.3f}" if value else "0"
