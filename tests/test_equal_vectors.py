"""Tests that cse gives the vectors of a plain SentenceTransformer for tiny random models of many types."""

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel, AutoTokenizer

from cse import Encoder

SIZE = {
    "vocab_size": 2000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip
POSITIONS = {"max_position_embeddings": 66}  # in models like RoBERTa, positions begin after the padding index
KEYS = {"num_key_value_heads": 2, "head_dim": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
# Settings that are added to ``SIZE``, by model type and, after a space, a remark.
TYPES = {
    "albert": {"embedding_size": 16},
    "bert": {},
    "big_bird": {"attention_type": "original_full"},
    "camembert": POSITIONS,
    "canine": {"num_hash_buckets": 64},
    "convbert": {"embedding_size": 32},
    "data2vec-text": POSITIONS,
    "deberta": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "ernie": {},
    "esm": {**POSITIONS, "position_embedding_type": "absolute", "mask_token_id": 4},
    "fnet": {},
    "gemma": KEYS,
    "gemma2": {**KEYS, "query_pre_attn_scalar": 8},
    "gemma3_text": KEYS,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {},
    "ibert": POSITIONS,
    "layoutlm": {},
    "lilt": {**POSITIONS, "hidden_size": 48},
    "llama": KEYS,
    "longformer": {**POSITIONS, "attention_window": 8},
    "luke": {**POSITIONS, "entity_vocab_size": 10, "entity_emb_size": 8},
    "megatron-bert": {},
    "mistral": KEYS,
    "mobilebert": {"intra_bottleneck_size": 32, "embedding_size": 32, "true_hidden_size": 32},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
    "mpnet": POSITIONS,
    "mra": POSITIONS,
    "nystromformer": POSITIONS,
    "qwen2": {"num_key_value_heads": 2, "vocab_size": 2010},
    "qwen3": KEYS,
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "roberta": POSITIONS,
    "roberta padded by 5": {**POSITIONS, "max_position_embeddings": 70, "pad_token_id": 5},
    "roberta-prelayernorm": POSITIONS,
    "roformer": {"embedding_size": 32},
    "splinter": {},
    "squeezebert": {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1,
                    "intermediate_groups": 2, "output_groups": 2},
    "t5": T5,
    "umt5": T5,
    "xlm-roberta": POSITIONS,
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "xmod": {**POSITIONS, "languages": ["en_XX"], "default_language": "en_XX"},
    "yoso": POSITIONS,
}  # fmt: skip
TEXTS = ["A sentence.", "Another one, rather longer than the first, to see what padding does.", "x y", "word " * 99]
PROMPT = "search for this : "


def made(folder, name, tokenizer):
    """Saves a tiny random model of a type, as sentence-transformers saves it."""
    torch.manual_seed(0)
    kind = name.split(" ")[0]
    settings = {**SIZE, **TYPES[name]}
    if kind == "xlnet":  # has no limit
        del settings["max_position_embeddings"]
    config = AutoConfig.for_model(kind, **settings)
    AutoModel.from_config(config).save_pretrained(folder / "plain")
    if kind == "canine":
        transformers.CanineTokenizer(model_max_length=64).save_pretrained(folder / "plain")
    else:
        pieces = AutoTokenizer.from_pretrained(tokenizer)
        pieces.model_max_length = 60
        pieces.save_pretrained(folder / "plain")
    SentenceTransformer(str(folder / "plain"), device="cpu").save(str(folder / "model"), create_model_card=False)
    return folder / "model"


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPES)
def test_vectors_equal_those_of_sentence_transformers(tmp_path, tiny_bert, name):
    folder = made(tmp_path, name, tiny_bert)
    for place in (folder, tmp_path / "plain"):
        ours, theirs = Encoder(place, device="cpu"), SentenceTransformer(str(place), device="cpu")
        theirs.float()
        for prompt in ("", PROMPT):
            found, expected = ours.encode(TEXTS, prompt=prompt), theirs.encode(TEXTS, prompt=prompt)
            assert np.isfinite(expected).all()
            np.testing.assert_allclose(found, expected, atol=1e-6 * max(1, np.abs(expected).max()))
