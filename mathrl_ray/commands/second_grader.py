"""The grader that `grade --compare` names, as what a grading process is given to load.

Called by grade.py. Looks at names and files only: nothing of a stranger's code runs in the command.
"""

from pathlib import Path

from mathrl_ray.actors.function_source import FunctionSource
from mathrl_ray.commands.plain_graders import OPTION
from mathrl_ray.core.grading.extraction import Style
from mathrl_ray.data.rows import DataError

_PLAIN_GRADERS = "mathrl_ray.commands.plain_graders"
_PROGRAM = """\
from mathrl_ray.commands.plain_graders import loaded
{name} = loaded({spec!r})
"""
"""The text that the grading process runs for a function of the user's own: it loads their file and fits its parameters."""


def second_grader(name: str, style: Style) -> FunctionSource:
    """What to load for a grader.

    Args:
        name: math-verify, exact, module:function or path/file.py:function.
        style: where exact looks for the answer.

    Raises:
        DataError: none of these, or no such file.

    >>> second_grader("math-verify", "boxed").spec
    'mathrl_ray.commands.plain_graders:math_verify'
    """
    match name:
        case "math-verify":
            return FunctionSource(f"{_PLAIN_GRADERS}:math_verify", OPTION)
        case "exact":
            return FunctionSource(f"{_PLAIN_GRADERS}:exact", OPTION, kwargs={"style": style})
    place, separator, function = name.rpartition(":")
    if not separator or not place or not function.isidentifier():
        raise DataError(f"{OPTION} = {name!r}: give math-verify, exact, module:function or path/file.py:function")
    if place.endswith(".py") and not Path(place).is_file():
        raise DataError(f"{OPTION} = {name!r}: {place}: no such file")
    return FunctionSource(name, OPTION, _PROGRAM.format(name=function, spec=name))
