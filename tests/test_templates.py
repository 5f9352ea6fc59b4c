"""Prompts with a place for the text: ``--prompt "This sentence: {text} means in one word:"``."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cse import Encoder, InputError, TrainConfig, train
from cse.encoder.prompts import template_of, templated
from sentence_models import sentence_model
from test_modules import TEXTS, pooling

PROMPT = "This sentence : {text} means in one word :"


@pytest.fixture(scope="module", params=["right", "left"])
def folder(request, tmp_path_factory, tiny_bert):
    """A model that pools the last token, padded on the right or, as decoders are, on the left."""
    place = tmp_path_factory.mktemp("last") / request.param
    kind = "qwen3" if request.param == "left" else "bert"
    sentence_model(place, tiny_bert, kind, [pooling("lasttoken")], request.param)
    return place


def test_a_template_gives_the_vectors_of_the_whole_texts(folder):
    plain, given = Encoder(folder, device="cpu"), Encoder(folder, device="cpu", prompt=PROMPT)
    texts = [text for text in TEXTS if text.strip() and len(text) < 100]  # longer ones are truncated
    whole = [PROMPT.replace("{text}", text) for text in texts]
    expected = plain.encode(whole)
    np.testing.assert_allclose(given.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(plain.encode(texts, prompt=PROMPT), expected, atol=1e-5)
    assert np.abs(plain.encode(texts) - expected).max() > 1e-3  # the tokenizer is as before


def test_only_the_text_in_a_template_is_truncated(folder):
    encoder = Encoder(folder, device="cpu")
    ids = encoder.tokenizer(PROMPT.replace("{text}", "a"))["input_ids"]
    template = template_of(PROMPT, encoder.tokenizer)
    assert [*template.prefix, *encoder.tokenizer("a", add_special_tokens=False)["input_ids"], *template.suffix] == ids
    with templated(encoder.tokenizer, PROMPT) as before:
        assert before == ""
        cut = encoder.tokenizer("a " * 200, truncation=True, max_length=20)["input_ids"]
    assert len(cut) == 20
    assert cut[: len(template.prefix)] == template.prefix
    assert cut[-len(template.suffix) :] == template.suffix


def test_a_model_trained_with_a_template_contains_it(folder, short_rows, tmp_path):
    config = TrainConfig(
        model=str(folder), prompt=PROMPT, max_steps=2, batch_size=8, output=str(tmp_path), device="cpu"
    )
    result = train(config, texts=short_rows[:100])
    best = result.folder / "best"
    texts = [text for text in TEXTS if text.strip()]
    ours, theirs = Encoder(best, device="cpu"), SentenceTransformer(str(best), device="cpu")
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), atol=1e-5)
    ids = AutoTokenizer.from_pretrained(best)("a")["input_ids"]
    assert ids == Encoder(folder, device="cpu").tokenizer(PROMPT.replace("{text}", "a"))["input_ids"]
    assert torch.isfinite(torch.tensor(ours.encode(texts))).all()


def test_templates_that_cannot_be_used_are_refused(folder):
    with pytest.raises(InputError, match=r"has \{text\} twice"):
        Encoder(folder, device="cpu", prompt="{text} {text}").encode(["a"])


def test_a_tokenizer_of_bytes_keeps_the_space_before_the_text():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"\u0120a": len(letters)}
    backend = Tokenizer(models.BPE(vocabulary, [("\u0120", "a")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    with templated(tokenizer, PROMPT):
        found = tokenizer("a b")["input_ids"]
    assert found == tokenizer(PROMPT.replace("{text}", "a b"))["input_ids"]
    assert tokenizer("a b")["input_ids"][0] == vocabulary["a"]
