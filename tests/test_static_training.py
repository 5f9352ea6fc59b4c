"""``cse train`` of static encoders: the model, the saved folder in three libraries, resuming, and refused methods."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import Tokenizer

from cse import Encoder, InputError, evaluate, train
from cse.evaluation.geometry import unit
from cse.models.reading.resolve import UNLIMITED, find_model
from cse.models.running.encoder import load_encoder
from cse.models.running.inference import Whitening
from cse.models.saving.onnx_export import export_onnx
from cse.models.vocabulary import add_words, count_words
from cse.reports.held_out import compare_models
from cse.reports.runs import read_run
from cse.training.batches.tokens import Prefetcher
from cse.training.settings.precedence import families
from cse.training.setup import prepare
from runs import gradients, killed_and_resumed_equals_uninterrupted

TEXTS = [
    "One.",
    "Another sentence, rather longer than the first.",
    "word " * 700,
    "Ünïcode, 12 x [PAD] [SEP] y",
    "\u200b",  # no tokens
    "[PAD]",  # a token whose vector is 0
]


def static_folder(folder, tokenizer, *stages, **settings):
    """Saves a static encoder as sentence-transformers does, with a vector of 0 for each special token."""
    torch.manual_seed(0)
    first = StaticEmbedding(tokenizer, embedding_dim=24)
    with torch.no_grad():
        first.embedding.weight[:5] = 0
    SentenceTransformer(modules=[first, *stages], device="cpu", **settings).save(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def static(tmp_path_factory, tiny_bert):
    tokenizer = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
    return static_folder(tmp_path_factory.mktemp("static") / "made", tokenizer, Normalize())


@pytest.fixture
def config(run_config, static):
    return run_config.replace(model=str(static), lr=1e-2)


def test_the_trained_model_computes_the_embeddings_of_the_static_encoder(static, sample_rows):
    encoder = load_encoder(find_model(str(static)), "avg").eval()
    texts = [*TEXTS, *sample_rows[:100]]
    np.testing.assert_allclose(
        encoder.encode(texts, batch_size=7), Encoder(static, device="cpu").encode(texts), atol=1e-5
    )
    nothing = encoder.encode(["\u200b", "\u2060"])  # a batch of no tokens
    np.testing.assert_array_equal(nothing, np.zeros((2, 24)))


def test_a_text_whose_vectors_are_all_0_has_a_gradient_of_0(static):
    encoder = load_encoder(find_model(str(static)), "avg").train()
    tokens = encoder.tokenizer(["[PAD]", "\u200b", "the cat"], padding=True, return_tensors="pt")
    z = torch.nn.functional.normalize(encoder(dict(tokens)), dim=-1)
    z.square()[:, :3].sum().backward()
    gradient = encoder.backbone.embeddings.weight.grad
    used = encoder.tokenizer("the cat")["input_ids"]
    assert gradient[used].abs().sum() > 0
    gradient[used] = 0
    assert not gradient.any()


def test_dropout_removes_whole_tokens_of_each_row_and_keeps_their_mean(static):
    encoder = load_encoder(find_model(str(static)), "avg").train()
    ids = torch.arange(5, 205).repeat(50, 1)
    states, vectors = encoder.backbone(ids).last_hidden_state, encoder.backbone.embeddings(ids)
    kept = states.abs().sum(-1) > 0
    torch.testing.assert_close(states[kept], vectors[kept] / 0.9)
    assert 0.88 < kept.float().mean() < 0.92
    assert (kept[0] != kept[1]).any()


@pytest.mark.parametrize("stages", [False, True])
def test_a_trained_static_encoder_is_loaded_by_the_three_libraries(config, tiny_bert, tmp_path, sample_rows, stages):
    """With a Dense module, which model2vec does not have, model2vec refuses the folder."""
    if stages:
        tokenizer = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
        modules = [Dense(24, 12, activation_function=torch.nn.Tanh()), Normalize()]
        folder = static_folder(tmp_path / "made", tokenizer, *modules, prompts={"query": "find: "})
        config = config.replace(model=str(folder))
    result = train(config.replace(loss_terms=("matryoshka",), matryoshka={"dims": (12, 6)}))
    for name in ("best", "last"):
        folder = result.folder / name
        ours = Encoder(folder, device="cpu").encode(TEXTS[:4])
        assert np.abs(ours - Encoder(config.model, device="cpu").encode(TEXTS[:4])).max() > 1e-2
        theirs = SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS[:4]), ours, atol=1e-5)
        again = load_encoder(find_model(str(folder)), "avg").eval()
        np.testing.assert_allclose(again.encode(TEXTS[:4]), ours, atol=1e-5)
        assert find_model(str(folder)).family == "static"
        settings = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf8"))
        assert settings["cse_dims"][-1] == 6
        card = (folder / "README.md").read_text(encoding="utf8")
        assert "a vector for each token, and no transformer" in card
        assert "AutoModel" not in card
        assert ("model2vec" in card) != stages
        model2vec = pytest.importorskip("model2vec")
        if stages:
            assert theirs.encode_query("a cat").shape == (12,)
            assert theirs.prompts["query"] == "find: "
            with pytest.raises(Exception, match="embeddings"):
                model2vec.StaticModel.from_pretrained(folder)
        else:
            found = model2vec.StaticModel.from_pretrained(folder)
            np.testing.assert_allclose(found.encode(TEXTS[:4]), ours, atol=1e-5)


def test_model2vecs_weights_and_mapping_are_folded_into_the_vectors(static, config, tmp_path):
    from safetensors.torch import save_file

    rows, mapping, weights = torch.randn(7, 16), torch.randint(0, 7, (2000,)), torch.rand(2000)
    folder = tmp_path / "mapped"
    SentenceTransformer(str(static), device="cpu").save(str(folder), create_model_card=False)
    part = next(folder.glob("0_*"), folder)
    save_file({"embeddings": rows, "mapping": mapping, "weights": weights}, part / "model.safetensors")
    encoder = load_encoder(find_model(str(folder)), "avg").eval()
    np.testing.assert_allclose(encoder.encode(TEXTS), Encoder(folder, device="cpu").encode(TEXTS), atol=1e-5)
    torch.testing.assert_close(encoder.backbone.embeddings.weight.detach(), rows[mapping] * weights[:, None])
    train(config.replace(model=str(folder), max_steps=2, eval_every=0))


def test_a_stored_truncation_is_kept(config, static, tmp_path):
    folder = tmp_path / "cut"
    SentenceTransformer(str(static), device="cpu").save(str(folder), create_model_card=False)
    path = next(folder.rglob("tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(40)
    tokenizer.save(str(path))
    source = find_model(str(folder))
    assert (source.max_length, find_model(str(static)).max_length) == (40, UNLIMITED)
    texts = [" ".join(f"w{n}" for n in range(100)), "one two"]
    found = load_encoder(source, "avg").eval().encode(texts)
    np.testing.assert_allclose(found, Encoder(folder, device="cpu").encode(texts), atol=1e-5)
    result = train(config.replace(model=str(folder), max_steps=2, eval_every=0, lr=1e-12))
    np.testing.assert_allclose(Encoder(result.folder / "last", device="cpu").encode(texts), found, atol=1e-5)
    with pytest.raises(InputError, match="--max-length: 41 is more than the 40 tokens"):
        prepare(config.replace(model=str(folder), max_length=41))


def test_training_lowers_the_loss(config):
    def losses(lr):  # of the same batches
        result = train(config.replace(max_steps=120, eval_every=0, batch_size=32, log_every=1, lr=lr, name=f"lr{lr}"))
        records = map(json.loads, (result.folder / "log.jsonl").read_text(encoding="utf8").splitlines())
        return [record["loss"] for record in records if "loss" in record]

    trained, untrained = losses(1e-2), losses(1e-12)
    assert trained[0] == untrained[0]
    assert np.mean(trained[-40:]) < 0.9 * np.mean(untrained[-40:])


def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(config, tmp_path):
    config = config.replace(loss="focal", loss_terms=("keep-similarities",), save_every=2, log_every=100)
    killed_and_resumed_equals_uninterrupted(config, tmp_path)


def test_chunks_give_the_gradients_of_the_whole_batch(config):
    run = prepare(config)
    run.state.encoder.double().eval()  # without dropout, whose masks are drawn per chunk
    for term in run.state.terms.values():
        term.double().eval()
    with Prefetcher(run.batches, run.state.encoder.tokenizer, run.config.max_length) as prefetcher:
        batches = prefetcher.get(0)
    expected, _ = gradients(run, batches)
    found, _ = gradients(run, batches, chunk_size=4)
    assert found.keys() == expected.keys() == {"encoder.backbone.embeddings.weight"}
    for name, gradient in found.items():
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)


def test_the_average_with_the_base_is_saved(config):
    trained = [train(config.replace(name=f"run{share}", eval_every=0, merge_with_base=share)) for share in (0.0, 0.25)]
    base = load_encoder(find_model(config.model), "avg").backbone.embeddings.weight
    alone, merged = (
        load_encoder(find_model(str(each.folder / "last")), "avg").backbone.embeddings.weight for each in trained
    )
    torch.testing.assert_close(merged, 0.75 * alone + 0.25 * base)


# Settings of runs, and what the error says; None: the run works.
SETTINGS = {
    "dropout as positive": ({"positive": "dropout"}, None),
    "dropout of a view": ({"positive": "dropout", "anchor_dropout": 0.3}, None),
    "synthetic negatives": ({"negatives": ("una",), "una": {"every": 1}}, None),
    "edited positives": ({"positive": "one-of", "loss_terms": ("augcse",)}, None),
    "gaussian": ({"feature_augmentations": ("gaussian",)}, None),
    "dclr": ({"feature_augmentations": ("dclr",), "dclr": {"model": "STATIC"}}, None),
    "modals": ({"feature_augmentations": ("modals",)}, None),
    "momentum": ({"feature_augmentations": ("momentum",)}, None),
    "projector": ({"feature_augmentations": ("projector",)}, None),
    "ema": ({"encoder_methods": ("ema",)}, None),
    "feature cut-off": ({"anchor_hook": "feature-cutoff"}, None),
    "token cut-off": ({"anchor_hook": "token-cutoff", "positive_hook": "token-cutoff"}, None),
    "scd": ({"loss": "scd"}, None),
    "mixed": ({"loss": "mixed"}, None),
    "chunks": ({"chunk_size": 3}, None),
    "accumulated": ({"accumulate": 2}, None),
    "bf16": ({"precision": "bf16"}, None),
    "prompt": ({"prompt": "about: "}, None),
    "added tokens": ({"add_tokens": 3}, None),
    "second encoder": ({"positive_encoder": "STATIC"}, None),
    "copied encoder": ({"positive_encoder": "copy"}, None),
    "lora": ({"encoder_methods": ("lora",)}, "--encoder-method lora: needs a transformer"),
    "promptbert": ({"encoder_methods": ("prompt",)}, "--encoder-method prompt: needs a transformer"),
    "positions": ({"anchor_hook": "token-shuffle"}, "--anchor-hook token-shuffle: needs a transformer"),
    "pca": ({"positive_hook": "pca"}, "--positive-hook pca: needs a transformer"),
    "mlm": ({"loss_terms": ("mlm",)}, "--loss-term mlm: needs a transformer"),
    "diffcse": ({"loss_terms": ("diffcse",)}, "--loss-term diffcse: needs a transformer"),
    "cls": ({"pooler": "cls"}, r"--pooler cls: the embedding of .*, a static encoder, is the mean"),
    "max": ({"eval_pooler": "max"}, r"--pooler max: the embedding of .*, a static encoder, is the mean"),
    "head": ({"keep_head": True}, "--keep-head: --pooler avg has no MLP head to keep; leave it out"),
    "adapt": ({"preset": "adapt"}, "--preset adapt: .* is a static encoder, which needs a larger learning rate"),
    "simcse": ({"preset": "simcse-bert-base", "pooler": "avg"}, "--preset simcse-bert-base: .* is a static encoder"),
    "transformer": ({"positive_encoder": "BERT"}, "--positive-encoder: .* needs other special tokens than"),
}


def test_adding_tokens_keeps_the_embeddings_of_texts(static, sample_rows):
    before, after = (load_encoder(find_model(str(static)), "avg").eval() for _ in range(2))
    words = count_words(after.tokenizer, [sample_rows], "test").most_saving(5, "m")
    add_words(after.tokenizer, after.backbone, words, "test", summed=True)
    texts = [text for text in sample_rows if any(each.word in text.lower().split() for each in words)]
    assert len(texts) > 3
    np.testing.assert_allclose(*(unit(each.encode(texts)) for each in (before, after)), atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_methods_work_or_are_refused_in_one_sentence(config, static, tiny_bert, name):
    settings, error = SETTINGS[name]
    places = {"STATIC": str(static), "BERT": str(tiny_bert)}
    settings = {
        key: {k: places.get(v, v) for k, v in value.items()}
        if isinstance(value, dict)
        else places.get(value, value)
        if isinstance(value, str)
        else value
        for key, value in settings.items()
    }
    if "preset" in settings:
        config = type(config)(**{**config.values(), **settings, "lr": None})
    else:
        config = config.replace(max_steps=2, eval_every=0, **settings)
    if error is not None:
        with pytest.raises(InputError, match=error) as caught:
            train(config)
        assert "\n" not in str(caught.value)
        return
    folder = train(config).folder / "last"
    vectors = Encoder(folder, device="cpu").encode(TEXTS[:4])
    assert np.isfinite(vectors).all()
    assert np.abs(vectors - Encoder(static, device="cpu").encode(TEXTS[:4])).max() > 1e-5
    if name == "added tokens":
        tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
        assert tokens == Tokenizer.from_file(str(next(static.rglob("tokenizer.json")))).get_vocab_size() + 3
        np.testing.assert_allclose(SentenceTransformer(str(folder)).encode(TEXTS[:4]), vectors, atol=1e-5)


def test_the_defaults_are_those_of_the_family(config, short_corpus, static):
    run = prepare(type(config)(corpus=str(short_corpus), model=str(static), output=config.output, device="cpu"))
    for name, value in families()["static"].items():
        if name not in ("merge_with_base", "temperature", "spans"):
            assert getattr(run.config, name) == value
    assert run.facts["recipe"] == "defaults of static"


def test_later_commands_accept_the_run(config, static, tmp_path, cse):
    folder = train(config).folder
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    report = evaluate(folder, "sts", pairs, device="cpu")
    assert report.pooling.startswith("mean of the vectors of the tokens")
    compared = compare_models(read_run(folder), device="cpu")
    texts = list(compared.before)
    np.testing.assert_allclose(
        np.stack([compared.before[text] for text in texts]), Encoder(static, device="cpu").encode(texts), atol=1e-6
    )
    with pytest.raises(InputError, match="is a static encoder, without a transformer to export; use it as it is"):
        export_onnx(str(folder))
    done = cse("report", folder)
    assert done.returncode == 0
    assert "left out" not in done.stderr
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    found = Whitening(f"{folder / 'best'}@{tmp_path / 'some.txt'}", "cpu").files()
    assert {path.name for path in found} >= {"some.txt", "model.safetensors", "tokenizer.json"}


def test_adapt_trains_a_static_encoder_with_its_own_recipe(static, short_corpus, tmp_path, cse):
    given = ("adapt", short_corpus, "--model", static, "-o", "adapted", "--batch-size", 8, "--query", "a", "--json")
    for steps in (2, 4):  # the second call extends the training
        done = cse(*given, "--max-steps", steps, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["run"]["steps"] == steps
        assert found["before"]
        assert found["after"]
    settings = tomllib.loads((tmp_path / "adapted/run/config.toml").read_text(encoding="utf8"))
    assert settings["lr"] == families()["static"]["lr"]


def test_a_tokenizer_without_special_tokens_is_refused(tmp_path):
    from tokenizers import models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"the": 0, "cat": 1}, unk_token="the"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    model.save(str(tmp_path / "made"), create_model_card=False)
    source = find_model(str(tmp_path / "made"))
    with pytest.raises(InputError, match="its tokenizer has no special token to pad with"):
        load_encoder(source, "avg")
    broken = replace(source, path=str(tmp_path))
    with pytest.raises(InputError, match="the StaticEmbedding cannot be loaded"):
        load_encoder(broken, "avg")
