"""Makes the data of the Countdown example: problems with their targets, and traces to learn the form from. Called by hand:

    python jobs/examples/countdown/make_data.py --output ~/countdown

A problem names three or four digits and a target: use each once, add and subtract, and make the target. All are solvable, with every value
on the way between 0 and 9, and which split one is in depends on its digits and target alone. Everything follows from the seed.
"""

import argparse
import functools
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
LARGEST = 9
RIGHT_SHARE = 0.7
"""Of the traces: the others use each number once, work it out rightly, and miss the target."""


@functools.cache
def expressions(numbers: tuple[int, ...]) -> dict[int, list[str]]:
    """Target -> the sums of all numbers, in any order, that make it with values between 0 and 9 on the way.

    >>> expressions((1, 2))
    {3: ['1+2', '2+1'], 1: ['2-1']}
    """
    found: dict[int, list[str]] = {}
    for order in sorted(set(itertools.permutations(numbers))):
        for signs in itertools.product((1, -1), repeat=len(order) - 1):
            steps = [order[0], *(sign * number for sign, number in zip(signs, order[1:], strict=True))]
            values = list(itertools.accumulate(steps))
            if all(0 <= value <= LARGEST for value in values):
                found.setdefault(values[-1], []).append(str(steps[0]) + "".join(f"{step:+d}" for step in steps[1:]))
    return found


def question(numbers: Sequence[int], target: int) -> str:
    """
    >>> question((2, 3, 7), 6)
    'Use 2, 3, 7 to make 6.'
    """
    return f"Use {', '.join(map(str, numbers))} to make {target}."


def split_of(text: str) -> str:
    """The same everywhere and always: one in ten is validation, one in ten test."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 10
    return {0: "validation", 1: "test"}.get(digest, "train")


def all_problems(seed: int) -> list[Row]:
    """Each set of digits with each target that it can make, shuffled."""
    rows: list[dict[str, Any]] = [
        {"problem": question(numbers, target), "answer": str(target), "numbers": list(numbers), "level": len(numbers) - 1}
        for size in (3, 4)
        for numbers in itertools.combinations_with_replacement(range(1, LARGEST + 1), size)
        for target in sorted(expressions(numbers))
    ]
    random.Random(f"countdown/{seed}").shuffle(rows)
    return [{"id": f"countdown/{split_of(row['problem'])}/{index}", **row} for index, row in enumerate(rows)]


def response(expression: str) -> str:
    """What the model learns to say: each step, then the expression in the tags.

    >>> response("7-3+2")
    ' 7-3=4, 4+2=6 </think> <answer> 7-3+2 </answer>'
    """
    first, *rest = [expression[0], *(expression[place : place + 2] for place in range(1, len(expression), 2))]
    value, steps = int(first), []
    for part in rest:
        steps.append(f"{value}{part}={value + int(part)}")
        value += int(part)
    return f" {', '.join(steps)} </think> <answer> {expression} </answer>"


def traces(problems: Iterable[Row], prompt: str, seed: int) -> list[Row]:
    """One trace a problem, of which about RIGHT_SHARE make the target."""
    draw = random.Random(f"traces/{seed}")
    made: list[Row] = []
    for row in problems:
        by_target = expressions(tuple(row["numbers"]))
        right = by_target[int(row["answer"])]
        wrong = [each for target, held in by_target.items() if target != int(row["answer"]) for each in held]
        chosen = draw.choice(right if draw.random() < RIGHT_SHARE or not wrong else wrong)
        text = prompt.replace("{question}", row["problem"])
        made.append({"id": f"{row['id']}/trace", "problem": row["problem"], "prompt": text, "response": response(chosen)})
    return made


def write(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{path}: {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the problems and traces of the Countdown example.")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the folder, which is made")
    parser.add_argument("--seed", type=int, default=0, help="of order and traces (0)")
    given = parser.parse_args()
    folder = given.output.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    rows = all_problems(given.seed)
    splits = {split: [row for row in rows if row["id"].split("/")[1] == split] for split in ("train", "validation", "test")}
    for split, held in splits.items():
        write(folder / f"{split}.jsonl", held)
    prompt = (Path(__file__).parent / "prompt.txt").read_text(encoding="utf-8").removesuffix("\n")
    write(folder / "traces.jsonl", traces(splits["train"], prompt, given.seed))


if __name__ == "__main__":
    main()
