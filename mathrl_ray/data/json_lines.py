r"""Lines of JSON as rows, and what is wrong with the lines that are none.

Called by rows.py with a file's bytes. Knows no column and opens nothing. UTF-8, with or without its mark at the beginning; lines end in \n
or \r\n. A line is read as it stands or it is a fault: nothing is guessed.
"""

import codecs
import json
import sys
from typing import Any

NumberedRow = tuple[int, dict[str, Any]]
"""(line, row): the line of a text file, else the row's number, from 1."""
MalformedLine = tuple[int, str]
"""(line, what is wrong with it)."""

MOST_NESTING = 100
"""Lists and objects inside of each other: what follows (Parquet, JSON again) walks them with functions that call themselves."""
_MOST_CHARACTERS_SHOWN = 80
_FAULTS_OF_A_PIECE = ("no JSON (", "not UTF-8")
_OTHER_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_other_unicode(data: bytes) -> bool:
    """Whether a file says at its beginning that it is UTF-16 or UTF-32, in which no line would be readable."""
    return data.startswith(_OTHER_MARKS)


def json_rows(data: bytes) -> tuple[list[NumberedRow], list[MalformedLine]]:
    r"""The rows of a file of JSON lines, and its lines that hold none. Empty lines are neither.

    >>> json_rows(b'{"a": 1}\r\n\n[2]')
    ([(1, {'a': 1})], [(3, 'no JSON object: [2]')])
    """
    rows: list[NumberedRow] = []
    faults: list[MalformedLine] = []
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row, fault = _row_or_fault(line)
        if row is None:
            is_cut_off = number == len(lines) and fault.startswith(_FAULTS_OF_A_PIECE)
            faults.append((number, fault + (" (the last line, without an end: the file may be cut off)" if is_cut_off else "")))
        else:
            rows.append((number, row))
    return rows, faults


def _row_or_fault(line: bytes) -> tuple[dict[str, Any] | None, str]:
    shown = _shown(line.decode("utf-8", errors="replace").strip())
    try:
        text = line.decode("utf-8")
        row = json.loads(text)
    except UnicodeDecodeError:
        return None, f"not UTF-8: {shown}"
    except json.JSONDecodeError as error:
        return None, (f"no JSON (it holds a NUL byte): {shown}" if "\0" in text else f"no JSON ({error.msg}): {shown}")
    except RecursionError:
        return None, _too_deep(shown)
    except ValueError:  # the only other one that json has
        most = sys.get_int_max_str_digits()
        return None, f"a number of more than {most:,} digits, which Python does not read (in quotes it would be a text): {shown}"
    if not isinstance(row, dict):
        return None, f"no JSON object: {shown}"
    if text.count("[") + text.count("{") > MOST_NESTING and _nesting(row) > MOST_NESTING:
        return None, _too_deep(shown)
    return row, ""


def _too_deep(shown: str) -> str:
    return f"lists or objects nested more than {MOST_NESTING} deep: {shown}"


def _nesting(value: Any) -> int:
    """How many lists and objects stand inside of each other, level by level, without a function that calls itself."""
    depth = 0
    level = [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _shown(text: str) -> str:
    """The beginning of a line, fit for a terminal."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text[:_MOST_CHARACTERS_SHOWN])
