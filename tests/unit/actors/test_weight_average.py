"""Averages of weights on made-up engines against loops in float64; the real engine's part is in e2e_cpu/test_learner_average.py."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mathrl_ray.actors import weight_average
from mathrl_ray.actors.weight_average import WeightAverage, average_model_folders
from mathrl_ray.sections import LearnerSection


class Engine:
    """Two flat shares of 5 and 3 numbers, which are two weights."""

    def __init__(self, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.shares = [torch.randn(5, generator=draw), torch.randn(3, generator=draw)]
        self.weights = None

    def master_shares(self):
        return self.shares

    def master_shapes(self):
        return [("a", (5,)), ("b", (3, 1))]

    def masters(self):
        yield "a", self.shares[0]
        yield "b", self.shares[1].reshape(3, 1)

    def set_masters(self, read):
        self.shares[0].copy_(read("a"))
        self.shares[1].copy_(read("b").flatten())

    def refresh_weights(self):
        self.weights = [share.clone() for share in self.shares]

    def update(self, draw):
        for share in self.shares:
            share.add_(torch.randn(len(share), generator=draw))


def trained(num_updates, seed=1, **keys):
    """(average, engine, the flat weights after each update in float64)."""
    average, engine, draw = WeightAverage(LearnerSection(**keys)), Engine(), torch.Generator().manual_seed(seed)
    seen = []
    for step in range(1, num_updates + 1):
        engine.update(draw)
        average.after_update(step, engine)
        seen.append(torch.cat(engine.shares).double())
    return average, engine, seen


def put_in_place(average, engine):
    sums = average.put_in_place(engine)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(engine.weights, engine.shares, strict=True))
    return torch.cat(engine.shares).double(), sums


@pytest.mark.parametrize(("decay", "num_updates"), [(0.5, 3), (0.9, 40), (0.95, 7), (0.99, 200)])
def test_the_ema_is_the_weighted_mean_of_the_formula_and_holds_nothing_of_the_start(decay, num_updates):
    average, engine, seen = trained(num_updates, average="ema", ema_decay=decay)
    assert average.num_averaged == num_updates
    shares = [(1 - decay) * decay ** (num_updates - index) / (1 - decay**num_updates) for index in range(1, num_updates + 1)]
    assert sum(shares) == pytest.approx(1, abs=1e-12)
    expected = sum(share * weights for share, weights in zip(shares, seen, strict=True))
    found, sums = put_in_place(average, engine)
    torch.testing.assert_close(found, expected, atol=2e-6 * float(max(each.abs().max() for each in seen)), rtol=0)
    assert sums["difference"] == pytest.approx(float((expected - seen[-1]).square().sum()), rel=1e-4)
    assert sums["last"] == pytest.approx(float(seen[-1].square().sum()), rel=1e-6)


def test_an_ema_by_hand():
    # decay 1/2, weights 1, 2, 4: shares (1/4, 1/2, 1) / (7/4): (1 + 4 + 16) / 7 = 3
    average, engine = WeightAverage(LearnerSection(average="ema", ema_decay=0.5)), Engine()
    for step, value in enumerate((1.0, 2.0, 4.0), start=1):
        for share in engine.shares:
            share.fill_(value)
        average.after_update(step, engine)
    found, sums = put_in_place(average, engine)
    torch.testing.assert_close(found, torch.full((8,), 3.0, dtype=torch.float64), atol=1e-6, rtol=0)
    assert sums == pytest.approx({"difference": 8 * 1.0, "last": 8 * 16.0})


@pytest.mark.parametrize(
    ("num_updates", "last", "every", "taken"),
    [(2, 5, 1, [1, 2]), (9, 3, 1, [7, 8, 9]), (9, 3, 2, [4, 6, 8]), (10, 2, 5, [5, 10])],
)
def test_last_k_is_the_mean_of_the_last_sets(num_updates, last, every, taken):
    average, engine, seen = trained(num_updates, average="last_k", average_last=last, average_every=every)
    assert (average.num_averaged, average.num_taken) == (len(taken), num_updates // every)
    expected = sum(seen[step - 1] for step in taken) / len(taken)
    found, _ = put_in_place(average, engine)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@given(st.integers(1, 12), st.sampled_from(["ema", "last_k"]), st.integers(1, 3), st.integers(2, 4), st.integers(1, 7))
@hypothesis_settings(max_examples=50)
def test_what_a_checkpoint_brings_back_goes_on_to_the_same_bits(num_updates, kind, every, last, chunk):
    keys = {"average": kind, "average_every": every, "average_last": last}
    whole, engine, _ = trained(num_updates, **keys)
    present = [share.clone() for share in engine.shares]
    kept = {name: tensor.clone() for name, tensor in whole.tensors(engine)}
    assert [(name, tuple(tensor.shape)) for name, tensor in kept.items()] == whole.shapes(engine)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(engine.shares, present, strict=True))  # they stepped aside for a moment
    again, other = WeightAverage(LearnerSection(**keys)), Engine(seed=9)
    again.restore(kept.__getitem__, len(whole.sets), whole.num_taken, other)
    other.set_masters({"a": present[0], "b": present[1].reshape(3, 1)}.__getitem__)
    before, weight_average.CHUNK = weight_average.CHUNK, chunk  # also where the shares go in several parts
    try:
        for average, each in ((whole, engine), (again, other)):
            draw = torch.Generator().manual_seed(3)
            for step in range(num_updates + 1, num_updates + 6):
                each.update(draw)
                average.after_update(step, each)
    finally:
        weight_average.CHUNK = before
    assert again.num_averaged == whole.num_averaged
    if not whole.sets:
        return
    expected, found = put_in_place(whole, engine), put_in_place(again, other)
    assert torch.equal(expected[0], found[0])
    assert expected[1] == found[1]


def test_fewer_sets_than_were_saved_are_the_newest_of_them():
    whole, engine, seen = trained(6, average="last_k", average_last=4)
    kept = {name: tensor.clone() for name, tensor in whole.tensors(engine)}
    fewer = WeightAverage(LearnerSection(average="last_k", average_last=2))
    fewer.restore(kept.__getitem__, 4, 6, engine)
    found, _ = put_in_place(fewer, engine)
    torch.testing.assert_close(found, (seen[-1] + seen[-2]) / 2, atol=1e-6, rtol=0)


def test_tensors_that_nobody_reads_to_their_end_leave_the_masters_as_they_were():
    average, engine, _ = trained(3, average="ema")
    present = [share.clone() for share in engine.shares]
    tensors = average.tensors(engine)
    next(tensors)
    tensors.close()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(engine.shares, present, strict=True))


# Model folders --------------------------------------------------------------------------------------------------------------------------


def model(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1
    )
    return LlamaForCausalLM(config).to(dtype)


def saved_models(folder, num=3, dtype=torch.float32, **save):
    folders = [folder / f"m{seed}" for seed in range(num)]
    for seed, each in enumerate(folders):
        model(seed, dtype).save_pretrained(each, **save)
        (each / "tokenizer.json").write_text(f"{seed}")
        (each / "trainer").mkdir()
        (each / "trainer" / "learner.json").write_text("{}")
    return folders


@pytest.mark.parametrize(("dtype", "save"), [(torch.float32, {}), (torch.bfloat16, {}), (torch.float32, {"max_shard_size": "4KB"})])
def test_the_mean_of_model_folders_opens_and_holds_the_mean_of_each_weight(tmp_path, dtype, save):
    folders, output = saved_models(tmp_path, dtype=dtype, **save), tmp_path / "averages" / "mean"
    average_model_folders(folders, output)
    names = {path.name for path in folders[0].iterdir() if path.is_file()}
    assert {path.name for path in output.iterdir()} == names
    assert (output / "tokenizer.json").read_text() == "0"
    assert [path.name for path in output.parent.iterdir()] == ["mean"]
    assert (len(list(output.glob("*.safetensors"))) > 1) == bool(save)
    found = AutoModelForCausalLM.from_pretrained(output, dtype=dtype).state_dict()
    parts = [model(seed, dtype).state_dict() for seed in range(3)]
    for name, tensor in found.items():
        expected = sum(part[name].double() for part in parts) / 3
        assert tensor.dtype == dtype
        torch.testing.assert_close(
            tensor.double(),
            expected,
            atol=1e-7 if dtype == torch.float32 else 0,
            rtol=1e-6 if not save and dtype == torch.float32 else 2**-8,
        )


def test_adapters_are_averaged_as_they_are(tmp_path):
    folders = [tmp_path / "one", tmp_path / "two"]
    for value, folder in enumerate(folders):
        folder.mkdir()
        save_file({"lora_A.weight": torch.full((2, 3), float(value))}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"r": 2}))
    average_model_folders(folders, tmp_path / "mean")
    assert load_file(tmp_path / "mean" / "adapter_model.safetensors")["lora_A.weight"].tolist() == [[0.5] * 3] * 2
    assert json.loads((tmp_path / "mean" / "adapter_config.json").read_text()) == {"r": 2}


def test_folders_that_are_not_of_one_model_are_refused_by_name_and_leave_nothing(tmp_path):
    folders = saved_models(tmp_path, num=2)
    other = load_file(folders[1] / "model.safetensors")
    save_file({**other, "model.norm.weight": torch.ones(9)}, folders[1] / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"m1 and .*m0 are not of one model: 1 tensors differ, the first model.norm.weight"):
        average_model_folders(folders, tmp_path / "mean")
    with pytest.raises(ValueError, match=r"trainer has no weights to average"):
        average_model_folders([folders[0], folders[0] / "trainer"], tmp_path / "mean")
    save_file({"ids": torch.ones(2, dtype=torch.int64)}, folders[0] / "more.safetensors")
    with pytest.raises(ValueError, match=r"m0: ids is of type I64"):
        average_model_folders(folders, tmp_path / "mean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m0", "m1"]


def test_an_average_that_cannot_be_written_to_its_end_leaves_nothing_and_none_is_written_over(tmp_path, monkeypatch):
    folders = saved_models(tmp_path, num=2)

    def full(path, plans, tensors):
        path.write_bytes(b"a part")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(weight_average, "write_tensors", full)
        with pytest.raises(OSError, match="No space left"):
            average_model_folders(folders, tmp_path / "mean")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m0", "m1"]
    average_model_folders(folders, tmp_path / "mean")
    with pytest.raises(FileExistsError, match="mean is there already"):
        average_model_folders(folders, tmp_path / "mean")
