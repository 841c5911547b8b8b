"""What the generators' engines say of themselves, as numbers of a row. Called once a step by the loops; knows the Protocols."""

import asyncio
from collections.abc import Sequence
from statistics import fmean

from mathrl_ray.actors.interfaces import ActorError, Generator
from mathrl_ray.driver.replicas import Replicas
from mathrl_ray.types import EngineStatistics


async def engine_numbers(generators: Replicas[Generator]) -> dict[str, float]:
    """Since the row before, of all engines that answer; {} where none does: a row never waits for a replacement."""
    answers = await asyncio.gather(*(_ask(replica.actor) for replica in generators if not replica.down))
    return combined([answer for answer in answers if answer is not None])


async def _ask(generator: Generator) -> EngineStatistics | None:
    try:
        return await generator.engine_statistics()
    except ActorError:  # its next request tells of it
        return None


def combined(engines: Sequence[EngineStatistics]) -> dict[str, float]:
    """Several engines' numbers in one: means of shares, sums of counts; no prefix_cache_hit_rate where nothing was looked up.

    >>> combined([EngineStatistics(0.5, 1, 10, 5, 8, 2), EngineStatistics(0.25, 0, 0, 0, 4, 0)])["kv_cache_usage_max"]
    0.375
    """
    if not engines:
        return {}
    num_queries = sum(each.num_prefix_queries for each in engines)
    hit_rate = {"prefix_cache_hit_rate": sum(each.num_prefix_hits for each in engines) / num_queries} if num_queries else {}
    return {
        "kv_cache_usage_max": fmean(each.kv_cache_usage_max for each in engines),
        "num_preemptions": sum(each.num_preemptions for each in engines),
        **hit_rate,
        "engine_running_max": sum(each.num_running_max for each in engines),
        "engine_waiting_max": sum(each.num_waiting_max for each in engines),
    }
