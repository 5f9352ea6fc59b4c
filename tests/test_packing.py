"""Packed batches: embeddings and gradients equal those of padded batches, for every type of model that is packed."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from cse.encoder.fast.dropout import FastDropout, use_fast_dropout
from cse.encoder.fast.lengths import GROUP
from cse.encoder.fast.packing import MODELS, can_pack, encode_packed, is_hooked, is_packable
from cse.training.setup import prepare

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 48}
SIZES |= {"vocab_size": 100, "max_position_embeddings": 40, "pad_token_id": 1}


def backbone(kind, **changes):
    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes})).double().eval()
    use_fast_dropout(model)
    return model


def batch(rows=GROUP + 9, columns=17, left=False, empty=False):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, columns + 1, (rows,), generator=generator)
    lengths[3] = 0 if empty else columns
    places = torch.arange(columns).flip(0) if left else torch.arange(columns)
    mask = (places < lengths[:, None]).long()
    ids = torch.randint(2, 100, (rows, columns), generator=generator)
    return {"input_ids": torch.where(mask.bool(), ids, 1), "attention_mask": mask}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("types", [False, True])
def test_packed_rows_have_the_hidden_states_and_gradients_of_padded_rows(kind, side, types):
    model = backbone(kind, type_vocab_size=2)
    assert can_pack(model)
    inputs = batch(left=side == "left")
    if types:
        inputs["token_type_ids"] = (torch.arange(17) > 5).long().expand_as(inputs["input_ids"])
    real = inputs["attention_mask"].bool()
    weights = torch.randn(real.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def gradients(states):
        model.zero_grad()
        sum((weights * state.tanh().sum(2))[real].sum() for state in states).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    outputs = model(**inputs, output_hidden_states=True)
    expected = (outputs.last_hidden_state, *outputs.hidden_states)
    wanted = gradients(expected)
    last, states = encode_packed(model, inputs, layers=True)
    assert len(states) == 3
    for found, other in zip((last, *states), expected, strict=True):
        assert torch.allclose(found[real], other[real], rtol=0, atol=1e-12)
        assert not found[~real].any()
    found = gradients((last, *states))
    # The padded model also has a pooler, which the packed model computes for the first row, in vain.
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, rtol=1e-9, atol=1e-11), name


def test_rows_without_tokens_are_zero_and_have_finite_gradients():
    model = backbone("bert")
    inputs = batch(empty=True)
    last, _ = encode_packed(model, inputs, layers=False)
    last.tanh().sum().backward()
    assert not last[3].any()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.slow
def test_dropout_of_packed_rows_is_that_of_padded_rows_on_average():
    """Compares means over many masks: of hidden states, of a product of two of them, and of their deviation."""
    model = backbone("bert", attention_probs_dropout_prob=0.2, hidden_dropout_prob=0.2).train()
    inputs = batch(rows=GROUP + 2, columns=6)
    real = inputs["attention_mask"].bool()

    def samples(encode, count=400):
        values = []
        for number in range(count):
            torch.manual_seed(number)
            states = encode()[real]
            values.append(torch.stack([states[:, 0].mean(), (states[:, 1] * states[:, 2]).mean(), states.std()]))
        return torch.stack(values).detach()

    packed = samples(lambda: encode_packed(model, inputs, layers=False)[0])
    padded = samples(lambda: model(**inputs).last_hidden_state)
    error = (packed.var(0) / len(packed) + padded.var(0) / len(padded)).sqrt()
    assert bool(((packed.mean(0) - padded.mean(0)).abs() < 5 * error).all())
    assert bool((packed.std(0) > 0).all())


def test_other_models_are_not_packed():
    for kind, changes in (("bert", {"is_decoder": True}), ("mpnet", {}), ("bert", {"attn_implementation": "eager"})):
        assert not can_pack(backbone(kind, **changes))


@pytest.mark.parametrize("fault", [None, KeyError, AttributeError, TypeError])
def test_a_model_that_does_not_know_the_layout_is_not_packed(fault):
    """As in a release of transformers that does not pass further arguments to attention, or refuses them."""
    model = backbone("bert")
    forward = model.forward

    def older(layout=None, **inputs):
        if layout is not None and fault is not None:
            raise fault
        return forward(**inputs)

    model.forward = older
    assert not can_pack(model)
    assert not model.training


def test_only_inputs_of_one_shape_with_a_token_on_the_cpu_are_packed():
    inputs = batch(rows=4, columns=5)
    assert is_packable(inputs)
    assert not is_packable({**inputs, "position_ids": torch.arange(5)[None]})
    assert not is_packable({**inputs, "inputs_embeds": inputs["input_ids"]})
    assert not is_packable({**inputs, "attention_mask": torch.zeros(4, 5)})
    assert not is_packable({"input_ids": inputs["input_ids"]})
    assert not is_packable({name: values.to("meta") for name, values in inputs.items()})


@pytest.mark.parametrize("pooler", ["avg", "cls", "avg_first_last"])
@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_roberta"])
def test_training_packs_rows_and_gives_the_same_embeddings(request, run_config, kind, pooler):
    folder = request.getfixturevalue(kind)
    encoder = prepare(run_config.replace(model=str(folder), pooler=pooler)).state.encoder
    assert encoder.packed
    assert any(isinstance(module, FastDropout) for module in encoder.modules())
    encoder.double().eval()
    inputs = batch(rows=GROUP + 3, columns=9)
    padding = encoder.tokenizer.pad_token_id
    inputs["input_ids"] = torch.where(inputs["attention_mask"].bool(), inputs["input_ids"] + 10, padding)
    found = encoder.embed(inputs)
    encoder.packed = False
    assert torch.allclose(found, encoder.embed(inputs), rtol=0, atol=1e-12)


def test_a_pass_without_tokens_is_that_of_padded_rows(run_config):
    encoder = prepare(run_config.replace(pooler="avg")).state.encoder
    assert encoder.packs
    z = encoder.embed({"input_ids": torch.zeros(2, 3, dtype=torch.long), "attention_mask": torch.zeros(2, 3)})
    assert z.shape == (2, encoder.embedding_dim)


def test_hooks_of_the_transformer_receive_hidden_states_by_row(run_config):
    encoder = prepare(run_config.replace(pooler="avg_first_last")).state.encoder
    inputs = batch(rows=5, columns=9)
    encoder.embed(inputs)  # leaves the hooks with which transformers captures hidden states
    assert not is_hooked(encoder.backbone)
    seen = []
    layer = encoder.backbone.encoder.layer[0]
    handle = layer.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape[:2])))
    assert is_hooked(encoder.backbone)
    assert not encoder.packs
    encoder.embed(inputs)
    handle.remove()
    encoder.embed(inputs)
    assert seen == [(5, 9)]
    assert encoder.packs
    handle = layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    assert not encoder.packs
    handle.remove()
    assert encoder.packs
