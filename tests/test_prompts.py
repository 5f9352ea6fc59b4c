"""Tests of what models declare beside weights: prompts and templates, similarity, dimensions of Matryoshka training."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from commands import refuses
from cse import Encoder, SearchIndex, TrainConfig, train
from cse.encoder.prompts import template_of, templated
from cse.evaluation.retrieval import rank_documents
from cse.evaluation.run import open_suites
from cse.losses.contrastive import contrastive_loss
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, gathered_views
from cse.training.step.ranks import World
from cse.training.step.step import batch_step
from runs import first_batches
from sentence_models import TEXTS, agree, normalize, pooling, sentence_model
from test_cli import ran, refused
from test_retrieval import write

PROMPTS = {"query": "search for this : ", "document": "a text : ", "sts": "compare this "}


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_bert):
    """A function that makes a model with prompts, once per name; returns its folder and the `SentenceTransformer`."""
    made = {}

    def get(name, side="right", include=True, unit=True, prompts=PROMPTS, **settings):
        if name not in made:
            modules = [pooling("mean", include_prompt=include), *([normalize] if unit else [])]
            folder, kind = tmp_path_factory.mktemp("prompts") / name, "qwen3" if side == "left" else "bert"
            made[name] = folder, sentence_model(folder, tiny_bert, kind, modules, side, prompts=prompts, **settings)
        return made[name]

    return get


# ``include``: whether the tokens of the prompt are pooled; ``side``: the padding side.
CASES = {
    "plain": {},
    "not pooled": {"include": False},
    "not pooled with left padding": {"include": False, "side": "left"},
    "default prompt": {"default_prompt_name": "sts"},
    "default prompt but none for queries": {"default_prompt_name": "sts", "prompts": {"sts": "compare this "}},
}


@pytest.mark.parametrize("name", CASES)
def test_vectors_with_prompts_equal_those_of_sentence_transformers(models, name):
    folder, _ = models(name, **CASES[name])
    ours, theirs = Encoder(folder, device="cpu"), SentenceTransformer(str(folder), device="cpu")
    calls = [("encode", {}), ("encode", {"prompt": "now : "}), ("encode_query", {}), ("encode_document", {})]
    calls += [("encode", {"prompt_name": each}) for each in ours.prompts]
    for method, given in calls:
        np.testing.assert_allclose(*(getattr(each, method)(TEXTS, **given) for each in (ours, theirs)), atol=1e-5)
    prompted, bare = ours.encode(TEXTS, prompt_name="sts"), ours.encode(TEXTS, prompt="")
    assert np.abs(prompted - bare).max() > 1e-3
    for prompt in ("sts", "compare this "):
        assert np.array_equal(Encoder(folder, device="cpu", prompt=prompt).encode(TEXTS), prompted)


def test_unknown_prompt_names_and_invalid_templates_are_refused(models, tiny_bert):
    folder, _ = models("plain")
    refuses(r"--prompt: 'queri' is unknown \(did you mean query\?\)", Encoder, folder, device="cpu", prompt="queri")
    encode = Encoder(folder, device="cpu").encode
    refuses("prompt_name: 'passage' is unknown", encode, TEXTS, prompt_name="passage")
    refuses(r"has no named prompts; give the text.*'query: '", Encoder, tiny_bert, device="cpu", prompt="query")
    refuses(r"has \{text\} twice", lambda: Encoder(tiny_bert, device="cpu", prompt="{text} {text}").encode(["a"]))


TEXTS_BY_ID = {"d1": "the cat sat", "d2": "a dog ran far away", "d3": "rain in spring", "d4": "snow and ice in winter"}
QUERIES = {"q1": "cat", "q2": "winter snow"}


def retrieval_folder(folder):
    write(folder, [(key, "", text) for key, text in TEXTS_BY_ID.items()], QUERIES, {"q1": {"d1": 1}, "q2": {"d4": 1}})
    return TEXTS_BY_ID, QUERIES


def ranked(encoder):
    """Returns the documents of each query in their order, which is the same in retrieval and in a search index."""
    ranks = [*map(list, rank_documents(encoder, QUERIES, TEXTS_BY_ID))]
    index = SearchIndex.build(encoder, TEXTS_BY_ID.values(), ids=list(TEXTS_BY_ID))
    assert [[hit.id for hit in hits] for hits in index.search(QUERIES.values(), 4)] == ranks
    return ranks


def order_of(similarities):
    return [[list(TEXTS_BY_ID)[place] for place in np.argsort(-row)] for row in similarities]


def test_retrieval_uses_the_prompts_of_queries_and_documents(models):
    folder, theirs = models("plain")
    expected = theirs.encode_query(list(QUERIES.values())) @ theirs.encode_document(list(TEXTS_BY_ID.values())).T
    assert ranked(Encoder(folder, device="cpu")) == order_of(expected)


def test_similarity_is_the_dot_product_if_the_model_declares_it(models):
    folder, theirs = models("dot", unit=False, prompts={}, similarity_fn_name="dot")
    ours = Encoder(folder, device="cpu")
    assert ours.similarity_name == "dot"
    queries, texts = list(QUERIES.values()), list(TEXTS_BY_ID.values())
    expected = theirs.similarity(theirs.encode(queries), theirs.encode(texts)).numpy()
    np.testing.assert_allclose(ours.similarity(queries, texts), expected, rtol=1e-4)
    assert ranked(ours) == order_of(expected)
    norms = np.linalg.norm(theirs.encode(texts), axis=1)
    assert norms.max() - norms.min() > 1e-3  # with equal norms, cosines would be proportional to dot products


def test_commands_say_that_a_declared_distance_is_not_used(models, tmp_path, cse_here):
    folder, _ = models("far", unit=False, prompts={}, similarity_fn_name="euclidean")
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    pairs = "".join(f"{score}\tthe cat {score}\ta dog {score + 1}\n" for score in range(5))
    (tmp_path / "pairs.tsv").write_text(f"score\tsentence1\tsentence2\n{pairs}", encoding="utf8")
    note = f"{folder}: declares euclidean; ranked by cosine"
    for arguments in (
        ("eval", folder, "--data", "pairs.tsv"),
        ("compare", folder, folder, "--data", "pairs.tsv"),
        ("search", folder, "some.txt", "--query", "a cat"),
        ("compare", folder, "bm25", "some.txt", "--queries", "some.txt", "--pool", "pool.csv"),
    ):
        done = cse_here(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"{done.stdout}{done.stderr}".count(note) == 1, arguments


def test_commands_accept_the_option_prompt(models, tmp_path, cse_here):
    folder, theirs = models("plain")
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    ran(cse_here("encode", folder, "some.txt", "-o", "x.npy", "--prompt", "query", cwd=tmp_path))
    expected = theirs.encode(["the cat", "a dog"], prompt_name="query")
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)


@pytest.fixture
def config(models, run_config):
    values = {"positive": "spans", "batch_size": 4, "max_length": 12, "max_steps": 2, "eval_every": 0}
    return run_config.replace(model=str(models("plain")[0]), tfidf=None, **values)


def begin_with(batch, block, tokenizer, text):
    """Returns whether each row of a block has the tokens of ``text`` right after its first special token."""
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    return all(ids[1 : 1 + len(wanted)].tolist() == wanted for ids in batch.tokens[block]["input_ids"])


@pytest.mark.parametrize("una", [False, True])
def test_training_puts_the_prompt_before_every_text(config, short_corpus, una):
    config = config.replace(prompt="sts", tfidf=short_corpus.with_name("tfidf"), **({"una": True} if una else {}))
    run = prepare(config)
    batch = first_batches(run)[0]
    tokenizer = run.state.encoder.tokenizer
    assert "synthetic" in batch.blocks or not una
    for block in batch.blocks:
        assert begin_with(batch, block, tokenizer, "compare this")
    # The tokens of the prompt do not count towards the maximum length.
    words = len(tokenizer("compare this", add_special_tokens=False)["input_ids"])
    longest = max(int(each["attention_mask"].sum(1).max()) for each in batch.tokens.values())
    assert 12 < longest <= 12 + 1 + words
    assert run.state.encoder.prompt == "compare this "


def test_cached_tokens_include_the_prompt(config, tmp_path, monkeypatch, sample_rows):
    (tmp_path / "corpus.txt").write_text("\n".join(sample_rows[:200]) + "\n", encoding="utf8")
    values = {"corpus": (str(tmp_path / "corpus.txt"),), "cache": str(tmp_path / "cache")}
    config = config.replace(prompt="sts", positive="dropout", max_steps=None, epochs=1, batch_size=64, **values)
    runs = [prepare(config)]
    monkeypatch.setattr("cse.data.cache.IN_MEMORY_BYTES", 0)
    runs += [prepare(config), prepare(config.replace(prompt="query")), prepare(config.replace(prompt=""))]
    assert not runs[0].tokens
    assert all(run.tokens for run in runs[1:])
    ids = [first_batches(run)[0].tokens["anchor"]["input_ids"] for run in runs]
    assert torch.equal(ids[0], ids[1])
    assert not any(torch.equal(ids[0][:, 1:4], each[:, 1:4]) for each in ids[2:])


def test_prompt_auto_chooses_the_prompt_of_a_column_by_its_role(config, tmp_path):
    rows = [{"query": f"q {n} is it", "answer": f"yes {n} it is", "negative": f"no {n}"} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf8")
    pairs = {"pairs": (str(tmp_path / "pairs.jsonl"),), "corpus": (), "positive": None}
    run = prepare(config.replace(prompt="auto", **pairs))
    batch = first_batches(run)[0]
    begins = {"anchor": "search for this : q", "positive": "a text : yes", "hard_negative": "a text : no"}
    for block, prompt in begins.items():
        assert begin_with(batch, block, run.state.encoder.tokenizer, prompt)
    assert run.state.encoder.prompt == ""
    refuses("--prompt auto needs --pairs", prepare, config.replace(prompt="auto"))


@pytest.mark.parametrize(("given", "name"), [("sts", "sts"), ("of my own : ", "default"), ("", None)])
def test_a_trained_model_keeps_its_prompts_and_uses_the_given_one_by_default(config, given, name):
    best = train(config.replace(prompt=given)).folder / "best"
    settings = json.loads((best / "config_sentence_transformers.json").read_text())
    assert settings["default_prompt_name"] == name
    assert settings["prompts"] == {**PROMPTS, **({"default": given} if name == "default" else {})}
    agree(best, "encode_query")


def test_prompts_excluded_from_pooling_are_also_excluded_in_training(config, models):
    folder, theirs = models("not pooled", include=False)
    run = prepare(config.replace(model=str(folder), prompt="sts", positive="dropout", max_length=48))
    batch, encoder = first_batches(run)[0], run.state.encoder.eval()
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(encoder.embed(batch.tokens["anchor"]), dim=-1)
    expected = theirs.encode(batch.blocks["anchor"].texts, prompt_name="sts")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert isinstance(theirs[1], Pooling)
    # The loss term mlm passes the tokens to another model, which would refuse the mask of pooled tokens.
    config = config.replace(model=str(folder), prompt="sts", loss_terms=("mlm",), chunk_size=2)
    assert train(config).steps == 2


TEMPLATE = "This sentence : {text} means in one word :"


@pytest.fixture(scope="module", params=[("bert", "right"), ("qwen3", "left")])
def folder(request, tmp_path_factory, tiny_bert):
    """A model that pools the last token, padded on the right or, as decoders are, on the left."""
    kind, side = request.param
    place = tmp_path_factory.mktemp("last") / kind
    sentence_model(place, tiny_bert, kind, [pooling("lasttoken")], side)
    return place


def test_a_template_gives_the_vectors_of_the_whole_texts(folder):
    plain, given = Encoder(folder, device="cpu"), Encoder(folder, device="cpu", prompt=TEMPLATE)
    texts = [text for text in TEXTS if len(text) < 100]  # longer ones are truncated
    expected = plain.encode([TEMPLATE.replace("{text}", text) for text in texts])
    np.testing.assert_allclose(given.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(plain.encode(texts, prompt=TEMPLATE), expected, atol=1e-5)
    assert np.abs(plain.encode(texts) - expected).max() > 1e-3  # the tokenizer is as before


def test_only_the_text_in_a_template_is_truncated(folder):
    encoder = Encoder(folder, device="cpu")
    ids = encoder.tokenizer(TEMPLATE.replace("{text}", "a"))["input_ids"]
    template = template_of(TEMPLATE, encoder.tokenizer)
    assert [*template.prefix, *encoder.tokenizer("a", add_special_tokens=False)["input_ids"], *template.suffix] == ids
    with templated(encoder.tokenizer, TEMPLATE) as before:
        assert before == ""
        cut = encoder.tokenizer("a " * 200, truncation=True, max_length=20)["input_ids"]
    assert len(cut) == 20
    assert cut[: len(template.prefix)] == template.prefix
    assert cut[-len(template.suffix) :] == template.suffix


def test_a_model_trained_with_a_template_contains_it(folder, short_rows, tmp_path):
    values = {"model": str(folder), "max_steps": 2, "batch_size": 8, "output": str(tmp_path), "device": "cpu"}
    best = train(TrainConfig(prompt=TEMPLATE, **values), texts=short_rows[:100]).folder / "best"
    assert np.isfinite(agree(best)).all()
    ids = AutoTokenizer.from_pretrained(best)("a")["input_ids"]
    assert ids == Encoder(folder, device="cpu").tokenizer(TEMPLATE.replace("{text}", "a"))["input_ids"]


def test_a_tokenizer_of_bytes_keeps_the_space_before_the_text():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"\u0120a": len(letters)}
    backend = Tokenizer(BPE(vocabulary, [("\u0120", "a")]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    with templated(tokenizer, TEMPLATE):
        found = tokenizer("a b")["input_ids"]
    assert found == tokenizer(TEMPLATE.replace("{text}", "a b"))["input_ids"]
    assert tokenizer("a b")["input_ids"][0] == vocabulary["a"]


@pytest.fixture
def matryoshka(run_config, tmp_path, sample_rows):
    (tmp_path / "few.txt").write_text("\n".join(sample_rows[:60]) + "\n", encoding="utf8")
    values = {"corpus": str(tmp_path / "few.txt"), "pooler": "avg", "max_steps": 2, "eval_every": 0}
    return run_config.replace(loss_terms=("matryoshka",), dims="16,8,32", **values)


@pytest.fixture(scope="module")
def unit_model(tmp_path_factory, tiny_bert):
    folder = tmp_path_factory.mktemp("unit") / "model"
    sentence_model(folder, tiny_bert, modules=[pooling("mean"), normalize])
    return folder


def test_matryoshka_loss_is_the_sum_of_contrastive_losses_of_truncated_embeddings(matryoshka):
    run = prepare(matryoshka.replace(loss="focal"))
    state, inputs = run.state, Inputs(first_batches(run)[0], "cpu")
    for module in state.modules().values():
        module.eval()
    with torch.no_grad():
        views = gathered_views(state, inputs, run.forward, World())
        found = state.terms["matryoshka"](views, batch_step(state, inputs, run.forward, World()))
        settings = {"logits": "focal", "temperature": run.settings.loss.temperature, "keys": views.keys}
        expected = sum(
            contrastive_loss({name: z[:, :size] for name, z in views.embeddings.items()}, **settings)
            for size in (16, 8)  # the run's contrastive loss covers all 32 dimensions
        )
    torch.testing.assert_close(found, expected)


def test_a_saved_model_records_its_dimensions(matryoshka):
    best = train(matryoshka).folder / "best"
    assert json.loads((best / "config_sentence_transformers.json").read_text())["cse_dims"] == [32, 16, 8]
    card = (best / "README.md").read_text()
    assert "trained to be truncated to their first 16, 8 dimensions" in card
    assert "truncate_dim=8" in card
    theirs = SentenceTransformer(str(best), truncate_dim=8, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(Encoder(best, dims=8, device="cpu").encode(TEXTS), theirs, atol=1e-5)
    # A run without the Matryoshka loss does not record dimensions, even if it starts from this model.
    again = train(matryoshka.replace(model=str(best), loss_terms=(), options={}, name="again")).folder / "best"
    assert "cse_dims" not in json.loads((again / "config_sentence_transformers.json").read_text())
    assert "Matryoshka" not in (again / "README.md").read_text()


def test_truncated_embeddings_of_unit_length_are_normalised_again(unit_model):
    whole = Encoder(unit_model, device="cpu").encode(TEXTS)
    cut = Encoder(unit_model, device="cpu", dims=5)
    assert cut.embedding_dim == 5
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(cut.encode(TEXTS), expected, atol=1e-6)
    assert cut.encode([" "]).shape == (1, 5)


def test_a_stored_truncate_dim_is_applied_as_in_sentence_transformers(tmp_path, tiny_bert):
    folder = tmp_path / "model"
    sentence_model(folder, tiny_bert, modules=[pooling("mean"), normalize], truncate_dim=12)
    assert agree(folder).shape == (4, 12)
    assert Encoder(folder, device="cpu", dims=32).encode(TEXTS).shape == (4, 32)


def test_scores_with_dims_equal_those_of_truncated_encoders(unit_model, tmp_path, cse_here):
    retrieval_folder(tmp_path / "set")
    for dims in (4, 2):
        done = cse_here(
            "eval", unit_model, "--suite", "retrieval", "--data", tmp_path / "set", "--dims", dims, "--json"
        )
        assert done.returncode == 0, done.stderr
        (row,) = json.loads(done.stdout)["suites"]["retrieval"]["tasks"]
        encoder = Encoder(unit_model, device="cpu", dims=dims)
        (expected,) = open_suites(["retrieval"], str(tmp_path / "set"))["retrieval"](encoder).rows
        for name, value in expected.items():
            assert row[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value)


def test_commands_refuse_invalid_dimensions(unit_model, tmp_path, cse_here):
    rows = "score\tsentence1\tsentence2\n5\tthe cat sat\tthe cat sat .\n1\tdogs run\tsnow in winter\n"
    (tmp_path / "few.tsv").write_text(rows, encoding="utf8")
    scored, encoded = ("--data", "few.tsv"), ("few.tsv", "-o", "x.npy", "--column", "sentence1")
    for name, arguments, dims, message in (
        ("eval", scored, "64", "--dims 64: the embeddings of this model have 32"),
        ("eval", scored, "16,8", "--dims"),
        ("encode", encoded, "33", "--dims 33: the embeddings of this model have"),
        ("encode", encoded, "0", "--dims 0"),
    ):
        refused(cse_here(name, unit_model, *arguments, "--dims", dims, cwd=tmp_path), message)


def test_training_refuses_invalid_dimensions(matryoshka):
    for dims, message in (("64,8", "--dims 64: the embeddings have 32 dimensions"), ("8,-1", "--dims 8,-1 must be")):
        refuses(message, prepare, matryoshka.replace(options={"matryoshka": {"dims": dims}}))
    refuses("--dims belongs to a contrastive loss", matryoshka.replace, loss="mlm")
