"""Tests of prompts in encoding, retrieval, training and saved models, and of similarity by dot product."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from cse import Encoder, InputError, train
from cse.evaluation.retrieval import rank_documents
from cse.training.setup import prepare
from runs import first_batches
from sentence_models import sentence_model
from test_modules import TEXTS, pooling
from test_retrieval import write

PROMPTS = {"query": "search for this : ", "document": "a text : ", "sts": "compare this "}


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_bert):
    """A function that makes a model with prompts, once per name; returns its folder and the `SentenceTransformer`."""
    made = {}

    def get(name, side="right", include=True, normalize=True, prompts=PROMPTS, **settings):
        if name not in made:
            modules = [pooling("mean", include_prompt=include), *([lambda width: Normalize()] if normalize else [])]
            folder = tmp_path_factory.mktemp("prompts") / name
            architecture = "qwen3" if side == "left" else "bert"
            made[name] = (
                folder,
                sentence_model(folder, tiny_bert, architecture, modules, side, prompts=prompts, **settings),
            )
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
    pairs = [
        (ours.encode(TEXTS), theirs.encode(TEXTS)),
        (ours.encode(TEXTS, prompt="now : "), theirs.encode(TEXTS, prompt="now : ")),
        (ours.encode_query(TEXTS), theirs.encode_query(TEXTS)),
        (ours.encode_document(TEXTS), theirs.encode_document(TEXTS)),
    ]
    pairs += [(ours.encode(TEXTS, prompt_name=p), theirs.encode(TEXTS, prompt_name=p)) for p in ours.prompts]
    for own, other in pairs:
        np.testing.assert_allclose(own, other, atol=1e-5)
    prompted, bare = ours.encode(TEXTS, prompt_name="sts"), ours.encode(TEXTS, prompt="")
    assert np.abs(prompted - bare).max() > 1e-3
    again = Encoder(folder, device="cpu", prompt="sts")
    assert np.array_equal(again.encode(TEXTS), prompted)
    assert np.array_equal(Encoder(folder, device="cpu", prompt="compare this ").encode(TEXTS), prompted)


def test_unknown_prompt_names_are_refused(models, tiny_bert):
    folder, _ = models("plain")
    with pytest.raises(InputError, match=r"--prompt: 'queri' is unknown \(did you mean query\?\)"):
        Encoder(folder, device="cpu", prompt="queri")
    with pytest.raises(InputError, match="prompt_name: 'passage' is unknown"):
        Encoder(folder, device="cpu").encode(TEXTS, prompt_name="passage")
    with pytest.raises(InputError, match=r"has no named prompts; give the text.*'query: '"):
        Encoder(tiny_bert, device="cpu", prompt="query")


def retrieval_folder(folder):
    texts = {"d1": "the cat sat", "d2": "a dog ran far away", "d3": "rain in spring", "d4": "snow and ice in winter"}
    queries = {"q1": "cat", "q2": "winter snow"}
    write(folder, [(key, "", text) for key, text in texts.items()], queries, {"q1": {"d1": 1}, "q2": {"d4": 1}})
    return texts, queries


def test_retrieval_uses_the_prompts_of_queries_and_documents(models, tmp_path, cse):
    folder, theirs = models("plain")
    texts, queries = retrieval_folder(tmp_path / "set")
    expected = theirs.encode_query(list(queries.values())) @ theirs.encode_document(list(texts.values())).T
    order = [[list(texts)[place] for place in np.argsort(-row)] for row in expected]
    assert [*map(list, rank_documents(Encoder(folder, device="cpu"), queries, texts))] == order
    done = cse("eval", folder, "--suite", "retrieval", "--data", tmp_path / "set", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["suites"]["retrieval"]["tasks"][0]["mrr@10"]
    ranks = [row.index(right) + 1 for row, right in zip(order, ("d1", "d4"), strict=True)]
    assert found == pytest.approx(100 * np.mean([1 / rank for rank in ranks]))


def test_similarity_is_the_dot_product_if_the_model_declares_it(models, tmp_path):
    folder, theirs = models("dot", normalize=False, prompts={}, similarity_fn_name="dot")
    texts, queries = retrieval_folder(tmp_path / "set")
    ours = Encoder(folder, device="cpu")
    assert ours.similarity_name == "dot"
    asked, queries = queries, list(queries.values())
    expected = theirs.similarity(theirs.encode(queries), theirs.encode(list(texts.values()))).numpy()
    np.testing.assert_allclose(ours.similarity(queries, list(texts.values())), expected, rtol=1e-4)
    order = [[list(texts)[place] for place in np.argsort(-row)] for row in expected]
    assert [*map(list, rank_documents(ours, asked, texts))] == order
    norms = np.linalg.norm(theirs.encode(list(texts.values())), axis=1)
    assert norms.max() - norms.min() > 1e-3  # with equal norms, cosines would be proportional to dot products


def test_encode_eval_and_compare_accept_the_option_prompt(models, tmp_path, cse):
    folder, theirs = models("plain")
    (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
    done = cse("encode", folder, "some.txt", "-o", "x.npy", "--prompt", "query", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "x.npy"), theirs.encode(["the cat", "a dog"], prompt_name="query"), atol=1e-5
    )
    (tmp_path / "pairs.tsv").write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    scores = []
    for prompt in ("sts", ""):
        done = cse("eval", folder, "--data", "pairs.tsv", "--prompt", prompt, "--json", cwd=tmp_path)
        scores.append(json.loads(done.stdout)["suites"]["sts"]["tasks"][0])
    assert scores[0] != scores[1]
    done = cse("compare", folder, folder, "--data", "pairs.tsv", "--prompt", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert "choose one of" in done.stderr, done.stderr


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
    for block, prompt in {
        "anchor": "search for this : q",
        "positive": "a text : yes",
        "hard_negative": "a text : no",
    }.items():
        assert begin_with(batch, block, run.state.encoder.tokenizer, prompt)
    assert run.state.encoder.prompt == ""
    with pytest.raises(InputError, match="--prompt auto needs --pairs"):
        prepare(config.replace(prompt="auto"))


@pytest.mark.parametrize(("given", "name"), [("sts", "sts"), ("of my own : ", "default"), ("", None)])
def test_a_trained_model_keeps_its_prompts_and_uses_the_given_one_by_default(config, given, name):
    best = train(config.replace(prompt=given)).folder / "best"
    settings = json.loads((best / "config_sentence_transformers.json").read_text())
    assert settings["default_prompt_name"] == name
    assert settings["prompts"] == {**PROMPTS, **({"default": given} if name == "default" else {})}
    ours, theirs = Encoder(best, device="cpu"), SentenceTransformer(str(best), device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    np.testing.assert_allclose(ours.encode_query(TEXTS), theirs.encode_query(TEXTS), atol=1e-5)


def test_prompts_excluded_from_pooling_are_also_excluded_in_training(config, models):
    folder, theirs = models("not pooled", include=False)
    run = prepare(config.replace(model=str(folder), prompt="sts", positive="dropout", max_length=48))
    batch, encoder = first_batches(run)[0], run.state.encoder.eval()
    with torch.no_grad():
        vectors = torch.nn.functional.normalize(encoder(batch.tokens["anchor"]), dim=-1)
    expected = theirs.encode(batch.blocks["anchor"].texts, prompt_name="sts")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert isinstance(theirs[1], Pooling)
    # The loss term mlm passes the tokens to another model, which would refuse the mask of pooled tokens.
    config = config.replace(model=str(folder), prompt="sts", loss_terms=("mlm",), chunk_size=2)
    assert train(config).steps == 2
