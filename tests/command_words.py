"""`python -m mathrl_ray WORDS` in tests, in this process: what it prints, records or refuses."""

import json

from mathrl_ray.__main__ import main


def said(capsys, *words):
    """What a command prints when it succeeds, with single spaces."""
    assert main([str(word) for word in words]) == 0
    return " ".join(capsys.readouterr().out.split())


def record(capsys, *words):
    """The JSON that it prints when it succeeds, without the NaN and Infinity that only Python reads."""
    assert main([str(word) for word in words]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=_no_json)


def _no_json(word):
    raise AssertionError(f"{word} is no JSON")


def refused(capsys, *words):
    """Its error, which is all that it says."""
    assert main([str(word) for word in words]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert not told.out
    return told.err
