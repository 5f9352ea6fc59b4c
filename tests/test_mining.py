"""Tests of the command `cse mine`."""

import json
import shutil

import numpy as np
import pytest

from cse import Encoder, SearchIndex, TrainConfig
from cse.search.fusion import Fusion
from cse.search.mining import QueryRows
from random_texts import some_texts
from test_cli import refused

MINE = ("mine", "c.txt", "-o", "t.csv", "--queries", "c.txt")
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


def is_passage(text, whole, most):
    """Whether a text is at most ``most`` words in a row of another."""
    words = text.split()
    return 0 < len(words) <= most and f" {' '.join(words)} " in f" {' '.join(whole.split())} "


@pytest.mark.parametrize("count", [3, 101])
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


@pytest.mark.slow
def test_the_preset_for_queries_trains_on_the_rows_that_mine_writes(topics, tmp_path, cse, tiny_bert):
    (tmp_path / "q.txt").write_text("the cat\nbus or train\n\nthe cat\n", encoding="utf8")
    mine = ("mine", tiny_bert, topics / "c.txt", "--queries", "q.txt", "-o", "m.jsonl")
    found = json.loads(ran(cse(*mine, "--rows", "40", "--json", cwd=tmp_path)))
    assert (found["queries"], found["triples"]) == (2, 40)
    given = ("--preset", "encoder-queries", "--model", tiny_bert, "--max-steps", "2", "--name", "run")
    ran(cse("train", "--pairs", "m.jsonl", *given, cwd=tmp_path))
    stored = TrainConfig.from_toml(tmp_path / "runs" / "run" / "config.toml")
    assert (stored.batch_size, stored.lr, stored.loss_terms) == (32, 2e-5, ("keep-similarities",))
    refused(cse("train", topics / "c.txt", "--preset", "encoder-queries", cwd=tmp_path), "needs --pairs FILE")


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("mine", "c.txt", "-o", "d.tsv", "--queries", "c.txt"), "the name must end in .csv or .jsonl"),
        (("mine", "c.txt", "-o", "no/d.csv", "--queries", "c.txt"), "its folder does not exist"),
        *[((*MINE, "--ranks", ranks), "must be FIRST-LAST") for ranks in ("5", "0-5", "7-3", "1..5")],
        ((*MINE[:-1], "three.csv", "--query-column", "x"), "has no column 'x'"),
        ((*MINE, "--ranks", "3-9"), "--ranks must begin after rank 3, the last of the positives, got 3"),
        ((*MINE, "--ranks", "99-100"), "--ranks 99-100: the corpus has only 61 rows"),
        ((*MINE[:-1], "blank.txt"), "--queries blank.txt holds no query"),
    ],
)
def test_invalid_arguments_and_files_are_refused(topics, tmp_path, cse, arguments, phrase):
    for name in ("c.txt", "v.txt"):
        shutil.copy(topics / name, tmp_path)
    (tmp_path / "three.csv").write_text("a,b,c\n1,2,3\n", encoding="utf8")
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf8")
    refused(cse(arguments[0], "glove:v.txt", *arguments[1:], cwd=tmp_path), phrase)


def test_rows_are_mined_from_an_index_with_passages(topics, tmp_path, cse):
    model = f"glove:{topics / 'v.txt'}"
    texts = (topics / "c.txt").read_text(encoding="utf8").split("\n")[:-1]
    SearchIndex.build(Encoder(model), texts, tmp_path / "cut", passages=8)
    flags = ("--queries", topics / "c.txt", "--index", "cut", "-o", "t.csv", "--ranks", "4-50")
    ran(cse("mine", model, topics / "c.txt", *flags, cwd=tmp_path))
    assert len((tmp_path / "t.csv").read_text(encoding="utf8").splitlines()) == 1921
