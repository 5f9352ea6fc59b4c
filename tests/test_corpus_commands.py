"""Tests of the commands `cse similarity`, `duplicates`, `cluster` and `mine`."""

import csv
import json
import shutil

import numpy as np
import pytest

from cse import Encoder, InputError, SearchIndex, TrainConfig
from cse.data.pairs import open_pairs
from cse.search.clusters import MAX_GROUPS, MIN_GROUPS, cluster, default_groups, describe
from cse.search.fusion import Fusion
from cse.search.mining import Mining, QueryRows, parse_ranks
from random_texts import some_texts
from sentence_models import cross_encoder, sentence_model
from test_cli import refused
from test_modules import pooling

BY_HYBRID = ("mine", "c.txt", "--by", "hybrid", "-o", "t.csv", "--queries", "c.txt")
TOPICS = ("cat dog horse cow pig", "car bus train ship plane", "bread milk cheese rice egg")


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    """A folder with v.txt (word vectors of three topics) and c.txt (20 rows per topic, a blank row, a repeated row)."""
    folder = tmp_path_factory.mktemp("topics")
    draw = np.random.default_rng(0)
    lines = []
    for number, topic in enumerate(TOPICS):
        for word in topic.split():
            vector = 3 * np.eye(3)[number].repeat(3) + draw.standard_normal(9)
            lines.append(f"{word} {' '.join(f'{x:.4f}' for x in vector)}\n")
    (folder / "v.txt").write_text("".join(lines), encoding="utf8")
    rows = [" ".join(["the", *draw.choice(TOPICS[row % 3].split(), 4)]) for row in range(60)]
    (folder / "c.txt").write_text("\n".join([*rows, "", rows[4]]) + "\n", encoding="utf8")
    return folder


def ran(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_similarity_scores_two_texts_or_each_row_of_a_table(topics, cse):
    encoder = Encoder(f"glove:{topics}/v.txt")
    rows = [("the cat", "the dog"), ("cat", "car"), ("milk", "milk"), ("milk", "")]
    expected = [float(encoder.similarity([a], [b])[0, 0]) for a, b in rows]
    assert expected[2:] == pytest.approx([1, 0], abs=1e-6)
    for (a, b), value in zip(rows, expected, strict=True):
        assert float(ran(cse("similarity", "glove:v.txt", a, b, cwd=topics))) == pytest.approx(value, abs=1e-4)
    lines = ["score,question,answer", *(f"1,{a},{b}" for a, b in rows)]
    (topics / "p.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    out = ran(cse("similarity", "glove:v.txt", "p.csv", cwd=topics)).splitlines()
    assert [line.split("\t") for line in out] == [[f"{v:.4f}", a, b] for v, (a, b) in zip(expected, rows, strict=True)]
    named = ran(cse("similarity", "glove:v.txt", "p.csv", "--columns", "answer, question", "--json", cwd=topics))
    found = json.loads(named)["pairs"]
    assert [(each["b"], each["a"]) for each in found] == rows
    assert [each["cosine"] for each in found] == pytest.approx(expected, abs=1e-6)


def test_duplicates_lists_all_similar_pairs_and_their_groups(topics, tmp_path, cse):
    encoder = Encoder(f"glove:{topics}/v.txt")
    texts = (topics / "c.txt").read_text(encoding="utf8").split("\n")[:-1]
    cosines = encoder.similarity(texts, texts)
    expected = [[i, j] for i in range(62) for j in range(i + 1, 62) if cosines[i, j] >= 0.97 and i != 60 != j]
    assert [4, 61] in expected
    command = ("duplicates", f"glove:{topics}/v.txt", topics / "c.txt", "--threshold", "0.97")
    for form in ("csv", "jsonl"):
        found = json.loads(ran(cse(*command, "-o", f"d.{form}", "--index", "i", "--json", cwd=tmp_path)))
        assert found["pairs"] == len(expected)
        with open(tmp_path / f"d.{form}", encoding="utf8") as file:
            records = [*csv.DictReader(file)] if form == "csv" else [json.loads(line) for line in file]
        assert [[int(each["row_a"]), int(each["row_b"])] for each in records] == expected
        assert all(each["text_b"] == texts[int(each["row_b"])] for each in records)
        assert all(
            abs(float(each["cosine"]) - cosines[int(each["row_a"]), int(each["row_b"])]) < 1e-5 for each in records
        )
    grouped = [row for each in found["groups"] for row in each["rows"]]
    assert sorted(grouped) == sorted({row for pair in expected for row in pair})
    assert found["redundant_rows"] == len(grouped) - len(found["groups"])
    printed = ran(cse(*command, "--top", "1", cwd=tmp_path))
    assert printed.startswith(f"{len(found['groups'][0]['rows'])} rows\n  {found['groups'][0]['rows'][0]}  the ")


def test_the_help_of_cluster_states_the_default_number_of_groups(cse):
    text = " ".join(cse("cluster", "--help").stdout.split())
    assert f"sqrt(rows / 2), at least {MIN_GROUPS}, at most {MAX_GROUPS}" in text
    assert [default_groups(rows) for rows in (1, 3, 5000, 10**6)] == [1, MIN_GROUPS, 50, MAX_GROUPS]


def test_cluster_finds_the_topics_and_their_words(topics, tmp_path, cse):
    command = ("cluster", f"glove:{topics}/v.txt", topics / "c.txt", "--json", "-o", "g.csv")
    for more in (("--groups", "3"), ("--method", "hdbscan", "--min-size", "5")):
        found = json.loads(ran(cse(*command, *more, "--words", "3", cwd=tmp_path)))
        assert [each["rows"] for each in found["groups"]] == [21, 20, 20] or "hdbscan" in more
        assert len(found["groups"]) == 3
        for each in found["groups"]:
            (topic,) = {row % 3 for row in each["members"] if row < 60}
            assert len(each["words"]) == 3
            assert set(each["words"]) <= set(TOPICS[topic].split())  # not "the", which is in every row
            assert all(set(text.split()[1:]) <= set(TOPICS[topic].split()) for text in each["examples"])
            assert len(set(each["examples"])) == 3
        with open(tmp_path / "g.csv", encoding="utf8") as file:
            of_row = {int(record["row"]): int(record["group"]) for record in csv.DictReader(file)}
        assert of_row == {row: each["group"] for each in found["groups"] for row in each["members"]}
    shown = ran(cse(*command[:3], "--groups", "3", cwd=tmp_path))
    assert "21 rows: " in shown


def test_words_and_first_example_of_a_group_equal_a_direct_computation(topics):
    from cse import TfidfIndex

    index = SearchIndex.build(
        Encoder(f"glove:{topics}/v.txt"), (topics / "c.txt").read_text(encoding="utf8").split("\n")
    )
    labels = cluster(index, groups=4, seed=3)
    texts = index.texts(index.rows)
    tfidf = TfidfIndex.from_texts(texts)
    matrix = tfidf.transform(texts).toarray()
    for each in describe(index, labels, tfidf, words=4):
        inside = np.isin(index.rows, each.rows)
        above = matrix[inside].mean(0) - matrix.mean(0)
        best = np.argsort(-above, kind="stable")[:4]
        assert sorted(above[[tfidf.terms.index(word) for word in each.words]]) == pytest.approx(sorted(above[best]))
        vectors = index.vectors.take(np.flatnonzero(inside))
        nearest = (vectors @ vectors.mean(0)).max()
        (place,) = np.flatnonzero(index.rows == each.examples[0])
        assert index.vectors.take(np.array([place]))[0] @ vectors.mean(0) == pytest.approx(nearest)


@pytest.mark.parametrize("by", ["encoder", "bm25"])
@pytest.mark.parametrize("margin", [None, 0.1])
def test_mined_negatives_are_within_the_rank_window_and_the_margin(glove, by, margin):
    encoder = Encoder(glove)
    texts = some_texts(300)
    anchors = [" ".join(text.split()[:3]) for text in texts[:40]]
    anchors[5] = anchors[4]  # pairs 4 and 5 have the same anchor
    positives = [text.upper().lower() for text in texts[:40]]
    index = SearchIndex.build(encoder, ["", *texts, texts[4]])
    rows = np.arange(1, 302)
    cosines = encoder.similarity(anchors, index.texts(rows)).astype(np.float64)
    found = [*Mining((3, 40), margin, 4, by)(index, anchors, positives)]
    taken = [*Mining((3, 40), margin, 4, by, "random", 7)(index, anchors, positives)]
    assert [each.pair for each in found] == list(range(40))
    assert max(len(each.rows) for each in found) == 4
    for number, (top, drawn) in enumerate(zip(found, taken, strict=True)):
        ranked = rows[np.argsort(-cosines[number], kind="stable")]
        if by == "bm25":
            ranked = index.bm25().search(anchors[number], 40)
        own = {positive for anchor, positive in zip(anchors, positives, strict=True) if anchor == anchors[number]}
        positive = cosines[number][number]
        lowest = min(cosines[number][other] for other in range(40) if anchors[other] == anchors[number])
        first = {text: row for row, text in zip(ranked[39:1:-1], index.texts(ranked[39:1:-1]), strict=True)}
        allowed = [
            row
            for row, text in zip(ranked[2:40], index.texts(ranked[2:40]), strict=True)
            if text not in {*own, anchors[number]} and first[text] == row
            if margin is None or cosines[number][row - 1] <= lowest - margin
        ]
        assert top.rows.tolist() == allowed[:4]
        assert top.positive == pytest.approx(positive, abs=1e-6)
        assert set(drawn.rows) <= set(allowed)
        assert len(drawn.rows) == min(4, len(allowed))
    assert any(one.rows.tolist() != other.rows.tolist() for one, other in zip(found, taken, strict=True))
    again = Mining((3, 40), margin, 4, by, "random", 7)(index, anchors, positives)
    assert all((one.rows == other.rows).all() for one, other in zip(taken, again, strict=True))


def is_passage(text, whole, most):
    """Whether a text is at most ``most`` words in a row of another."""
    words = text.split()
    return 0 < len(words) <= most and f" {' '.join(words)} " in f" {' '.join(whole.split())} "


@pytest.mark.parametrize("count", [3, 60, 101])
def test_rows_made_from_queries_take_positives_and_negatives_at_their_ranks(glove, count):
    texts = [*some_texts(300), "  ", " ".join(f"word{number}" for number in range(80))]
    index = SearchIndex.build(Encoder(glove), texts)
    queries = [" ".join(text.split()[:3]) for text in texts[:20]]
    assert len({*queries}) == 20
    rows = QueryRows(count, (6, 9), 2, words=5, seed=3)(index, queries)
    assert len(rows) == count
    ranked = dict(zip(queries, index.search(queries, 9, hybrid=Fusion()), strict=True))
    asked = [row for row in rows if row[0] in ranked]
    others = [row for row in rows if row[0] not in ranked]
    assert len(asked) == count // 2
    numbers = [sum(anchor == query for anchor, _, _ in asked) for query in queries]
    assert max(numbers) - min(numbers) <= 1
    used = set()
    for query, positive, negative in asked:
        hits = ranked[query]
        used |= {rank for rank, hit in enumerate(hits, 1) if is_passage(negative, hit.text, 5)}
        assert any(is_passage(positive, hit.text, 5) for hit in hits[:2])
        assert any(is_passage(negative, hit.text, 5) for hit in hits[5:])
    assert used >= {6, 7, 8, 9} or count < 60
    for anchor, positive, negative in others:
        assert any(is_passage(anchor, text, 24) and is_passage(positive, text, 24) for text in texts)
        assert any(is_passage(negative, text, 24) for text in texts)
    assert QueryRows(count, (6, 9), 2, words=5, seed=3)(index, queries) == rows
    assert QueryRows(count, (6, 9), 2, words=5, seed=4)(index, queries) != rows


def test_the_preset_for_queries_trains_on_the_rows_that_mine_writes(topics, tmp_path, cse, tiny_bert):
    (tmp_path / "q.txt").write_text("the cat\nbus or train\n\nthe cat\n", encoding="utf8")
    mine = ("mine", tiny_bert, topics / "c.txt", "--by", "hybrid", "--queries", "q.txt", "-o", "m.jsonl")
    found = json.loads(ran(cse(*mine, "--rows", "40", "--json", cwd=tmp_path)))
    assert (found["queries"], found["triples"]) == (2, 40)
    given = ("--preset", "encoder-queries", "--model", tiny_bert, "--max-steps", "2", "--name", "run")
    ran(cse("train", "--pairs", "m.jsonl", *given, cwd=tmp_path))
    stored = TrainConfig.from_toml(tmp_path / "runs" / "run" / "config.toml")
    assert (stored.batch_size, stored.lr, stored.loss_terms) == (32, 2e-5, ("keep-similarities",))
    refused(cse("train", topics / "c.txt", "--preset", "encoder-queries", cwd=tmp_path), "needs --pairs FILE")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_mined_triples_can_be_opened_as_labelled_pairs(topics, tmp_path, cse, form):
    lines = ["query,answer", *(f"the {word},{word} {word}" for topic in TOPICS for word in topic.split())]
    (tmp_path / "q.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    command = ("mine", f"glove:{topics}/v.txt", topics / "c.txt", "--queries", "q.csv", "-o", f"t.{form}")
    found = json.loads(ran(cse(*command, "--margin", "0.02", "--negatives", "2", "--json", cwd=tmp_path)))
    assert found["pairs"] == 15
    triples = open_pairs([str(tmp_path / f"t.{form}")], [])
    assert triples.names == {"anchor": "anchor", "positive": "positive", "hard negative": "negative"}
    assert len(triples.complete()) == found["triples"] > 15
    refused(cse(*command, "--ranks", "1-1", "--margin", "1.9", cwd=tmp_path), "no pair has a negative")


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("similarity", "a"), "give two texts, or one table"),
        (("similarity", "a", "b", "c"), "3 were given; give two texts"),
        (("similarity", "a", "b", "--columns", "a,b"), "--columns a,b names columns of a table"),
        (("similarity", "nowhere.csv"), "nowhere.csv: no such file"),
        (("similarity", "three.csv"), "name the two columns of text with --columns A,B; its columns are a, b, c"),
        (("similarity", "empty.csv"), "empty.csv: has no rows"),
        (("duplicates", "c.txt", "--threshold", "1.1"), "--threshold must be a cosine, from -1 to 1, got 1.1"),
        (("duplicates", "c.txt", "-o", "d.tsv"), "the name must end in .csv or .jsonl"),
        (("duplicates", "c.txt", "-o", "no/d.csv"), "its folder does not exist"),
        (("duplicates", "c.txt", "--index", "cut"), "was built with --passages; name another folder"),
        (("cluster", "c.txt", "--groups", "99"), "--groups must be at most 61"),
        (
            ("cluster", "c.txt", "--method", "hdbscan", "--groups", "3"),
            "--groups has no effect without --method kmeans",
        ),
        (("cluster", "c.txt", "--min-size", "5"), "--min-size has no effect without --method hdbscan"),
        (("mine", "c.txt", "--queries", "three.csv", "--columns", "a, x", "-o", "t.csv"), "has no column 'x'"),
        (("cluster", "c.txt", "--tfidf", "nowhere"), "nowhere: no TF-IDF index there"),
        (("mine", "c.txt", "--queries", "three.csv", "-o", "t.csv"), "--queries three.csv: "),
        (("mine", "c.txt", "--queries", "pairs.csv", "-o", "t.txt"), "the name must end in .csv or .jsonl"),
        (("mine", "c.txt", "--queries", "pairs.csv", "-o", "t.csv", "--margin", "x"), "--margin must be a difference"),
        (("mine", "c.txt", "--queries", "pairs.csv", "-o", "t.csv", "--ranks", "5"), "must be FIRST-LAST"),
        (("mine", "c.txt", "--queries", "c.txt", "-o", "t.csv"), "--queries c.txt is not a table"),
        ((*BY_HYBRID, "--margin", "0.1"), "--margin cannot be combined with --by hybrid; leave one of them out"),
        ((*BY_HYBRID, "--columns", "a,b"), "--columns cannot be combined with --by hybrid"),
        ((*BY_HYBRID, "--ranks", "3-9"), "--ranks must begin after rank 3, the last of the positives, got 3"),
        ((*BY_HYBRID, "--ranks", "99-100"), "--ranks 99-100: the corpus has only 61 rows"),
        ((*BY_HYBRID[:-1], "blank.txt"), "--queries blank.txt holds no query"),
        (
            ("mine", "c.txt", "--queries", "pairs.csv", "-o", "t.csv", "--rows", "9"),
            "--rows has no effect without --by hybrid",
        ),
    ],
)
def test_invalid_arguments_and_files_are_refused(topics, tmp_path, cse, arguments, phrase):
    for name in ("c.txt", "v.txt"):
        shutil.copy(topics / name, tmp_path)
    (tmp_path / "three.csv").write_text("a,b,c\n1,2,3\n", encoding="utf8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf8")
    (tmp_path / "empty.csv").write_text("a,b\n", encoding="utf8")
    (tmp_path / "pairs.csv").write_text("query,answer\nthe cat,a cat\n", encoding="utf8")
    if "cut" in arguments:
        texts = (tmp_path / "c.txt").read_text(encoding="utf8").split("\n")[:-1]
        SearchIndex.build(Encoder(f"glove:{tmp_path}/v.txt"), texts, tmp_path / "cut", passages=8)
    refused(cse(arguments[0], "glove:v.txt", *arguments[1:], cwd=tmp_path), phrase)


def test_the_ranks_option_is_parsed_as_a_first_and_a_last_rank():
    assert parse_ranks("1-100") == (1, 100)
    for text in ("0-5", "7-3", "-4", "1..5", ""):
        with pytest.raises(InputError, match="--ranks"):
            parse_ranks(text)


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ((), {"absolute_margin": 0.05}),
        (("--relative-margin", "0.05"), {"relative_margin": 0.05}),
        (("--margin", "none", "--max-score", "0.9", "--min-score", "0.6"), {"max_score": 0.9, "min_score": 0.6}),
        (("--rescore", "cross", "--margin", "-0.4", "--max-score", "0.9"), {"absolute_margin": -0.4, "max_score": 0.9}),
    ],
)
@pytest.mark.parametrize("form", ["triplet", "n-tuple"])
def test_mined_rows_equal_those_of_sentence_transformers(tmp_path, tiny_bert, sample_rows, cse, options, theirs, form):
    from datasets import Dataset
    from sentence_transformers import CrossEncoder
    from sentence_transformers.util import mine_hard_negatives

    corpus = list(dict.fromkeys(sample_rows[:150]))
    anchors = [" ".join(text.split()[:12]) for text in [*corpus[:30], corpus[3], corpus[9]]]  # two have two positives
    positives = [*corpus[:30], corpus[40], corpus[41]]
    model = sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean")])
    for weights in model.parameters():  # so that cosines differ
        if weights.ndim == 2:
            weights.data *= 120
    model.save(str(tmp_path / "model"), create_model_card=False)
    if "--rescore" in options:
        cross_encoder(tmp_path / "cross", tiny_bert)
        theirs = {**theirs, "cross_encoder": CrossEncoder(str(tmp_path / "cross"), device="cpu")}
    data = Dataset.from_dict({"anchor": anchors, "positive": positives})
    expected = mine_hard_negatives(
        data, model, corpus=corpus, num_negatives=3, range_max=38, output_format=form, verbose=False, **theirs
    )
    (tmp_path / "c.txt").write_text("\n".join(corpus) + "\n", encoding="utf8")
    data.to_json(tmp_path / "q.jsonl")
    given = ("--queries", "q.jsonl", "-o", "n.jsonl", "--ranks", "1-40", "--negatives", "3", "--output-format", form)
    ran(cse("mine", "model", "c.txt", *given, *options, "--device", "cpu", cwd=tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text(encoding="utf8").splitlines()]
    assert rows == expected.to_list()
    assert len(rows) > 10
    assert len(open_pairs([str(tmp_path / "n.jsonl")], []).hard_negatives) == (1 if form == "triplet" else 3)
