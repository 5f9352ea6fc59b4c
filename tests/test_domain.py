"""The benchmark of training recipes for in-domain documents: methods, collections, label-free scores, and tables."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

BENCHES = Path(__file__).resolve().parents[1] / "benches"
DOMAIN = BENCHES / "domain"
IMPORTS = tuple(str(DOMAIN / name) for name in ("domain_methods.py", "domain_texts.py", "domain_distil.py"))

if not BENCHES.is_dir():
    pytest.skip("there is no benches/ folder", allow_module_level=True)
sys.path[:0] = [str(BENCHES), str(DOMAIN)]

names = (
    "convert_collections",
    "domain_distil",
    "domain_methods",
    "domain_scores",
    "domain_tables",
    "domain_texts",
    "domain_candidates",
)
convert_collections, domain_distil, domain_methods, domain_scores, domain_tables, domain_texts, domain_candidates = map(
    import_module, names
)
CANDIDATES, settings_of = domain_candidates.CANDIDATES, domain_candidates.settings_of


def step_with(vectors, rows=None):
    """Returns a step that encodes each block as ``vectors[block]``, whichever model is given."""
    rows = torch.arange(len(next(iter(vectors.values())))) if rows is None else rows
    return SimpleNamespace(rows=rows, encode=lambda block, model: vectors[block])


def method(kind, options=None, **context):
    trained = torch.nn.Linear(4, 4)
    return kind(options or kind.Options(), SimpleNamespace(trained=trained, **context))


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.mark.parametrize("which", ["anchor", "both", "cross"])
def test_the_keep_term_is_the_divergence_from_the_similarities_of_the_base_model(which):
    from cse.views import Views

    old = {"anchor": drawn(5, 4), "positive": drawn(5, 3, 4)[:, 0]}
    new = {"anchor": drawn(5, 2, 4)[:, 0], "positive": drawn(5, 6, 4)[:, 1]}
    options = domain_methods.KeepOptions(weight=2.0, temperature=0.3, views=which)
    found = method(domain_methods.Keep, options)(Views(new), step_with(old))

    def divergence(first, second):
        total = 0.0
        for i in range(5):
            others = [j for j in range(5) if j != i]
            p, q = (
                np.array([float(normalize(side[first][i], dim=0) @ normalize(side[second][j], dim=0)) for j in others])
                for side in (old, new)
            )
            p, q = (np.exp(each / 0.3) / np.exp(each / 0.3).sum() for each in (p, q))
            total += float((p * np.log(p / q)).sum()) / 5
        return total

    pairs = {"anchor": ["aa"], "both": ["aa", "pp"], "cross": ["ap"]}[which]
    names = {"a": "anchor", "p": "positive"}
    assert float(found) == pytest.approx(2 * np.mean([divergence(names[a], names[b]) for a, b in pairs]), rel=1e-6)
    assert float(method(domain_methods.Keep, options)(Views(old), step_with(old))) == pytest.approx(0, abs=1e-12)


def test_the_guided_method_masks_negatives_closer_to_the_anchor_than_the_positive_in_the_base_model():
    from cse.views import Views

    old = {name: drawn(6, number + 1, 4)[:, 0] for number, name in enumerate(("anchor", "positive", "synthetic"))}
    found = method(domain_methods.Guided)(Views(old), step_with(old)).log_weights
    unit = {name: normalize(each, dim=-1) for name, each in old.items()}
    masked = 0
    for name in ("positive", "synthetic"):
        for i in range(6):
            for j in range(6):
                closer = unit["anchor"][i] @ unit[name][j] > unit["anchor"][i] @ unit["positive"][i]
                removed = bool(closer) and not (name == "positive" and i == j)
                assert found["anchor", name][i, j] == (-torch.inf if removed else 0)
                masked += removed
    assert 0 < masked < 60


@pytest.mark.parametrize(
    "name",
    [
        "documents, kept with TF-IDF .3, no UNA",
        "documents, mined by TF-IDF, kept",
        "documents, near base",
        "short cuts, distilled with TF-IDF .5, lr 2e-5",
        "documents, frozen embeddings and 3 layers",
        "documents, guided",
    ],
)
def test_only_recipes_with_freeze_leave_lower_layers_unchanged(name, run_config):
    from cse import train

    settings = settings_of(name, 2)
    del settings["rows"]
    given = {**run_config.values(), **settings, "batch_size": 8, "max_length": 16, "imports": IMPORTS}
    if "freeze" in settings:
        given["freeze"] = {"layers": 1}
    result = train(type(run_config)(**given))
    assert result.steps == 2
    from safetensors.torch import load_file

    before = load_file(Path(run_config.model) / "model.safetensors")
    after = load_file(result.folder / "last" / "model.safetensors")
    same = {key for key in after if torch.equal(after[key], before[key].float())}
    lower = {key for key in after if key.startswith(("embeddings.", "encoder.layer.0."))}
    assert (lower <= same) == ("freeze" in settings)
    assert any(key.startswith("encoder.layer.1.") for key in set(after) - same)


def test_all_candidate_recipes_have_valid_settings(sample):
    from cse import TrainConfig

    for name in CANDIDATES:
        settings = settings_of(name)
        del settings["rows"]
        TrainConfig(corpus=str(sample), model="minilm", imports=IMPORTS, **settings)


def test_the_distil_term_is_the_divergence_from_mixed_base_model_and_lexical_similarities(sample_rows):
    from cse.views import Views

    def tokenizer(texts, **_):
        return {"input_ids": [[3 + int(word) for word in text.split()] for text in texts]}

    class Tokenizer:
        all_special_ids: ClassVar = [0, 1, 2]
        __call__ = staticmethod(tokenizer)

        def __len__(self):
            return 8

    texts = ["0 1 2", "0 0 3", "0 4"]
    words = domain_distil.WordPieces(Tokenizer(), texts)
    ids = torch.tensor([[1, 3, 3, 6, 2, 0], [1, 3, 7, 2, 0, 0]])
    idf = np.log(4 / (1 + np.array([0, 0, 0, 3, 1, 1, 1, 1])))
    first, second = np.zeros(8), np.zeros(8)
    first[3], first[6] = np.log(3) * idf[3], np.log(2) * idf[6]
    second[3], second[7] = np.log(2) * idf[3], np.log(2) * idf[7]
    wanted = [each / np.linalg.norm(each) for each in (first, second)]
    assert words({"input_ids": ids}).numpy() == pytest.approx(np.array(wanted), abs=1e-6)

    trained = torch.nn.Linear(4, 4)
    trained.tokenizer = Tokenizer()
    corpus = type("Rows", (), {"take": lambda self, rows: texts, "__len__": lambda self: 3})()
    options = domain_distil.DistilOptions(weight=3.0, temperature=0.2, lexical=0.25)
    term = domain_distil.Distil(options, SimpleNamespace(trained=trained, corpus=corpus))
    base = {name: drawn(5, number + 2, 4)[:, 0] for number, name in enumerate(("anchor", "positive", "synthetic"))}
    common = {name: drawn(5, number + 5, 7)[:, 0] for number, name in enumerate(("anchor", "positive", "synthetic"))}
    new = {name: drawn(5, number + 9, 4)[:, 0] for number, name in enumerate(("anchor", "positive", "synthetic"))}
    step = SimpleNamespace(encode=lambda block, model: (base if model is term.base else common)[block])

    def cosines(side):
        unit = {name: (each / each.norm(dim=-1, keepdim=True)).numpy() for name, each in side.items()}
        return unit["anchor"] @ np.vstack([unit["positive"], unit["synthetic"]]).T

    p, q = np.exp((0.75 * cosines(base) + 0.25 * cosines(common)) / 0.2), np.exp(cosines(new) / 0.2)
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    assert float(term(Views(new), step)) == pytest.approx(3 * (p * np.log(p / q)).sum(1).mean(), rel=1e-6)


def texts_of(kind, options, sample_rows, sample_index):
    from cse.data.corpus import Corpus
    from cse.rng import Draws

    corpus = Corpus.from_texts(sample_rows[:60])
    context = SimpleNamespace(index=sample_index, corpus=corpus, rows=np.arange(50))
    rows = np.arange(40)
    return corpus.take(rows), kind(options, context)(corpus.take(rows), rows, Draws(3, 1))


@pytest.mark.parametrize("kind", ["words", "ordered", "span"])
def test_queries_made_from_a_document_consist_of_its_words(kind, sample_rows, sample_index):
    options = domain_texts.SearchOptions(kind=kind, fewest=3, most=5)
    texts, paired = texts_of(domain_texts.Search, options, sample_rows, sample_index)
    assert paired.positives == texts
    for text, search in zip(texts, paired.anchors, strict=True):
        terms = [term for _, _, term in sample_index.tokenize(text)]
        words = [term for _, _, term in sample_index.tokenize(search)]
        assert words
        assert set(words) <= set(terms)
        assert len(words) <= 5 or search == text
        if kind == "ordered":
            places = [terms.index(word) for word in words]
            # ``places`` holds first occurrences, but a repeated word may have been drawn at a later place.
            assert places == sorted(places) or len(set(terms)) < len(terms)
        if kind == "span":
            assert search in text


def test_neighbours_are_adjacent_passages_and_cuts_have_the_given_lengths(sample_rows, sample_index):
    options = domain_texts.NeighboursOptions(words=6)
    texts, paired = texts_of(domain_texts.Neighbours, options, sample_rows, sample_index)
    for text, first, second in zip(texts, paired.anchors, paired.positives, strict=True):
        assert f"{first} {second}".strip() in " ".join(text.split()) or len(text.split()) < 2
        assert len(first.split()) <= 6 >= len(second.split())
    options = domain_texts.CutsOptions(shortest=3, longest=5)
    texts, paired = texts_of(domain_texts.Cuts, options, sample_rows, sample_index)
    for text, first in zip(texts, paired.anchors, strict=True):
        assert first in " ".join(text.split())
        assert min(3, len(text.split())) <= len(first.split()) <= 5


def test_mined_documents_are_training_rows_in_the_rank_window(sample_rows, sample_index):
    options = domain_texts.MinedOptions(first=2, last=4)
    texts, mined = texts_of(domain_texts.Mined, options, sample_rows, sample_index)
    vectors = sample_index.transform(sample_rows[:60]).toarray()
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    for row, (text, other) in enumerate(zip(texts, mined, strict=True)):
        cosines = vectors[:50] @ vectors[row]
        cosines[row] = -1
        window = np.sort(cosines)[::-1][1:4]
        assert other != text
        assert window[-1] - 1e-9 <= cosines[sample_rows[:50].index(other)] <= window[0] + 1e-9


def test_converted_collections_can_be_read_by_the_retrieval_evaluation(tmp_path):
    from cse.evaluation.retrieval import Retrieval, RetrievalOptions

    (tmp_path / "MED.ALL").write_text(".I 1\n.W\na blood\n  cell .\n.I 2\n.W\nlungs\n")
    (tmp_path / "MED.QRY").write_text(".I 1\n.W\n cells\n.I 2\n.W\nnothing\n")
    (tmp_path / "MED.REL").write_text("1 0 2 1\n1 0 1 1\n")
    articles = "".join(f"*TEXT {n + 17:03d} 01/04/63 PAGE 020\n\nARTICLE\n\nNUMBER {n} .\n" for n in range(423))
    (tmp_path / "TIME.ALL").write_text(articles + "*STOP\n")
    (tmp_path / "TIME.QUE").write_text("*FIND    1\n\n FIRST\n\n*FIND    2\n\n SECOND\n*STOP\n")
    (tmp_path / "TIME.REL").write_text("1  3 425\n\n2\n")
    sys.argv = ["convert_collections.py", str(tmp_path), str(tmp_path / "out")]
    convert_collections.main()
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "medline"))
    assert read.documents == {"1": "a blood cell .", "2": "lungs"}
    assert read.queries == {"1": "cells"}
    assert read.judgements == {"1": {"1": 1, "2": 1}}
    read = Retrieval(RetrievalOptions(), str(tmp_path / "out" / "time"))
    assert len(read.documents) == 423
    assert read.documents["371"] == "ARTICLE NUMBER 370 ."
    assert read.documents["425"] == "ARTICLE NUMBER 422 ."
    assert read.judgements == {"1": {"3": 1, "425": 1}}


class Hashed:
    """An encoder that sums random word vectors, which depend only on the seed and the word."""

    def __init__(self, seed):
        self.seed = seed

    def encode(self, texts, **_):
        def word(each):
            return np.random.default_rng([self.seed, *each.encode()]).standard_normal(16)

        return np.array([sum(word(each) for each in text.split()) for text in texts])


@pytest.fixture
def collection(tmp_path, sample_rows):
    folder = tmp_path / "toy"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "text": row} for n, row in enumerate(sample_rows[:120])]
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"_id": f"q{n}", "text": sample_rows[n]}) for n in (3, 9))
    )
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq3\td3\t1\nq9\td10\t1\n")
    return domain_scores.Collection(folder)


def test_scores_equal_those_of_the_retrieval_evaluation(collection):
    from cse.evaluation.retrieval import Retrieval, RetrievalOptions

    pytest.importorskip("bm25s")
    encoder = Hashed(0)
    new = domain_scores.embed(encoder, collection)
    figures = domain_scores.judged(collection, new.queries @ new.documents.T)
    row = Retrieval(RetrievalOptions(), str(collection.folder))(encoder).rows[0]
    assert np.mean(figures["ndcg"]) == pytest.approx(row["ndcg@10"], abs=1e-3)
    assert np.mean(figures["recall"]) == pytest.approx(row["recall@100"], abs=1e-3)


def test_label_free_scores_follow_their_definitions(collection):
    pytest.importorskip("bm25s")
    base, other = (domain_scores.embed(Hashed(seed), collection) for seed in (0, 1))
    assert domain_scores.Embedded.of(base.arrays()).arrays().keys() == base.arrays().keys()
    held = {collection.documents[row] for row in collection.held_out}
    assert not held & set(collection.rows("documents"))
    same, changed = (domain_scores.label_free(collection, each, base) for each in (base, other))
    assert same["base's neighbours"] == same["cosine with base"] == same["base's results, held span"] == 1
    assert changed["base's neighbours"] < 0.9
    assert same["known held words"] > 0.2  # a random ranking gives 0.04
    for kind, known in collection.known.items():
        for text, row in zip(known.texts, known.documents, strict=True):
            assert all(word in collection.documents[row] for word in text.split())
            assert not kind.startswith("held") or row in collection.held_out
    cosines = other.known["all words"] @ other.documents.T
    own = collection.known["all words"].documents
    ranks = [1 + sum(each > cosines[i, own[i]] for each in np.delete(cosines[i], own[i])) for i in range(len(own))]
    assert changed["known all words"] == pytest.approx(np.mean([1 / rank for rank in ranks]), abs=1e-6)


def test_the_threshold_flags_at_most_a_tenth_of_harmless_runs():
    generator = np.random.default_rng(0)
    for size in (3, 10, 47):
        score, harmful = generator.standard_normal(size), generator.random(size) < 0.4
        limit = domain_tables.limit_of(score, harmful)
        assert (score[~harmful] < limit).sum() <= 0.1 * (~harmful).sum()


def stored(changes):
    figures = {"ndcg": [50.0, 60.0], "recall": [80.0, 90.0]}
    base = {
        "name": "base",
        "collection": "one",
        "label_free": {"known held words": 0.5},
        "references": dict.fromkeys(("base", "BM25", "both by reciprocal ranks"), figures),
    }
    runs = {"b": base}
    for number, change in enumerate(changes):
        after = {"ndcg": [50 + change, 60 + change], "recall": [80.0, 90.0 + change]}
        runs[str(number)] = {
            "name": f"run {number}",
            "collection": "one",
            "seed": number,
            "settings": {"max_steps": 60},
            "shares": {"0": {**after, "label_free": {"known held words": 0.5 + change / 100}}},
        }
    return runs


def test_tables_show_every_run_and_flag_harmful_runs():
    found = stored([-3.0, -1.0, -0.7, 1.0, 2.0])
    shown = domain_tables.table(found)
    assert [line.split(" | ")[0] for line in shown.split("\n")[2:7]] == [f"| run {n}" for n in (4, 3, 2, 1, 0)]
    assert "| run 0 | 0 | -3.00 / -1.50 | -3.00 | [-3.00, -3.00] | one seed | -1.50 | -3.00, -1.50 |" in shown
    assert "+1.00" in domain_tables.correlations(found)
    assert "| one | known held words |" in domain_tables.flags(found)
    assert "100% of 3, alarms 0%" in domain_tables.flags(found)
    seeds = {key: {**run, "name": "base" if key == "b" else "run"} for key, run in found.items()}
    assert domain_tables.over_seeds(seeds)["run", "0"] == pytest.approx([-3.0, -1.0, -0.7, 1.0, 2.0])
    assert "[-2.74, +2.06], 5 seeds" in domain_tables.table(seeds)
    few = stored([-3.0, 1.0])
    assert "which the evaluation of label-free scores needs" in domain_tables.correlations(few)


def test_training_data_for_the_methods_compared_with_cse_follow_their_definitions():
    peers = import_module("adapt_peers")
    rows = [f"{n} one two three four five six seven eight nine" for n in range(400)]
    damaged = peers.damaged(rows, 0)
    assert damaged["original"] == rows
    counts = np.array([len(text.split()) for text in damaged["damaged"]])
    assert counts.min() >= 1
    assert abs(counts.mean() / 10 - (1 - peers.DELETED)) < 0.03
    kept = [set(text.split()) <= set(row.split()) for text, row in zip(damaged["damaged"], rows, strict=True)]
    assert all(kept)
    pairs = peers.tension_pairs(rows, 0)
    equal = np.mean([a == b for a, b in zip(pairs["first"], pairs["second"], strict=True)])
    assert abs(equal - 1 / peers.EQUAL_PAIRS) < 0.05
    assert peers.equal_pairs(rows, 0) == {"anchor": rows, "positive": rows}


def test_table_of_methods_compared_with_cse_shows_only_collections_with_all_results():
    peers = import_module("adapt_peers")
    figures = {"ndcg": [50.0, 60.0], "recall": [80.0, 90.0]}
    better = {"ndcg": [52.0, 60.0], "recall": [80.0, 90.0]}
    record = {"steps": 3, "processor_seconds": 9.0, "peak": 2e9}
    found = {"one/before/0": {**record, "found": {kind: figures for kind in ("alone", "BM25", "with BM25")}}}
    for system in peers.TRAINERS:
        found[f"one/{system}/0"] = {**record, "found": {"alone": better, "with BM25": better}}
    found["two/before/0"] = found["one/before/0"]
    text = peers.table(found)
    assert "| cse, default | +1.00 / +0.00 | +1.00 |" in text
    assert "two" not in text
    assert peers.table({"two/before/0": found["one/before/0"]}) == "No collection has the results of all methods yet."


def test_bm25_of_the_rankings_is_that_of_search(sample_rows):
    pytest.importorskip("bm25s")
    from cse.search.bm25 import Bm25

    rankings, queries = import_module("rankings"), [*sample_rows[:5], "the the of"]
    expected = [Bm25.build(sample_rows[:50]).scores(query) for query in queries]
    assert rankings.Words(sample_rows[:50], frozenset()).scores(queries) == pytest.approx(np.array(expected), abs=1e-4)


def test_max_sim_is_the_weighted_mean_of_the_largest_cosines():
    rankings, draw = import_module("rankings"), np.random.default_rng(0)

    def some(sizes):
        count = sum(sizes)
        states = rankings.unit(draw.normal(size=(count, 4))).astype(np.float16)
        return rankings.Encoded(np.zeros((len(sizes), 4)), states, draw.integers(0, 6, count), np.cumsum([0, *sizes]))

    queries, documents = some([2, 3]), some([4, 1, 0, 5])
    parts = [[slice(*each) for each in zip(e.starts, e.starts[1:], strict=False)] for e in (queries, documents)]
    expected = np.zeros((2, 4))
    for i, q in enumerate(parts[0]):
        holders = [sum(token in documents.ids[d] for d in parts[1]) for token in queries.ids[q]]
        idf = np.log(1 + (4 - np.array(holders) + 0.5) / (np.array(holders) + 0.5))
        for j, d in enumerate(parts[1]):
            if d.start < d.stop:
                cosines = queries.states[q].astype(float) @ documents.states[d].astype(float).T
                expected[i, j] = (idf * cosines.max(1)).sum() / idf.sum()
    assert rankings.max_sim(queries, documents) == pytest.approx(expected, abs=1e-6)


def test_losses_are_compared_with_the_standard_loss_at_the_same_temperature(tmp_path, capsys):
    rivals = import_module("rivals")
    generator = np.random.default_rng(0)
    for name, gain in (("a", 2.0), ("b", 4.0)):
        before = generator.uniform(40, 60, 200)
        runs = {
            rivals.named(loss, tau): {
                str(seed): (before + gain * (loss == "focal") + 0.5 * (tau == 0.1) + 0.1 * seed).tolist()
                for seed in range(3)
            }
            for loss in rivals.LOSSES
            for tau in rivals.TAUS
        }
        (tmp_path / "cpu").mkdir(exist_ok=True)
        (tmp_path / "cpu" / f"{name}.json").write_text(json.dumps({"before": before.tolist(), "runs": runs}))
    rivals.table(tmp_path)
    rows = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines()}
    # The mean of the seeds adds .1. Change: the standard error is .1 / sqrt(3 * 2). Difference: no variance.
    assert "| 3 | +2.1 | +4.1 | +3.10 [+3.02, +3.18] |" in rows["| focal, .05"]
    assert "| +3.00 [+3.00, +3.00] | +2.1 |" in rows["| focal, .05"]
    assert "| +0.6 | +0.6 | +0.60 [+0.52, +0.68] |" in rows["| standard, .1"]
    assert rows["| standard, .1"].endswith("|  | +0.6 |")
