"""Dropout with masks from a fast random number generator."""

import pytest
import torch

from cse import _core
from cse.encoder.fast import dropout
from cse.encoder.fast.dropout import FastDropout, dropout_mask, use_fast_dropout
from cse.encoder.resolve import find_model
from cse.encoder.trained import load_encoder
from una_reference import chacha8_block


@pytest.mark.parametrize("p", [0.1, 0.5, 0.01])
def test_masks_drop_elements_with_the_given_probability_and_depend_on_the_seed_of_torch(p):
    def kept():
        return dropout_mask((1000, 333), p, torch.float32) != 0

    torch.manual_seed(3)
    first, second = kept(), kept()
    torch.manual_seed(3)
    assert torch.equal(kept(), first)
    assert not torch.equal(first, second)
    error = (p * (1 - p) / first.numel()) ** 0.5
    assert float((~first).float().mean()) == pytest.approx(p, abs=4.5 * error + 2**-17)
    # Elements are independent, so two of them are both dropped with probability p * p, whatever their distance.
    flat = ~first.flatten()
    for distance in (1, 2, 16, 32, 512):
        both = (flat[distance:] & flat[:-distance]).float().mean()
        assert float(both) == pytest.approx(p * p, abs=6 * (p * p / first.numel()) ** 0.5 + 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_masks_take_16_bits_of_the_chacha8_stream_of_their_seed(dtype):
    """Bits of words 16 w + l of a block of 512 elements: word w of the stream whose row is 16 block + l."""
    torch.manual_seed(5)
    seed = int(torch.randint(2**63 - 1, ()).item())
    torch.manual_seed(5)
    mask = dropout_mask((7, 91), 0.3, dtype).flatten()
    assert mask.dtype == dtype
    expected = torch.zeros(1024, dtype=dtype)
    for row in range(32):
        for word, bits in enumerate(chacha8_block(seed, 0, row, 2**64 - 2)):
            for half, value in enumerate((bits & 0xFFFF, bits >> 16)):
                if value >= round(0.3 * 2**16):
                    expected[512 * (row // 16) + 2 * (16 * word + row % 16) + half] = 1 / 0.7
    assert torch.equal(mask, expected[: 7 * 91])


def test_masks_do_not_depend_on_the_number_of_threads():
    def mask(threads):
        _core.set_default_threads(threads)
        torch.manual_seed(7)
        return dropout_mask((3, 70_001), 0.1, torch.bfloat16)

    try:
        assert torch.equal(mask(1), mask(3))
    finally:
        _core.set_default_threads(0)


def test_kept_elements_and_their_gradients_are_scaled():
    x = torch.ones(50, 40, dtype=torch.float64, requires_grad=True)
    layer = FastDropout(0.25)
    y = layer(x)
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert layer.eval()(x) is x


@pytest.mark.parametrize("p", [1.0, 1 - 2**-20])
def test_a_probability_of_one_drops_every_element_as_in_torch(p):
    x = torch.ones(50, 40, requires_grad=True)
    y = FastDropout(p)(x)
    y.sum().backward()
    assert not y.any()
    assert not x.grad.any()
    layer = torch.nn.Module().train()
    z = torch.randn(2, 3, 5, 4)
    assert not dropout.attention(layer, z, z, z, None, dropout=p)[0].any()


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_roberta"])
def test_embeddings_without_dropped_elements_equal_those_of_transformers(request, kind, monkeypatch, sample_rows):
    folder = str(request.getfixturevalue(kind))
    plain, fast = (load_encoder(find_model(folder), "avg").eval() for _ in range(2))
    use_fast_dropout(fast.backbone)
    assert not [m for m in fast.backbone.modules() if type(m) is torch.nn.Dropout]
    assert fast.backbone.config._attn_implementation == dropout.ATTENTION
    texts = [sample_rows[0], "short", sample_rows[2]]
    batch = plain.tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    expected = plain.embed(batch)
    assert torch.allclose(expected, fast.embed(batch), atol=1e-6)
    # In training mode, the embeddings are the same if masks keep every element and hidden states are not scaled.
    monkeypatch.setattr(dropout, "dropout_mask", lambda shape, p, dtype: torch.ones(shape, dtype=dtype))
    for module in fast.backbone.modules():
        if isinstance(module, FastDropout):
            module.p = 0.0
        for name in ("dropout_prob", "attention_dropout"):
            if hasattr(module, name):
                setattr(module, name, 1e-9)
    assert torch.allclose(fast.train().embed(batch), expected, atol=1e-5)
