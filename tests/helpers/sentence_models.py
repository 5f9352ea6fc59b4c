"""Small models with random weights, saved by sentence-transformers itself or with the files of a model on the hub."""

import json
from types import SimpleNamespace

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, processors
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, CanineTokenizer

from cse import Encoder
from cse.encoder.pooling_modules import pooling_modules

SIZES = {
    "vocab_size": 2000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 64, "type_vocab_size": 2,
}  # fmt: skip
POSITIONS = {"max_position_embeddings": 66}  # in models like RoBERTa, positions begin after the padding index
KEYS = {"num_key_value_heads": 2, "head_dim": 8}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
PLAIN = ("bert", "deberta", "ernie", "fnet", "gpt_neox", "layoutlm", "megatron-bert", "splinter")
LIKE_ROBERTA = ("camembert", "data2vec-text", "ibert", "mpnet", "mra", "nystromformer", "roberta",
                "roberta-prelayernorm", "xlm-roberta", "yoso")  # fmt: skip
# Settings that are added to ``SIZES``, by model type and, after a space, a remark.
TYPES = {
    **{name: {} for name in PLAIN}, **dict.fromkeys(LIKE_ROBERTA, POSITIONS), **dict.fromkeys(("t5", "umt5"), T5),
    **dict.fromkeys(("gemma", "llama", "mistral", "qwen3"), KEYS),
    "albert": {"embedding_size": 16},
    "big_bird": {"attention_type": "original_full"},
    "canine": {"num_hash_buckets": 64},
    "convbert": {"embedding_size": 32},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "electra": {"embedding_size": 16},
    "esm": {**POSITIONS, "position_embedding_type": "absolute", "mask_token_id": 4},
    "gemma2": {**KEYS, "query_pre_attn_scalar": 8},
    "gemma3_text": {**KEYS, "sliding_window": 8, "use_bidirectional_attention": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "lilt": {**POSITIONS, "hidden_size": 48},
    "longformer": {**POSITIONS, "attention_window": 8},
    "luke": {**POSITIONS, "entity_vocab_size": 10, "entity_emb_size": 8},
    "mobilebert": {"intra_bottleneck_size": 32, "embedding_size": 32, "true_hidden_size": 32},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
    "qwen2": {"num_key_value_heads": 2, "vocab_size": 2010},
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "roberta padded by 5": {**POSITIONS, "max_position_embeddings": 70, "pad_token_id": 5},
    "roformer": {"embedding_size": 32},
    "squeezebert": {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1,
                    "intermediate_groups": 2, "output_groups": 2},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "xmod": {**POSITIONS, "languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip


def transformer(folder, name, tokenizer, side="right", length=48):
    """Saves a tiny random model of one of ``TYPES`` with the tokenizer of a folder, which pads on ``side``."""
    torch.manual_seed(0)
    kind = name.split(" ")[0]
    settings = {**SIZES, **TYPES[name]}
    if kind in ("t5", "umt5", "xlnet"):  # have no limit
        del settings["max_position_embeddings"]
    AutoModel.from_config(AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    if kind == "canine":
        pieces = CanineTokenizer(model_max_length=64)
    else:
        pieces = AutoTokenizer.from_pretrained(tokenizer)
        pieces.padding_side, pieces.model_max_length = side, length
    pieces.save_pretrained(folder)
    return folder


TEXTS = ["A sentence.", "Another one, rather longer than the first, to see what padding does.", "word " * 99, "x y"]


def pooling(*modes, **settings):
    return lambda width: Pooling(width, modes[0] if len(modes) == 1 else modes, **settings)


def dense(out, activation=None, **settings):
    return lambda width: Dense(width, out, activation_function=activation, **settings)


def layer_norm(width):
    module = LayerNorm(width)
    nn.init.normal_(module.norm.weight)
    return module


def normalize(width):
    return Normalize()


def agree(folder, *methods, texts=TEXTS, **settings):
    """Asserts that cse and sentence-transformers give equal vectors for a folder; returns those of ``encode``."""
    ours, theirs = Encoder(folder, device="cpu", **settings), SentenceTransformer(str(folder), device="cpu")
    for method in (*methods, "encode"):
        vectors = getattr(ours, method)(texts)
        np.testing.assert_allclose(vectors, getattr(theirs, method)(texts), atol=1e-5)
    return vectors


def cross_encoder(folder, model, labels=1):
    """Saves a CrossEncoder with random weights, and the transformer and tokenizer of a folder ``model``."""
    torch.manual_seed(0)
    made = CrossEncoder(str(model), device="cpu", num_labels=labels)
    for weights in made.parameters():  # so that scores differ
        if weights.ndim == 2:
            weights.data *= 6
    made.save_pretrained(str(folder))
    return folder


def sentence_model(folder, tokenizer, architecture="bert", modules=(), side="right", **settings):
    """Saves and returns a SentenceTransformer that consists of a transformer and further modules.

    Each of ``modules`` is a function that receives an input width and returns a module. ``tokenizer`` is the folder of
    a tokenizer, and ``side`` the side on which it pads. ``settings`` are arguments of SentenceTransformer.
    """
    plain = transformer(folder.with_name(f"{folder.name}-transformer"), architecture, tokenizer, side)
    first = Transformer(str(plain))
    built, width = [first], SIZES["hidden_size"]
    for make in modules:
        module = make(width)
        width = module.get_embedding_dimension() if hasattr(module, "get_embedding_dimension") else width
        built.append(module)
    model = SentenceTransformer(modules=built, device="cpu", **settings)
    model.save(str(folder), create_model_card=False)
    return model


def pool(pooler, hidden_states, mask, ids=None, mask_token=None):
    """Pools hidden states, ``(B, T, H)`` for each layer, with the modules of a pooler."""
    config = SimpleNamespace(num_hidden_layers=len(hidden_states) - 1)
    transformer = SimpleNamespace(
        get_embedding_dimension=lambda: hidden_states[-1].shape[-1],
        config=config,
        tokenizer=SimpleNamespace(mask_token_id=mask_token),
    )
    features = {"token_embeddings": hidden_states[-1], "all_layer_embeddings": hidden_states}
    features |= {"attention_mask": mask, "input_ids": ids}
    for module in pooling_modules(pooler, transformer):
        features = module(features)
    return features["sentence_embedding"]


def as_on_the_hub(folder, kind, rows):
    """Saves a tiny model with the hub files of bert-base-uncased or roberta-base, which name no tokenizer class."""
    folder.mkdir()
    torch.manual_seed(0)
    if kind == "bert":
        pieces = BertWordPieceTokenizer()
        pieces.train_from_iterator(rows, vocab_size=800, show_progress=False)
        positions, options, settings = {"max_position_embeddings": 64}, {}, {"do_lower_case": True}
    else:
        pieces = ByteLevelBPETokenizer()
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        pieces.train_from_iterator(rows, vocab_size=800, special_tokens=names, show_progress=False)
        pieces.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        positions, options, settings = {**POSITIONS, "type_vocab_size": 1}, {"add_pooling_layer": False}, {}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = AutoConfig.for_model(kind, vocab_size=pieces.get_vocab_size(), **positions, **sizes)
    AutoModel.from_config(config, **options).save_pretrained(folder)
    pieces.save_model(str(folder))
    pieces.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 512}), encoding="utf8")
    return folder
