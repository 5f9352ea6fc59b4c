"""Tiny models with random weights, and the configuration of a run of eight steps."""

from collections import Counter
from importlib.resources import files
from itertools import product


def make_tiny(folder, kind):
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    torch.manual_seed(0)
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")[:2000]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for row in sample for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(row)))
    endings = Counter()
    for word, count in counts.items():
        for start, length in product(range(1, len(word)), range(1, 6)):
            endings["##" + word[start : start + length]] += count * length
    # The vocabulary is built here, because the trainers in the tokenizers package break ties differently each time.
    letters = sorted(set("".join(counts)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:900]
    parts = sorted(endings, key=lambda part: (-endings[part], part))
    pieces = dict.fromkeys([*names, *letters, *("##" + letter for letter in letters), *words, *parts])
    vocabulary = {piece: i for i, piece in enumerate(list(pieces)[:2000])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name.strip('[]').lower()}_token": name for name in names}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)
    sizes = {"vocab_size": 2000, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes["intermediate_size"] = 64
    if kind == "bert":
        model = BertModel(BertConfig(**sizes, max_position_embeddings=64))
    else:
        # No pooler, as in the published RoBERTa checkpoints.
        config = RobertaConfig(**sizes, max_position_embeddings=66, pad_token_id=0, type_vocab_size=1)
        model = RobertaModel(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_t5(folder, tokenizer):
    """Saves a tiny random T5 model with the tokenizer of a model."""
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    found = AutoTokenizer.from_pretrained(tokenizer)
    ends = {"decoder_start_token_id": found.cls_token_id, "pad_token_id": found.pad_token_id}
    ends |= {"vocab_size": len(found), "eos_token_id": found.sep_token_id, "d_model": 16}
    torch.manual_seed(0)
    T5ForConditionalGeneration(T5Config(**ends, d_kv=8, d_ff=32, num_layers=1, num_heads=2)).save_pretrained(folder)
    found.save_pretrained(folder)
    return folder


def config_of_eight_steps(corpus, model, output, **changes):
    from cse import TrainConfig

    settings = {
        "corpus": corpus,
        "model": model,
        "tfidf": corpus.with_name("tfidf"),
        "output": output,
        "batch_size": 8,
        "max_steps": 8,
        "eval_every": 3,
        "log_every": 2,
        "device": "cpu",
        # Results are bit-identical only if all runs, here and in child processes, use the same number of threads.
        "threads": 1,
        # With ``auto``, results would depend on the processor.
        "precision": "fp32",
        "lr": 1e-3,
    }
    return TrainConfig(**{**settings, **changes})
