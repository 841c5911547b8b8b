import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.data.json_lines import MOST_NESTING, json_rows
from mathrl_ray.data.rows import DataError, read_rows

GOOD = b'{"a": "x"}'


def nested(depth):
    """A row whose lists and objects stand `depth` deep: the row itself is the first."""
    return b'{"a": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"a": ' + b"9" * 5000 + b"}", r"more than 4,300 digits"),
        (b'{"a": -' + b"9" * 4301 + b"}", r"more than 4,300 digits"),
        (nested(MOST_NESTING + 1), "nested more than 100 deep"),
        (nested(50_000), "nested more than 100 deep"),
        (b'{"a":' * 50_000, "nested more than 100 deep"),
        (b"\0\0\0\0", r"NUL byte): \x00"),
        (b'{"a": "\0"}', "NUL byte"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),  # half of a surrogate pair, as some programs write it
        (b"\xef\xbb\xbf" + GOOD, "BOM"),  # a mark in the middle: two files were put together
        (b'{"a": "x', "no JSON"),
        (b'{"a": "x"} {"a": "y"}', "no JSON"),
        (b'["a"]', "no JSON object"),
        (b"null", "no JSON object"),
    ],
)
def test_a_line_that_cannot_be_read_is_a_fault_with_its_number_and_costs_no_other_line(tmp_path, line, fault):
    data = GOOD + b"\n" + line + b"\n" + GOOD + b"\n"
    rows, faults = json_rows(data)
    assert rows == [(1, {"a": "x"}), (3, {"a": "x"})]
    assert [number for number, _ in faults] == [2]
    assert fault in faults[0][1]
    assert len(faults[0][1]) < 1000
    assert faults[0][1].isprintable()
    (tmp_path / "rows.jsonl").write_bytes(data)
    with pytest.raises(DataError, match=r"--input = .*rows\.jsonl: 1 rows cannot be used\n  line 2: "):
        read_rows(str(tmp_path / "rows.jsonl"), key="--input", default_split="test")


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\xef\xbb\xbf" + GOOD, [1]),  # the mark of UTF-8
        (GOOD + b"\r\n" + GOOD + b"\r\n", [1, 2]),
        (GOOD + b"\n\n \t\r\n" + GOOD, [1, 4]),  # empty lines count, a last line needs no end
        (b"\xef\xbb\xbf\r\n" + GOOD, [2]),
    ],
)
def test_marks_line_ends_and_empty_lines_change_no_row(data, lines):
    assert json_rows(data) == ([(line, {"a": "x"}) for line in lines], [])


def test_what_is_within_the_limits_is_read_as_it_stands():
    odd = {"digits": 10**4299, "nul": "\0", "line": "\u2028\x85", "half": "\ud800", "braces": "{[" * 500}
    assert json_rows(json.dumps(odd).encode() + b"\n" + nested(MOST_NESTING))[0][0] == (1, odd)
    assert len(json_rows(nested(MOST_NESTING))[0]) == 1


@pytest.mark.parametrize(("end", "is_cut_off"), [(b'{"a": "x', True), (b'{"a": "\xe2\x82', True), (b'{"a": "x\n', False)])
def test_a_last_line_without_an_end_is_said_to_be_cut_off(end, is_cut_off):
    [(line, fault)] = json_rows(GOOD + b"\n" + end)[1]
    assert line == 2
    assert ("cut off" in fault) == is_cut_off


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_file_in_another_unicode_is_refused_with_what_to_do(tmp_path, encoding):
    (tmp_path / "rows.jsonl").write_bytes(GOOD.decode().encode(encoding))
    with pytest.raises(DataError, match=r"rows\.jsonl: line 1: .*save the file as UTF-8"):
        read_rows(str(tmp_path / "rows.jsonl"), key="--input", default_split="test")


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_whatever_the_bytes_every_line_is_a_row_or_a_fault_or_empty(lines):
    data = b"\n".join(lines)
    rows, faults = json_rows(data)
    numbers = sorted(number for number, _ in [*rows, *faults])
    held = [number for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1) if line.strip()]
    assert numbers == held
