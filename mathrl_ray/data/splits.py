"""The three splits of a run: train, validation and test, kept apart.

Called by stages/inputs.py. train is what is learned from; validation is for every choice during training; test is looked at once, at a
stage's end. Knows the recipe's data section; knows no tokenizer.

    test        data.test, eval.num_problems of it by data.seed
    validation  data.validation, else data.num_validation_problems of data.train, the smallest hashes of their texts: the same ones whatever
                the file's order, data.seed and data.num_train_problems. builtin:arithmetic has a validation split of its own.
    train       data.train without what test or validation has too (data.overlap), data.num_train_problems of it by data.seed
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from mathrl_ray.core.sampling import epoch_order
from mathrl_ray.data.arithmetic import Split, make_problems
from mathrl_ray.data.problems import read_problems
from mathrl_ray.data.rows import DataError
from mathrl_ray.sections import BUILTIN, DataSection
from mathrl_ray.types import Problem

Overlap = Literal["refuse", "drop", "allow"]
LARGEST_VALIDATION_SHARE = 5
"""At most one in this many of train's problems is kept for validation."""
_SIGNS_THAT_STAY = "-/*%!"
"""Punctuation to Unicode, mathematics to us; + = < > ^ | are symbols to both."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The problems of a run."""

    train: list[Problem]
    validation: list[Problem]
    test: list[Problem]
    known: list[Problem]
    """All problems that data.train and data.validation hold, for what else must be looked up in them (a trace's gold)."""
    held_out: list[tuple[str, list[Problem]]]
    """(key, problems) of what must not be learned from; of data.test all, not only those that this run evaluates."""
    remarks: list[str] = field(default_factory=list)
    """What a person should hear: rows left out, overlaps, a validation split that was cut."""


class HasText(Protocol):
    """What an overlap is looked for in: problems and traces."""

    @property
    def problem_id(self) -> str: ...

    @property
    def problem(self) -> str | None: ...


Item = TypeVar("Item", bound=HasText)


def load_splits(data: DataSection, *, num_test_problems: int, seed: int) -> Splits:
    """Read or make the problems of a run.

    Args:
        data: the recipe's section.
        num_test_problems: eval.num_problems, at most which many are taken.
        seed: data.seed, of the choice among more problems than are used.

    Raises:
        FileNotFoundError, DataError: as `read_problems`; an overlap that is refused; nothing left to train on.
    """
    remarks: list[str] = []

    def load(split: Split, spec: str, number: int) -> list[Problem]:
        if spec == BUILTIN:
            return make_problems(split, number, seed) if number else []
        problems, said = read_problems(spec, key=f"data.{split}", columns=data.columns, bad_rows=data.bad_rows, default_split=split)
        remarks.extend(said)
        return problems

    test = load("test", data.test, num_test_problems)
    train = load("train", data.train, data.num_train_problems)
    validation_spec = data.validation or (BUILTIN if data.train == BUILTIN else "")
    validation = load("validation", validation_spec, data.num_validation_problems) if validation_spec else []
    known = [*train, *validation]
    if not data.train == validation_spec == data.test == BUILTIN:  # whose splits share no sequence of operands, by construction
        validation = without_overlap(validation, "data.validation", [("data.test", test)], data.overlap, remarks)
        train = without_overlap(train, "data.train", [("data.validation", validation), ("data.test", test)], data.overlap, remarks)
    if validation_spec:
        validation = by_hash(validation)[: data.num_validation_problems]
    else:
        train, validation = _carve_validation(train, data.num_validation_problems, remarks)
    return Splits(
        train=_choose(train, data.num_train_problems, seed),
        validation=validation,
        test=_choose(test, num_test_problems, seed),
        known=known,
        held_out=[("data.validation", validation), ("data.test", test)],
        remarks=remarks,
    )


def _choose(problems: Sequence[Problem], number: int, seed: int) -> list[Problem]:
    """At most `number` of them, which ones by the seed, in their order."""
    return [problems[index] for index in sorted(epoch_order(len(problems), seed, 0)[:number])]


def by_hash(problems: Iterable[Problem]) -> list[Problem]:
    """Sorted by the SHA-256 of their texts: an order that depends on nothing else."""
    return sorted(problems, key=lambda problem: hashlib.sha256(problem.problem.strip().encode()).digest())


def _carve_validation(train: Sequence[Problem], number: int, remarks: list[str]) -> tuple[list[Problem], list[Problem]]:
    """(train without them, the validation problems), both in train's order."""
    largest = len(train) // LARGEST_VALIDATION_SHARE
    chosen = {problem.problem_id for problem in by_hash(train)[: min(number, largest)]}
    if chosen:
        cut = f", a fifth, since data.num_validation_problems = {number} is more" if number > largest else ""
        remarks.append(f"data.validation: {len(chosen)} of data.train's {len(train)} problems are kept for it{cut}")
    return (
        [problem for problem in train if problem.problem_id not in chosen],
        [problem for problem in train if problem.problem_id in chosen],
    )


def without_overlap(
    items: Sequence[Item], key: str, held_out: Sequence[tuple[str, Sequence[Problem]]], overlap: Overlap, remarks: list[str]
) -> list[Item]:
    """The items whose text no held-out problem has: exactly (surrounding space aside), or but for case, spacing and punctuation.

    Args:
        items: problems, or traces that know their problem.
        key: the recipe's key that named them.
        held_out: (key, problems) of each split that must stay unseen.
        overlap: refuse, drop (the result lacks them) or allow; all but refuse add a remark that names both ids of every pair.
        remarks: what a person should hear; is added to.

    Raises:
        DataError: an overlap that is refused, or dropping it leaves nothing.
    """
    exact = {problem.problem.strip(): (name, problem) for name, problems in held_out for problem in problems}
    alike = {plain_text(problem.problem): (name, problem) for name, problems in held_out for problem in problems}
    kept: list[Item] = []
    pairs: list[str] = []
    for item in items:
        question = item.problem or ""
        plain = plain_text(question)
        match = exact.get(question.strip()) or (alike.get(plain) if plain else None)
        if match is None:
            kept.append(item)
            continue
        how = "the same text" if question.strip() in exact else "the same but for case, spacing and punctuation"
        pairs.append(f"{item.problem_id} = {match[0]}'s {match[1].problem_id} ({how})")
    if not pairs:
        return kept
    found = f"{key}: {len(pairs)} of {len(items)} are held out too: "
    if overlap == "refuse":
        raise DataError(found + "\n  " + "\n  ".join(pairs) + '\nRemove them, or set data.overlap = "drop" to leave them out.')
    if overlap == "drop" and not kept:
        raise DataError(f'{found}nothing is left. Name other data in {key}, or set data.overlap = "allow". The first: {pairs[0]}')
    remarks.append(found + ("left out: " if overlap == "drop" else "used all the same (data.overlap): ") + ", ".join(pairs))
    return kept if overlap == "drop" else list(items)


def plain_text(text: str) -> str:
    r"""The text without case, spacing and punctuation. Signs of mathematics stay: `6+3-7` and `6-3+7` are different problems.

    >>> plain_text("Find $x$, if  $2x + 1 = -3$.") == plain_text("find x if 2x+1=-3")
    True
    >>> plain_text("Compute 6+3-7.") == plain_text("Compute 6-3+7.")
    False
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(sign for sign in folded if sign in _SIGNS_THAT_STAY or (sign != "$" and unicodedata.category(sign)[0] in "LNSM"))
