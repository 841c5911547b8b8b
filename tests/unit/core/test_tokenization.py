import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from mathrl_ray.core.tokenization import pad_batch, pad_response_values, tokenize_apart, unpad
from mathrl_ray.types import SftExample

ids = st.lists(st.integers(1, 99), min_size=1, max_size=6).map(tuple)
batches = st.lists(st.builds(SftExample, ids, ids), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def tokenizer():
    """Letters a, b, c with one merge, a + b = ab; asked for special tokens it puts <s> before every text."""
    vocabulary = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4, "ab": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def test_no_token_spans_the_border_of_prompt_and_response(tokenizer):
    assert tokenizer.encode("cab", add_special_tokens=False) == [4, 5]  # together, ab is one token
    assert tokenize_apart(tokenizer, "ca", "b") == SftExample(prompt_ids=(4, 2), response_ids=(3,))


def test_no_special_token_is_added_by_the_tokenizer(tokenizer):
    assert tokenizer.encode("c") == [0, 4]  # it would add <s>
    assert tokenize_apart(tokenizer, "c", "c") == SftExample(prompt_ids=(4,), response_ids=(4,))


def test_eos_ends_the_response_when_asked_for(tokenizer):
    assert tokenize_apart(tokenizer, "c", "ab", append_eos=True) == SftExample(prompt_ids=(4,), response_ids=(5, 1))


def test_eos_is_refused_where_the_tokenizer_has_none():
    without_eos = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    with pytest.raises(ValueError, match=r"eos_token_id None.*model\.path"):
        tokenize_apart(without_eos, "a", "a", append_eos=True)


def test_the_example_of_the_docstring():
    batch = pad_batch([SftExample((1, 2), (3, 4)), SftExample((5,), (6,))], pad_id=0)
    assert batch.input_ids.tolist() == [[1, 2, 3], [5, 6, 0]]
    assert batch.labels.tolist() == [[2, 3, 4], [6, 0, 0]]
    assert batch.response_mask.tolist() == [[False, True, True], [True, False, False]]
    assert batch.response_position.tolist() == [[-1, 0, 1], [0, -1, -1]]
    assert (batch.prompt_lengths, batch.response_lengths) == ((2, 1), (2, 1))
    assert {batch.input_ids.dtype, batch.labels.dtype, batch.response_position.dtype} == {torch.long}
    assert batch.response_mask.dtype == torch.bool


@given(batches)
def test_the_mask_is_true_on_the_response_labels_and_nowhere_else(sequences):
    batch = pad_batch(sequences, pad_id=0)
    for row, sequence in enumerate(sequences):
        assert tuple(batch.labels[row][batch.response_mask[row]].tolist()) == sequence.response_ids
    assert batch.response_mask.sum().item() == sum(batch.response_lengths)


@given(batches)
def test_inputs_then_the_last_label_give_the_sequence_and_then_padding(sequences):
    batch = pad_batch(sequences, pad_id=0)  # no token is 0
    for row, sequence in enumerate(sequences):
        tokens = (*sequence.prompt_ids, *sequence.response_ids)
        whole = [*batch.input_ids[row].tolist(), batch.labels[row, -1].item()]
        assert whole == [*tokens, *[0] * (len(whole) - len(tokens))]
    assert torch.equal(batch.input_ids[:, 1:], batch.labels[:, :-1])


@given(batches)
def test_unpad_gives_each_response_its_own_values_in_order(sequences):
    batch = pad_batch(sequences, pad_id=0)
    assert unpad(batch.response_position, batch) == [list(range(len(sequence.response_ids))) for sequence in sequences]
    assert unpad(batch.labels, batch) == [list(sequence.response_ids) for sequence in sequences]


def test_unpad_takes_values_that_carry_a_gradient():
    batch = pad_batch([SftExample((1, 2), (3, 4))], pad_id=0)
    assert unpad(torch.tensor([[0.5, 1.5, 2.5]], requires_grad=True), batch) == [[1.5, 2.5]]


def test_unpad_refuses_the_values_of_another_batch():
    batch = pad_batch([SftExample((1, 2), (3, 4))], pad_id=0)
    with pytest.raises(ValueError, match=r"\(1, 4\).*\(1, 3\)"):
        unpad(torch.zeros(1, 4), batch)


def test_a_batch_moves_to_a_device_whole():
    batch = pad_batch([SftExample((1, 2), (3, 4))], pad_id=0).to("meta")
    tensors = (batch.input_ids, batch.labels, batch.response_mask, batch.response_position)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert batch.response_lengths == (2,)


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "at least 1 sequence"),
        ([SftExample((1,), (2,)), SftExample((), (2,))], "row 1 .* empty prompt"),
        ([SftExample((1,), (2,)), SftExample((1,), ())], "row 1 .* empty response"),
    ],
)
def test_nothing_to_train_on_is_refused_with_the_row(sequences, message):
    with pytest.raises(ValueError, match=message):
        pad_batch(sequences, pad_id=0)


@given(batches)
def test_padding_values_is_the_inverse_of_taking_them_out(sequences):
    batch = pad_batch(sequences, pad_id=0)
    rows = [[float(token) for token in sequence.response_ids] for sequence in sequences]
    values = pad_response_values(rows, batch)
    assert unpad(values, batch) == rows
    assert values[~batch.response_mask].sum() == 0


def test_a_row_of_values_that_is_too_short_is_named():
    batch = pad_batch([SftExample((1,), (2, 3))], pad_id=0)
    with pytest.raises(ValueError, match="row 0: 1 values for a response of 2 tokens"):
        pad_response_values([[0.5]], batch)
