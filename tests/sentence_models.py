"""Small models with random weights, saved by sentence-transformers itself or with the files of a model on the hub."""

import json
import warnings

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

SIZES = {
    "vocab_size": 2000,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
DECODER = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
# For each architecture, the model type, and settings that are added to ``SIZES`` or override them.
ARCHITECTURES = {
    "bert": ("bert", {"max_position_embeddings": 64}),
    "modernbert": (
        "modernbert",
        {"max_position_embeddings": 64, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
    ),
    "mpnet": ("mpnet", {"max_position_embeddings": 66}),
    "deberta": (
        "deberta-v2",
        {"max_position_embeddings": 64, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
    "xlm-r": ("xlm-roberta", {"max_position_embeddings": 66}),
    "qwen3": ("qwen3", DECODER),
    "gemma3": ("gemma3_text", {**DECODER, "sliding_window": 8, "use_bidirectional_attention": True}),
    "llama": ("llama", DECODER),
}


def cross_encoder(folder, model, labels=1):
    """Saves a CrossEncoder with random weights, and the transformer and tokenizer of a folder ``model``."""
    from sentence_transformers import CrossEncoder

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
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    torch.manual_seed(0)
    kind, changes = ARCHITECTURES[architecture]
    plain = folder.with_name(f"{folder.name}-transformer")
    AutoModel.from_config(AutoConfig.for_model(kind, **{**SIZES, **changes})).save_pretrained(plain)
    found = AutoTokenizer.from_pretrained(tokenizer)
    found.padding_side, found.model_max_length = side, 48
    found.save_pretrained(plain)
    first = Transformer(str(plain))
    built, width = [first], SIZES["hidden_size"]
    for make in modules:
        module = make(width)
        width = module.get_embedding_dimension() if hasattr(module, "get_embedding_dimension") else width
        built.append(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(modules=built, device="cpu", **settings)
        model.save(str(folder), create_model_card=False)
    return model


def pool(pooler, hidden_states, mask, ids=None, mask_token=None):
    """Pools hidden states, ``(B, T, H)`` for each layer, with the modules of a pooler."""
    from types import SimpleNamespace

    from cse.encoder.modules import pooling_modules

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
    from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, processors
    from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    folder.mkdir()
    torch.manual_seed(0)
    if kind == "bert":
        pieces = BertWordPieceTokenizer()
        pieces.train_from_iterator(rows, vocab_size=800, show_progress=False)
        config = BertConfig(vocab_size=pieces.get_vocab_size(), max_position_embeddings=64, **sizes)
        model = BertModel(config)
        settings = {"do_lower_case": True, "model_max_length": 512}
    else:
        pieces = ByteLevelBPETokenizer()
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        pieces.train_from_iterator(rows, vocab_size=800, special_tokens=names, show_progress=False)
        pieces.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        config = RobertaConfig(
            vocab_size=pieces.get_vocab_size(), max_position_embeddings=66, type_vocab_size=1, **sizes
        )
        model = RobertaModel(config, add_pooling_layer=False)
        settings = {"model_max_length": 512}
    model.save_pretrained(folder)
    pieces.save_model(str(folder))
    pieces.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf8")
    return folder
