"""The numbers of what a reward function gave: the reward, and parts that are logged or weighed.

Called by rewards.py; the weights are reward_weights.py's. Pure: any result in, a dict of floats out.

Of a dict, the number under the form's own key is the reward, and every other number is a part. A dict of ours (or of A5's form) without
"reward" is paid the weighted sum of its parts. A part's name loses the ending `_reward`, so that A5's `format_reward` is the part `format`.
Where two keys come to one name, the more explicit one counts: the form's own key over "reward", `answer_reward` over a bare `answer` (which
may be the answer itself), and what stands in the dict over what stands in its extra_logs.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import Any

REWARD = "reward"
"""The part that is the whole reward, where a function says it."""
_SUFFIX = "_reward"


def reward_parts(result: Any, *, reward_key: str = REWARD) -> dict[str, float]:
    """The numbers of what a reward function gave; texts and other values that are no number are left out.

    Args:
        result: a number, a list or tensor of one, or a dict of these.
        reward_key: the key of a dict that holds the reward; "reward" is taken too.

    Raises:
        ValueError: no reward and no part, one that is not finite, or a key that names a reward and holds no number: None says that the
            response could not be judged, and then no other part pays for it.

    >>> reward_parts({"format_reward": 1, "answer_reward": 0, "reward": 0}), reward_parts([0.5]), reward_parts(True)
    ({'reward': 0.0, 'format': 1.0, 'answer': 0.0}, {'reward': 0.5}, {'reward': 1.0})
    """
    if not isinstance(result, Mapping):
        return {REWARD: _finite(result, REWARD, result)}
    entries = _entries(result)
    whole = next((key for key in (reward_key, REWARD) if key in entries), None)
    if whole is None and reward_key != REWARD:
        raise ValueError(f'the reward function gave {_shown(result)}: a dict must hold a number under "{reward_key}"')
    must_be_numbers = {whole} if whole else {name for name in entries if name.endswith(_SUFFIX)}
    numbers = {
        name: _finite(value, name, result)
        for name, value in entries.items()
        if name in must_be_numbers or (name not in (reward_key, REWARD) and plain_number(value) is not None)
    }
    if not numbers:
        raise ValueError(f'the reward function gave {_shown(result)}: a dict must hold a number under "{REWARD}" or under other names')
    reward = {REWARD: numbers.pop(whole)} if whole else {}
    return reward | _by_part_name(numbers) | reward  # first to be read, and last to count


def _entries(result: Mapping[Any, Any]) -> dict[str, Any]:
    extra_logs = result.get("extra_logs")
    return {str(key): value for key, value in {**(extra_logs if isinstance(extra_logs, Mapping) else {}), **result}.items()}


def _by_part_name(numbers: Mapping[str, float]) -> dict[str, float]:
    bare = {name: number for name, number in numbers.items() if not name.endswith(_SUFFIX)}
    return bare | {name.removesuffix(_SUFFIX) or name: number for name, number in numbers.items() if name.endswith(_SUFFIX)}


def plain_number(value: Any) -> float | None:
    """A plain number, also out of a list, array or tensor of one; None for anything else."""
    if hasattr(value, "tolist"):  # numpy's and torch's
        value = value.tolist()
    while isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 1:
        value = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    return float(value) if isinstance(value, Real) else None


def _finite(value: Any, name: str, result: Any) -> float:
    number = plain_number(value)
    if number is None or not isfinite(number):
        raise ValueError(f"the reward function gave {_shown(result)}: {name} must be one finite number")
    return number


def _shown(result: Any) -> str:
    text = repr(result)
    return text if len(text) <= 200 else f"{text[:200]}..."
