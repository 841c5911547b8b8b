import pytest
from samples import recipe_for

from mathrl_ray.config import Recipe


def test_one_response_a_problem_is_the_default():
    assert Recipe().eval.num_samples == 1


def test_several_responses_at_temperature_0_are_refused_with_both_keys(tmp_path):
    message = r"eval\.num_samples = 4 with eval\.temperature = 0.*eval\.num_samples = 1, or eval\.temperature above 0"
    with pytest.raises(ValueError, match=message):
        recipe_for(tmp_path, eval={"num_samples": 4, "temperature": 0})


@pytest.mark.parametrize("settings", [{"num_samples": 1, "temperature": 0}, {"num_samples": 4, "temperature": 0.1}])
def test_greedy_once_and_sampled_often_are_both_allowed(tmp_path, settings):
    recipe_for(tmp_path, eval=settings)


def test_no_response_at_all_is_refused(tmp_path):
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        recipe_for(tmp_path, eval={"num_samples": 0})
