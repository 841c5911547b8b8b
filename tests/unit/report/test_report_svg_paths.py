"""svg_paths.py: fewer bytes, the same points."""

import re

from hypothesis import given
from hypothesis import strategies as st

from mathrl_ray.report.svg_paths import short_path, with_short_paths

tenths = st.integers(-9999, 9999)
points = st.lists(st.tuples(st.sampled_from("ML"), tenths, tenths), min_size=1, max_size=30).map(
    lambda held: [("M", *held[0][1:]), *held[1:]]
)


def text_of(path):
    """As matplotlib writes it, rounded to tenths."""
    return " ".join(f"{letter} {f'{x / 10:.1f}'.removesuffix('.0')} {f'{y / 10:.1f}'.removesuffix('.0')}" for letter, x, y in path)


def read_back(path):
    """The points of a path in the short form, read as SVG's grammar says."""
    found, x, y = [], 0, 0
    for letter, body in re.findall(r"([Ml])([^Ml]*)", path):
        numbers = [round(10 * float(number)) for number in re.findall(r"-?(?:\d+\.\d|\.\d|\d+)", body)]
        for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = (dx, dy) if letter == "M" else (x + dx, y + dy)
            found.append(("M" if letter == "M" else "L", x, y))
    return found


@given(points)
def test_the_points_are_those_of_the_long_form(path):
    assert read_back(short_path(text_of(path))) == path


def test_a_curve_takes_fewer_bytes():
    long = text_of([("M" if step == 0 else "L", 10 * step, 500 + (-1) ** step * 7) for step in range(200)])
    assert len(short_path(long)) < 0.6 * len(long)


def test_other_paths_and_texts_stay_as_they_are():
    curved = "M 0 0 C 1 1 2 2 3 3 " + "L 1 1 " * 60
    svg = f'<path d="{curved}"/><text>M 0 0 L 1 1</text><path d="M 0 0 L 1 1"/>'
    assert with_short_paths(svg) == svg
    assert short_path("M 0 0 L 1.25 1") == "M 0 0 L 1.25 1"
