"""Words that a tokenizer divides: cse doctor --model counts them, and cse train --add-tokens adds them as tokens."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

from cse import Encoder, InputError, TrainConfig, train
from cse.models import vocabulary
from cse.models.reading.resolve import find_model
from cse.models.running.encoder import load_encoder, load_tokenizer
from cse.models.vocabulary import MIN_COUNT, add_words, count_words
from cse.training.loop import resumed_config
from cse.training.setup import prepare
from runs import weights

TRICKY = [
    "The Boundary-Layer: na\u00efve caf\u00e9, CAF\u00c9! (don't) e_mail",
    "  two  spaces\tand a tab; \u4e2d\u6587 words, 3.14 x2 abc123 ",
    "",
    "Zw\u00f6lf Boxk\u00e4mpfer \u201cquoted\u201d \u2014 dash\u00a0nbsp e\u0301 combining",
]


@pytest.fixture(scope="module")
def rows(short_rows):
    """Sentences with invented words, which the tokenizer of the tiny model divides; several are equally frequent."""
    words = [a + b + c for a in ("blon", "kra", "zwei") for b in ("avi", "ortu") for c in ("rog", "smet", "x2", "nd")]
    return [f"The {words[number % 24 % (number % 5 + 20)]}, then: {row}" for number, row in enumerate(short_rows)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, rows):
    from cse import TfidfIndex

    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    TfidfIndex.build(path).save(path.with_name("tfidf"))
    return path


@pytest.fixture(scope="module")
def tokenizer(tiny_bert):
    return load_tokenizer(find_model(str(tiny_bert)))


@pytest.fixture(scope="module")
def by_hand(tokenizer, rows):
    """Words and their pieces, from the word numbers that the tokenizer gives to the tokens of each whole text."""
    counts, pieces = Counter(), {}
    for text in [*rows, *TRICKY]:
        found = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        words = {}
        for number, (start, end), piece in zip(found.word_ids, found.offsets, found.tokens, strict=True):
            words.setdefault(number, []).append((text[start:end], piece))
        for parts in words.values():
            word = tokenizer.backend_tokenizer.normalizer.normalize_str("".join(part for part, _ in parts))
            counts[word] += 1
            pieces[word] = tuple(piece for _, piece in parts)
    return counts, pieces


def test_words_and_pieces_equal_those_of_the_tokenizer_on_whole_texts(tokenizer, rows, by_hand):
    counts, pieces = by_hand
    found = count_words(tokenizer, [rows, TRICKY], "test")
    assert found.words == counts.total()
    assert found.tokens == sum(count * len(pieces[word]) for word, count in counts.items())
    assert found.unknown == sum(count for word, count in counts.items() if "[UNK]" in pieces[word]) > 0
    for number in range(1, 6):
        tokens = sum(count * number for word, count in counts.items() if len(pieces[word]) == number)
        assert found.by_pieces.get(number, 0) == tokens
    expected = {
        word: (count, pieces[word], count * (len(pieces[word]) - 1))
        for word, count in counts.items()
        if count >= MIN_COUNT
        and len(pieces[word]) > 1
        and "[UNK]" not in pieces[word]
        and word.isalnum()
        and any(map(str.isalpha, word))
    }
    assert len(expected) > 20
    assert {each.word: (each.count, each.pieces, each.saved) for each in found.divided} == expected


def test_words_that_save_as_many_tokens_are_ordered_by_word(tokenizer, rows):
    found = count_words(tokenizer, [rows], "test").divided
    assert found == sorted(found, key=lambda each: (-each.saved, each.word))
    assert len({each.saved for each in found}) < len(found)
    assert found == count_words(tokenizer, [rows[::-1]], "test").divided


@pytest.mark.parametrize("kind", ["tiny_bert", "byte_level"])
def test_an_added_word_is_one_token_and_begins_as_the_mean_of_its_pieces(kind, request, tmp_path_factory, rows):
    folder = bpe_folder(tmp_path_factory, rows) if kind == "byte_level" else request.getfixturevalue(kind)
    source = find_model(str(folder))
    before, encoder = (load_encoder(source, "avg") for _ in range(2))
    words = count_words(encoder.tokenizer, [rows], "test").most_saving(10, "m")
    add_words(encoder.tokenizer, encoder.backbone, words, "test")
    table, old = (each.backbone.get_input_embeddings().weight.detach().double() for each in (encoder, before))
    assert len(table) == len(old) + 10 == encoder.backbone.config.vocab_size
    torch.testing.assert_close(table[: len(old)], old, rtol=0, atol=0)

    def ids(each, text):
        return each.tokenizer(text, add_special_tokens=False)["input_ids"]

    for number, each in enumerate(words):
        text = f"in {each.word}, ({each.word})"
        assert ids(encoder, text).count(len(old) + number) == 2
        own = before.tokenizer.convert_tokens_to_ids(list(each.pieces))
        assert ids(before, f"in {each.word}")[-len(own) :] == own
        assert ids(encoder, f"in {each.word} in") == [*ids(before, "in"), len(old) + number, *ids(before, "a in")[-1:]]
        mean = torch.stack([old[piece] for piece in own]).mean(0)
        torch.testing.assert_close(table[len(old) + number], mean, rtol=0, atol=1e-7)
        for text in (f"x{each.word}", f"{each.word}x"):
            assert ids(encoder, text) == ids(before, text)


def test_upper_case_and_accents_of_an_uncased_model_match_an_added_word(tiny_bert):
    encoder = load_encoder(find_model(str(tiny_bert)), "avg")
    words = count_words(encoder.tokenizer, [["Zw\u00f6lfing ZWOLFING zwolfing"] * 2], "test").most_saving(1, "m")
    assert (words[0].word, words[0].count) == ("zwolfing", 6)
    add_words(encoder.tokenizer, encoder.backbone, words, "test")
    ids = [encoder.tokenizer(text)["input_ids"] for text in ("zwolfing", "ZWOLFING", "Zw\u00f6lfing")]
    assert ids[0] == ids[1] == ids[2]
    assert len(ids[0]) == 3


def bpe_folder(tmp_path_factory, rows):
    """A RoBERTa model with random weights and a byte-level BPE tokenizer."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel

    folder = tmp_path_factory.mktemp("byte_level")
    pieces = ByteLevelBPETokenizer()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces.train_from_iterator(rows, vocab_size=600, special_tokens=names, show_progress=False)
    marks = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), names, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=pieces._tokenizer, **marks).save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = RobertaConfig(vocab_size=600, max_position_embeddings=66, pad_token_id=1, type_vocab_size=1, **sizes)
    torch.manual_seed(0)
    RobertaModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture
def config(run_config, corpus):
    return run_config.replace(corpus=str(corpus), tfidf=str(corpus.with_name("tfidf")), add_tokens=12, pooler="avg")


@pytest.mark.parametrize("byte_level", [False, True])
def test_a_trained_model_gives_equal_ids_and_vectors_in_every_library(config, rows, byte_level, tmp_path_factory):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    if byte_level:
        config = config.replace(model=str(bpe_folder(tmp_path_factory, rows)))
    folder = train(config).folder / "last"
    encoder = Encoder(folder, device="cpu")
    model, other = encoder.model, SentenceTransformer(str(folder), device="cpu")
    plain, backbone = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    words = [each for each in model.tokenizer.get_added_vocab() if each.isalnum()]
    assert len(words) == 12
    texts = [*rows[:40], *(f"The {each.upper()}, ({each})-{each}s" for each in words)]
    ids = model.tokenizer(texts)["input_ids"]
    new = set(model.tokenizer.convert_tokens_to_ids(words))
    assert sum(bool(new & set(each)) for each in ids) > 12
    assert plain(texts)["input_ids"] == other.tokenizer(texts)["input_ids"] == ids
    vectors = encoder.encode(texts)
    np.testing.assert_allclose(other.encode(texts), vectors, rtol=0, atol=1e-5)
    for text, vector in zip(texts[-3:], vectors[-3:], strict=True):
        with torch.no_grad():
            states = backbone(**plain([text], return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(states.mean(1)[0].numpy(), vector, rtol=0, atol=1e-5)
    again = load_encoder(find_model(str(folder)), "avg")  # and as the model of a further run
    assert again.tokenizer(texts)["input_ids"] == ids
    assert not set(words) & {each.word for each in count_words(again.tokenizer, [rows], "test").divided}


def test_embeddings_of_added_words_are_trained(config, rows):
    folder = train(config).folder
    encoder, start = (load_encoder(find_model(str(each)), "avg") for each in (folder / "last", config.model))
    words = [each for each in encoder.tokenizer.get_added_vocab() if each.isalnum()]
    table, old = (each.backbone.get_input_embeddings().weight.detach() for each in (encoder, start))
    moved = 0
    for word in words:
        pieces = start.tokenizer(word, add_special_tokens=False)["input_ids"]
        moved += bool((table[encoder.tokenizer.convert_tokens_to_ids(word)] - old[pieces].mean(0)).abs().max() > 1e-4)
    assert moved > 6


def test_counting_the_words_shows_progress(config, rows):
    calls = []
    prepare(config, progress=lambda *call: calls.append(call))
    trained = round(0.95 * len(rows))  # the others are held out
    assert calls[-1] == ("words", trained, trained, "sentences")


def test_a_resumed_run_with_added_tokens_equals_an_uninterrupted_one(config):
    config = config.replace(lr_scheduler="constant", eval_every=4)
    whole = train(config.replace(name="whole")).folder
    part = train(config.replace(name="part", max_steps=4)).folder
    resumed = train(resumed_config(part, {"max_steps": 8}), resume=part).folder
    one, two = weights(resumed), weights(whole)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    tokenizers = [(folder / "last" / "tokenizer.json").read_bytes() for folder in (whole, resumed)]
    assert tokenizers[0] == tokenizers[1]


def test_resuming_refuses_other_words_to_add(config, monkeypatch):
    folder = train(config.replace(max_steps=2, lr_scheduler="constant")).folder
    settings = resumed_config(folder, {"max_steps": 4})
    true = vocabulary.count_words

    def others(*given):
        found = true(*given)
        found.divided.pop(0)
        return found

    monkeypatch.setattr(vocabulary, "count_words", others)
    with pytest.raises(InputError, match="--add-tokens selects other words than when the run began"):
        train(settings, resume=folder)


def test_a_masked_language_model_is_trained_with_added_tokens(config, masked_model):
    folder = train(config.replace(model=str(masked_model), loss_terms=("mlm",), max_steps=2)).folder
    encoder = load_encoder(find_model(str(folder / "last")), "avg")
    model, missing = encoder.masked_language_model()
    assert not missing
    assert model.get_output_embeddings().weight.shape[0] == 2012
    assert model.get_output_embeddings().bias.shape[0] == 2012


def test_export_to_onnx_uses_the_added_tokens(config, cse, rows):
    pytest.importorskip("onnxruntime")
    folder = train(config.replace(max_steps=1)).folder / "last"
    done = cse("export", folder, "--onnx")
    assert done.returncode == 0, done.stderr
    word = next(each for each in Encoder(folder).model.tokenizer.get_added_vocab() if each.isalnum())
    texts = [f"The {word.upper()} in a row", rows[0]]
    exported = Encoder(f"onnx:{folder}").encode(texts)
    np.testing.assert_allclose(exported, Encoder(folder).encode(texts), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_tokens": 10**6}, "divides only .* give at most"),
        ({"encoder_methods": ("lora",)}, "--add-tokens: adds word embeddings, which an encoder method .* not train"),
        ({"positive_encoder": "MODEL"}, "--positive-encoder: .* vocabulary of the run's encoder, which --add-tokens"),
    ],
)
def test_what_cannot_work_is_refused(config, changes, message):
    changes = {name: config.model if value == "MODEL" else value for name, value in changes.items()}
    if "encoder_methods" in changes:
        pytest.importorskip("peft")
    with pytest.raises(InputError, match=message) as caught:
        train(config.replace(**changes))
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_words_is_refused(tokenizer):
    from tokenizers import Tokenizer, models

    class Other:
        backend_tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))

    with pytest.raises(InputError, match="--model m: the tokenizer does not divide a text into words first"):
        count_words(Other(), [["a text"]], "--model m")


def test_a_negative_number_of_tokens_is_refused():
    with pytest.raises(InputError, match="--add-tokens"):
        TrainConfig(corpus="c.txt", add_tokens=-1)


def test_doctor_lists_the_divided_words_of_the_model(cse, corpus, rows, tiny_bert, tokenizer):
    done = cse("doctor", "--model", tiny_bert, corpus, "--top", 7, "--json")
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout)["model"], count_words(tokenizer, [rows], "test")
    assert found["tokens"] == sum(len(ids) - 2 for ids in tokenizer(rows)["input_ids"])
    assert (found["words"], found["divided_words"]) == (expected.words, len(expected.divided))
    assert [each["word"] for each in found["listed_words"]] == [each.word for each in expected.divided[:7]]
    assert found["listed_words"][0]["saved_share"] == expected.divided[0].saved / expected.tokens
    assert found["token_share_divided"] == pytest.approx(1 - expected.by_pieces[1] / expected.tokens)
    shown = cse("doctor", "--model", tiny_bert, corpus, "--top", 7)
    assert shown.returncode == 0, shown.stderr
    assert all(each.word in shown.stdout for each in expected.divided[:7])
    assert f"{expected.tokens:,} tokens" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top", 3), "--top: belongs to --model"),
        (("--model", "./none"), "./none: no such folder"),
        (("--model", "minilm", "-"), "--model: reads CORPUS twice"),
    ],
)
def test_doctor_refuses_options_that_cannot_work(cse, corpus, arguments, message):
    done = cse("doctor", corpus, *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_doctor_counts_words_of_a_file_with_invalid_utf8(cse, tmp_path, tiny_bert):
    (tmp_path / "c.txt").write_bytes(b"one good row here\nbroken \xff bytes\n")
    done = cse("doctor", tmp_path / "c.txt", "--model", tiny_bert, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["words"] == 6  # U+FFFD is removed by the normalizer
