"""The grading pool beside one process of plain math-verify: pairs a second, scaling, and what hanging answers cost.

`python tests/benchmarks/grading_pool.py` takes about 4 minutes, of which 1 waits for hanging answers, and needs ../shared/data. Both sides
run by turns (A B B A, five pairs, medians of the ratios). Pairs: 800 real responses (style boxed), and 5,000 made of MATH golds, spelled
otherwise or with a digit changed.
"""

import asyncio
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mathrl_ray.actors.grading_process import GradingProcess
from mathrl_ray.actors.scorer import Scorer
from mathrl_ray.core.grading.grade import quick_verdict
from mathrl_ray.types import ScoreRequest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NUM_WORKERS, NUM_MADE, LIMIT_S = 2, 5000, 5.0
HANGING = r"\prod_{{k=1}}^{{9999}}\sin {}k"
TARGETS = {"pool_over_math_verify": 1.8, "scaling_1_to_2": 1.6, "fast_path_pairs_per_s": 20_000, "hanging_overhead": 1.1}


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).open(encoding="utf-8")]


def real_requests() -> list[ScoreRequest]:
    return [ScoreRequest(row["response"], row["math_answer"], style="question_only") for row in rows("math_generations.jsonl")]


def made_requests() -> list[ScoreRequest]:
    """Half right in another spelling, half wrong by one digit; the rest of a response around them."""
    draw = random.Random(0)
    golds = [row["answer"] for name in ("math_train.jsonl", "math_test.jsonl") for row in rows(name) if row["answer"]]
    made = []
    for gold in draw.sample(golds, NUM_MADE):
        answer = near_miss(gold, draw) if draw.random() < 0.5 else respelled(gold, draw)
        made.append(ScoreRequest(rf"so the answer is $\boxed{{{answer}}}$.", gold, style="question_only"))
    return made


def respelled(gold: str, draw: random.Random) -> str:
    return draw.choice([gold, gold.replace(r"\frac", r"\dfrac"), f" {gold} ", gold.replace(r"\left", "").replace(r"\right", "")])


def near_miss(gold: str, draw: random.Random) -> str:
    digits = [match.start() for match in re.finditer(r"[1-8]", gold)]
    if not digits:
        return gold + "+1"
    at = draw.choice(digits)
    return gold[:at] + str(int(gold[at]) + 1) + gold[at + 1 :]


def plain_math_verify(requests: Sequence[ScoreRequest]) -> list[bool]:
    """One process, its default calls; the gold in dollar signs, since it reads no bare LaTeX."""
    from math_verify import parse, verify

    return [verify(parse(f"${request.gold}$"), parse(request.response)) for request in requests]


class Pool:
    """A scorer around one event loop."""

    def __init__(self, num_workers: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._scorer = Scorer(limit_s=LIMIT_S, num_processes=num_workers)
        self._loop.run_until_complete(self._scorer.setup())

    def outcomes(self, requests: Sequence[ScoreRequest]) -> list[str]:
        return [grade.outcome for grade in self._loop.run_until_complete(self._scorer.score(list(requests)))]

    def close(self) -> None:
        self._loop.run_until_complete(self._scorer.shutdown())
        self._loop.close()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def by_turns(first: Callable[[], object], second: Callable[[], object], num_pairs: int = 5) -> tuple[float, float, float]:
    """Median seconds of each, and the median of second / first, in the order A B B A."""
    pairs = []
    for index in range(num_pairs):
        if index % 2:
            other = seconds(second)
            pairs.append((seconds(first), other))
        else:
            own = seconds(first)
            pairs.append((own, seconds(second)))
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs), statistics.median(b / a for a, b in pairs)


def scaling(requests: Sequence[ScoreRequest]) -> float:
    """Pairs a second of 2 grading processes over 1, every pair through a process."""
    pairs = [(request.response.split("boxed{", 1)[1].rsplit("}$", 1)[0], request.gold) for request in requests[:1500]]
    processes = [GradingProcess(LIMIT_S, 2 << 30) for _ in range(NUM_WORKERS)]
    for process in processes:
        process.ready_channel()

    def run(used: Sequence[GradingProcess]) -> None:
        with ThreadPoolExecutor(len(used)) as threads:
            shares = [pairs[index :: len(used)] for index in range(len(used))]
            list(threads.map(lambda job: [job[0].verdict(*pair) for pair in job[1]], zip(used, shares, strict=True)))

    _, _, ratio = by_turns(lambda: run(processes), lambda: run(processes[:1]))
    for process in processes:
        process.end()
    return ratio


def with_hanging(pool: Pool, requests: Sequence[ScoreRequest]) -> tuple[float, int, int]:
    """(wall time over what is allowed, verdicts that changed, timeouts) with 1 % hanging answers among the requests, each a new one."""
    ordinary_s = statistics.median(seconds(lambda: pool.outcomes(requests)) for _ in range(3))
    expected = pool.outcomes(requests)
    mixed: list[ScoreRequest] = []
    for index, request in enumerate(requests):
        mixed.append(request)
        if index % 100 == 99:
            mixed.append(ScoreRequest(rf"\boxed{{{HANGING.format(index)}}}", r"\frac{1}{2}", style="question_only"))
    began = time.perf_counter()
    found = pool.outcomes(mixed)
    wall_s = time.perf_counter() - began
    num_timeouts = found.count("grader_timeout")
    ordinary = [outcome for request, outcome in zip(mixed, found, strict=True) if r"\prod" not in request.response]
    changed = sum(left != right for left, right in zip(ordinary, expected, strict=True))
    return wall_s / (ordinary_s + num_timeouts * LIMIT_S / NUM_WORKERS), changed, num_timeouts


def fast_path_rate() -> float:
    pairs = [(row["answer"], row["answer"]) for row in rows("math_test.jsonl")] * 4
    return len(pairs) / seconds(lambda: [quick_verdict(*pair) for pair in pairs])


def main() -> int:
    if not DATA.is_dir():
        print(json.dumps({"name": "grading_pool", "figure": None, "target": TARGETS, "ok": False, "reason": "../shared/data is not there"}))
        return 1
    real, made = real_requests(), made_requests()
    pool = Pool(NUM_WORKERS)
    table = Table("what", "figure", "target", title="Grading pool, 2 workers")
    figures: dict[str, float] = {}
    for name, requests in (("real", real), ("made", made)):
        ours_s, theirs_s, ratio = by_turns(
            lambda requests=requests: pool.outcomes(requests), lambda requests=requests: plain_math_verify(requests)
        )
        figures[f"pool_over_math_verify_{name}"] = ratio
        rates = f"{len(requests) / ours_s:,.0f} against {len(requests) / theirs_s:,.0f} pairs/s"
        table.add_row(f"{len(requests)} {name} pairs: {rates}", f"{ratio:.2f} x", ">= 1.8 x")
    figures["scaling_1_to_2"] = scaling(made)
    table.add_row("2 workers over 1, every pair through a process", f"{figures['scaling_1_to_2']:.2f} x", ">= 1.6 x")
    overhead, changed, num_timeouts = with_hanging(pool, made[:2000])
    figures |= {"hanging_overhead": overhead, "changed_verdicts": changed, "timeouts": num_timeouts}
    table.add_row(f"wall time with {num_timeouts} timeouts over (ordinary + timeouts x limit / workers)", f"{overhead:.3f}", "<= 1.1")
    table.add_row("ordinary verdicts that changed beside them", f"{changed}", "0")
    figures["fast_path_pairs_per_s"] = fast_path_rate()
    table.add_row("exact matches on the fast path, one process", f"{figures['fast_path_pairs_per_s']:,.0f} pairs/s", ">= 20,000")
    pool.close()
    Console().print(table)
    ok = (
        min(figures["pool_over_math_verify_real"], figures["pool_over_math_verify_made"]) >= TARGETS["pool_over_math_verify"]
        and figures["scaling_1_to_2"] >= TARGETS["scaling_1_to_2"]
        and overhead <= TARGETS["hanging_overhead"]
        and changed == 0
        and num_timeouts == 20
        and figures["fast_path_pairs_per_s"] >= TARGETS["fast_path_pairs_per_s"]
    )
    print(
        json.dumps(
            {"name": "grading_pool", "figure": {name: round(value, 3) for name, value in figures.items()}, "target": TARGETS, "ok": ok}
        )
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
