import json

import pytest
from samples import recipe_for

from mathrl_ray.config import RecipeError
from mathrl_ray.core.prompts import render
from mathrl_ray.stages.inputs import load_inputs


def test_behaviour_29_a_set_smaller_than_a_batch_is_refused_with_both_numbers(tmp_path):
    (tmp_path / "few.jsonl").write_text("\n".join(json.dumps({"problem": f"{n}?", "answer": "1"}) for n in range(5)))
    recipe = recipe_for(tmp_path, data={"train": str(tmp_path / "few.jsonl")})
    load_inputs(recipe, ["baseline"])
    refusal = r"data\.train has 4 problems \(and 1 kept for validation\), fewer than grpo\.prompts_per_step = 32"
    with pytest.raises(RecipeError, match=refusal):
        load_inputs(recipe, ["grpo"])


def test_a_missing_file_becomes_a_refusal_with_its_key(tmp_path):
    with pytest.raises(RecipeError, match=r"sft\.traces = .*absent\.jsonl: no such file"):
        load_inputs(recipe_for(tmp_path, sft={"traces": str(tmp_path / "absent.jsonl")}), ["sft"])


def test_built_in_traces_are_the_prompts_with_right_and_wrong_answers_and_know_their_golds(tmp_path):
    traces = load_inputs(recipe_for(tmp_path, sft={"num_examples": 200}), ["sft"]).traces
    assert all(trace.prompt == render("r1_zero", trace.problem) for trace in traces)
    num_right = sum(f"<answer> {trace.gold} </answer>" in trace.response for trace in traces)
    assert 100 < num_right < 140  # 60 % good and a tenth of 7 % guesses: 121 of 200, standard deviation 6.9


def test_built_in_traces_do_not_fit_a_boxed_prompt(tmp_path):
    with pytest.raises(RecipeError, match=r"sft\.traces = .*tags of r1_zero, but data\.prompt = question_only"):
        load_inputs(recipe_for(tmp_path, data={"prompt": "question_only"}), ["sft"])
    load_inputs(recipe_for(tmp_path, data={"prompt": "question_only"}), ["baseline"])


def problems_file(folder, name, questions):
    (folder / name).write_text("\n".join(json.dumps({"problem": question, "answer": "7", "id": question}) for question in questions))
    return str(folder / name)


def traces_file(folder, questions, **columns):
    rows = [{"prompt": render("r1_zero", question), "response": " 7 </think> <answer> 7 </answer>", **columns} for question in questions]
    (folder / "sft.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "sft.jsonl")


def test_behaviour_29_traces_of_held_out_problems_are_left_out_and_named(tmp_path):
    questions = [f"{n}+1?" for n in range(20)]
    recipe = recipe_for(
        tmp_path,
        data={"train": problems_file(tmp_path, "train.jsonl", questions), "test": problems_file(tmp_path, "test.jsonl", ["99+1?"])},
        sft={"traces": traces_file(tmp_path, [*questions, "99+1?"]), "batch_size": 2},
    )
    inputs = load_inputs(recipe, ["sft"])
    validation = {problem.problem for problem in inputs.validation}
    assert len(validation) == 4  # a fifth of train
    assert [trace.problem for trace in inputs.traces] == [question for question in questions if question not in validation]
    (remark,) = [remark for remark in inputs.remarks if remark.startswith("sft.traces")]
    assert "traces/sft:21 = data.test's 99+1?" in remark
    assert remark.count("data.validation's") == 4


def test_traces_get_their_golds_from_the_problems_with_their_texts(tmp_path):
    questions = [f"{n}+1?" for n in range(20)]
    data = {"train": problems_file(tmp_path, "train.jsonl", questions)}
    recipe = recipe_for(tmp_path, data=data, sft={"traces": traces_file(tmp_path, questions), "batch_size": 2, "keep": "correct"})
    assert {trace.gold for trace in load_inputs(recipe, ["sft"]).traces} == {"7"}


def test_a_trace_without_a_gold_is_refused_only_where_one_is_needed(tmp_path):
    traces = traces_file(tmp_path, ["1+1?", "2+2?"])
    load_inputs(recipe_for(tmp_path, sft={"traces": traces, "batch_size": 2}), ["sft"])
    with pytest.raises(RecipeError, match=r'sft\.keep = "best" needs a gold .* 2 of 2 in sft\.traces have none, the first traces/sft:1'):
        load_inputs(recipe_for(tmp_path, sft={"traces": traces, "batch_size": 2, "keep": "best"}), ["sft"])
    with pytest.raises(RecipeError, match=r"the stage sft_filtered needs a gold .*Add a column ground_truth"):
        load_inputs(recipe_for(tmp_path, sft={"traces": traces, "batch_size": 2}), ["sft_filtered"])


def test_a_sweep_takes_all_traces_of_a_file_and_refuses_a_size_beyond_them(tmp_path):
    traces = traces_file(tmp_path, [f"{n}+1?" for n in range(20)])
    sft = {"traces": traces, "batch_size": 2, "num_examples": 5}
    assert len(load_inputs(recipe_for(tmp_path, sft=sft), ["sft"]).traces) == 5
    assert len(load_inputs(recipe_for(tmp_path, sft={**sft, "sizes": [4, "all"]}), ["sft"]).traces) == 20
    with pytest.raises(RecipeError, match=r'sft\.sizes holds 32, more than the 20 traces in sft\.traces: use at most 20, or "all"'):
        load_inputs(recipe_for(tmp_path, sft={**sft, "sizes": [4, 32]}), ["sft"])


def test_validations_need_problems_to_validate_on(tmp_path):
    data = {"train": problems_file(tmp_path, "train.jsonl", ["1+1?", "2+2?"])}
    with pytest.raises(RecipeError, match=r"eval\.validate_every = 5.*data\.train is too small.*data\.validation"):
        load_inputs(recipe_for(tmp_path, data=data, eval={"validate_every": 5}), ["baseline"])


def test_all_seeds_of_a_run_share_data_and_another_data_seed_has_other_ones(tmp_path):
    (tmp_path / "test.jsonl").write_text("\n".join(json.dumps({"problem": f"{n}+{n}?", "answer": "1"}) for n in range(40)))

    def sets(**seeds):
        recipe = recipe_for(
            tmp_path,
            run={"seed": seeds.get("run", 0)},
            data={"seed": seeds.get("data", 0), "test": str(tmp_path / "test.jsonl")},  # of which a part is drawn
            eval={"num_problems": 20},
            sft={"num_examples": 100},
        )
        inputs = load_inputs(recipe, ["sft"])
        parts = {"train": inputs.train, "validation": inputs.validation, "test": inputs.test, "traces": inputs.traces}
        return {name: [repr(row) for row in rows] for name, rows in parts.items()}

    first = sets()
    assert sets(run=1) == first
    other = sets(data=1)
    assert all(set(other[name]) != set(first[name]) for name in first)
    assert {name: len(rows) for name, rows in other.items()} == {name: len(rows) for name, rows in first.items()}
