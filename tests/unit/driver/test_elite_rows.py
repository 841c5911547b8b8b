from dataclasses import fields

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.core.elite_pool import ElitePool, EliteResponse
from mathrl_ray.core.problem_memory import Attempt, ProblemMemory
from mathrl_ray.driver.elite_rows import (
    ATTEMPT_SCHEMA,
    POOL_SCHEMA,
    attempts_path,
    missing_attempts,
    pool_path,
    read_attempts,
    read_pool,
    write_attempts,
    write_pool,
)

texts, numbers, reals = st.text(max_size=8), st.integers(0, 2**40), st.floats(allow_nan=False)
ids = st.lists(numbers, max_size=4).map(tuple)
responses = st.builds(
    EliteResponse, texts, texts, numbers, ids, ids, texts, reals, numbers, numbers, reals, reals, reals, reals, st.sampled_from(["correct"])
)


@given(pool=st.builds(ElitePool, st.lists(responses, max_size=4).map(tuple), reals, numbers))
def test_a_pool_comes_back_as_it_was_in_its_order(tmp_path_factory, pool):
    path = pool_path(tmp_path_factory.mktemp("run"), "expert_iteration", 3)
    write_pool(path, pool)
    assert read_pool(path) == pool
    assert [file.name for file in path.parent.iterdir()] == ["expert_iteration-3.parquet"]


def test_an_empty_pool_keeps_its_threshold_and_round(tmp_path):
    write_pool(pool_path(tmp_path, "expert_iteration", 1), ElitePool((), 0.7, 1))
    assert read_pool(pool_path(tmp_path, "expert_iteration", 1)) == ElitePool((), 0.7, 1)


def test_a_pool_is_a_table_that_others_can_read(tmp_path):
    response = EliteResponse("p", "g", 1, (2,), (3, 4), "text", 0.9, 2, 1, 1.2, 1.0, 1.0, 1.0, "correct")
    write_pool(pool_path(tmp_path, "expert_iteration", 2), ElitePool((response,), 0.5, 2))
    (row,) = pq.read_table(tmp_path / "elite_pool" / "expert_iteration-2.parquet").to_pylist()
    assert (row["problem_id"], row["quality"], row["round"], row["policy_version"], row["temperature"]) == ("p", 0.9, 2, 1, 1.2)


def test_the_memory_up_to_a_step_is_all_attempts_of_its_stage_till_then(tmp_path):
    def attempt(step, problem="p"):
        return Attempt(problem, f"g-{step}", step, 0, step % 2 == 0, 5, 1)

    for step in (1, 2, 10):
        write_attempts(attempts_path(tmp_path, "expert_iteration", step), [attempt(step), attempt(step, "q")])
    write_attempts(attempts_path(tmp_path, "grpo", 1), [attempt(1, "other")])
    write_attempts(attempts_path(tmp_path, "expert_iteration", 3), [])
    memory = ProblemMemory(read_attempts(tmp_path, "expert_iteration", 3))
    assert memory.attempts == [attempt(1), attempt(2), attempt(1, "q"), attempt(2, "q")]
    assert [each.step for each in read_attempts(tmp_path, "expert_iteration", 10)] == [1, 1, 2, 2, 10, 10]  # 10 is not before 2
    assert missing_attempts(tmp_path, "expert_iteration", 5) == [4, 5]
    assert list(read_attempts(tmp_path / "nowhere", "expert_iteration", 3)) == []


def test_writing_a_round_again_replaces_it(tmp_path):
    path = attempts_path(tmp_path, "expert_iteration", 1)
    for solved in (True, False):
        write_attempts(path, [Attempt("p", "g", 1, 0, solved, 5, 0)])
    assert [each.solved for each in read_attempts(tmp_path, "expert_iteration", 1)] == [False]


@pytest.mark.parametrize(("record", "schema"), [(EliteResponse, POOL_SCHEMA), (Attempt, ATTEMPT_SCHEMA)])
def test_every_field_has_its_column(record, schema):
    assert [field.name for field in fields(record)] == schema.names
