import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.commands.graded_rows import new_names
from mathrl_ray.commands.parquet_table import table_of
from mathrl_ray.commands.row_files import json_line
from mathrl_ray.data.rows import DataError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False) | st.text(max_size=3) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("values", "row"),
    [
        ([1, None, 10**30], 3),
        ([1, -(2**63), 2**63], 3),
        (["a", "\ud800", "\ud801"], 2),
        ([None, {}, None], 2),
        ([{"deep": [{"deeper": {}}]}, None], 1),
        ([*[1] * 70, "text", *[1] * 70], 71),
        ([True, False, 1], 3),
        (["a", ["a"]], 2),
        ([{"a": 1}, {"a": "x"}], 2),
        ([2**53 + 1, 0.5], 2),
    ],
)
def test_a_value_that_parquet_cannot_hold_is_named_with_column_and_line_and_what_to_do(values, row):
    rows = [(line, {"id": str(line), "odd": value}) for line, value in enumerate(values, start=1)]
    with pytest.raises(
        DataError, match=rf"--output = o\.parquet: .*'odd' of rows\.jsonl: line {row} has .*write \.jsonl instead"
    ) as refused:
        table_of(rows, "rows.jsonl", "--output = o.parquet")
    assert "\n" not in str(refused.value)
    assert len([json_line(values) for _, values in rows]) == len(values)  # JSON lines hold them


def test_a_column_whose_name_is_no_utf8_is_named_too():
    with pytest.raises(DataError, match=r"column '\\ud800' .*write \.jsonl"):
        table_of([(1, {"\ud800": 1})], "rows.jsonl", "--output = o.parquet")


@given(st.lists(json_values, min_size=1, max_size=6))
def test_a_table_that_is_made_can_be_written_and_any_other_is_refused_by_column_and_line(values):
    rows = [(line, {"odd": value}) for line, value in enumerate(values, start=1)]
    try:
        table = table_of(rows, "rows.jsonl", "--output")
    except DataError:
        with pytest.raises(DataError, match=r"column 'odd' of rows\.jsonl: line [1-6] has"):
            table_of(rows, "rows.jsonl", "--output")
        return
    pq.write_table(table, pa.BufferOutputStream())
    assert table.num_rows == len(values)
    for value, found in zip(values, table["odd"].to_pylist(), strict=True):
        if not isinstance(value, dict | list):
            assert found == value


@given(
    st.lists(st.sampled_from(["reward", "previous_reward", "previous_reward_2", "id"]), unique=True), st.just(["reward", "previous_reward"])
)
def test_new_names_are_free_and_differ_from_each_other(present, added):
    renamed = new_names(present, added)
    after = [renamed.get(name, name) for name in present] + added
    assert len(set(after)) == len(present) + len(added)
    assert set(renamed) == set(present) & set(added)


def test_the_types_of_json_stay_where_parquet_has_them():
    rows = [(1, {"text": "½", "number": 1, "share": 0.5, "list": [1, 2], "truth": True, "none": None}), (2, {"text": "b"})]
    table = table_of(rows, "rows.jsonl", "--output")
    assert table.to_pylist()[0] == rows[0][1]
    assert json.loads(json.dumps(table.to_pylist()[1])) == dict.fromkeys(rows[0][1]) | {"text": "b"}
