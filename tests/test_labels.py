"""Judging the texts that two encoders find: pools, judgements, the result, and the number of queries that is needed."""

import csv
import json
import math

import numpy as np
import pytest

from cse import Encoder, InputError, SearchIndex
from cse.evaluation.judged import COLUMNS, key_of, outcome, pool, read_judgements
from cse.evaluation.significance import holm, power, queries_needed
from random_texts import some_texts, write_vectors
from test_retrieval import command, write

TEXTS = [f"d{row}" for row in range(30)]


def texts_of(rankings):
    return {query: [TEXTS[row] for row in rows] for query, rows in rankings.items()}


OLD = texts_of({"1": [3, 1, 2], "2": [5, 6, 7], "3": [10, 11, 12]})
NEW = texts_of({"1": [2, 3, 20], "2": [5, 6, 7], "3": [13, 12, 11]})


def test_a_pool_holds_the_texts_of_both_rankings_once_in_an_order_that_does_not_depend_on_them():
    pools = pool(OLD, NEW)
    assert {query: sorted(texts) for query, texts in pools.items()} == {
        "1": ["d1", "d2", "d20", "d3"],
        "2": ["d5", "d6", "d7"],
        "3": ["d10", "d11", "d12", "d13"],
    }

    def order(old, new, seed=0):
        return [(query, *texts) for query, texts in pool(old, new, seed=seed).items()]

    assert order(OLD, NEW, 7) == order(NEW, OLD, 7)
    mixed = {query: NEW[query] + OLD[query] for query in reversed(OLD)}
    assert order(OLD, NEW) == order(mixed, {query: [] for query in OLD})
    # Over many seeds, every text is at the first place equally often.
    many = {"1": TEXTS[:4]}, {"1": TEXTS[2:6]}
    first = [pool(*many, seed=seed)["1"][0] for seed in range(1200)]
    counts = [first.count(each) for each in TEXTS[:6]]
    assert sum((count - 200) ** 2 / 200 for count in counts) < 25.7  # chi-square with 5 degrees of freedom, p = 1e-4


def dcg(values):
    return sum(value / math.log2(place + 2) for place, value in enumerate(values))


def test_the_outcome_equals_a_slow_computation_and_leaves_out_incomplete_queries():
    pools = pool(OLD, NEW)
    relevant = {"1": {"d20": 2}, "2": {"d5": 1}, "3": {"d13": 1}}
    judgements = {key_of(query, each): relevant[query].get(each, 0) for query, texts in pools.items() for each in texts}
    found = outcome(OLD, NEW, judgements, 3)
    differences = []
    for query, names in relevant.items():
        old, new = ([float(names.get(each, 0)) for each in side[query]] for side in (OLD, NEW))
        differences.append(100 * (dcg(new) - dcg(old)) / dcg(names.values()))
    assert found["comparison"]["mean"] == pytest.approx(np.mean(differences))
    assert found["spread"] == pytest.approx(np.std(differences, ddof=1))
    assert found["needed"] == queries_needed(3.0, found["spread"])
    assert found["more"] == found["needed"] - 3
    assert found["more_judgements"] == round(found["more"] * found["judgements"] / 3)
    assert (found["complete"], found["scored"], found["judgements"]) == (3, 3, len(judgements))

    del judgements[key_of("3", "d10")]
    for each in ("d5", "d6", "d7"):
        judgements[key_of("2", each)] = 0
    found = outcome(OLD, NEW, judgements, 3)
    assert (found["complete"], found["scored"], found["comparison"]) == (2, 1, None)


def test_judgements_of_texts_that_only_another_encoder_found_count():
    queries = [str(number) for number in range(12)]
    draw = np.random.default_rng(0)
    old, new = ({query: [TEXTS[row] for row in draw.permutation(20)[:10]] for query in queries} for _ in range(2))
    # In every third query, only texts of the third encoder, which are in neither ranking, are relevant.
    third = {query: {*TEXTS[20:24]} if number % 3 == 0 else {*TEXTS[0:20:4], TEXTS[25]}
             for number, query in enumerate(queries)}  # fmt: skip
    judgements = {key_of(query, text): int(text in third[query]) for query in queries for text in TEXTS}
    found = outcome(old, new, judgements, 10)
    differences = []
    for query in queries:
        ideal = dcg([1] * min(10, len(third[query])))
        a, b = (dcg([float(text in third[query]) for text in side[query]]) / ideal for side in (old, new))
        differences.append(100 * (b - a))
    assert (found["complete"], found["scored"]) == (12, 12)
    assert found["comparison"]["mean"] == pytest.approx(np.mean(differences))


def test_the_power_equals_that_of_simulated_t_tests():
    from scipy.stats import ttest_1samp

    generator = np.random.default_rng(0)
    for queries, effect in ((8, 0.9), (30, 0.4), (60, -0.5)):
        sample = generator.normal(effect, 1, (20_000, queries))
        found = (ttest_1samp(sample, 0, axis=1).pvalue < 0.05).mean()
        assert power(queries, effect) == pytest.approx(found, abs=0.012)  # over 3 standard errors


def test_the_number_of_queries_is_the_smallest_with_the_probability():
    for difference, spread in ((3, 12), (-1.2, 4), (5, 2), (50, 1)):
        needed = queries_needed(difference, spread)
        assert needed == next(n for n in range(2, 10_000) if power(n, difference / spread) >= 0.8)
    assert queries_needed(3, 15) == pytest.approx(7.85 * 25, abs=3)
    assert queries_needed(3, 15, probability=0.9) > queries_needed(3, 15)


ROWS = some_texts(60)
ASKED = [" ".join(ROWS[row].split()[:3]) for row in (3, 11, 25, 40)]
COMMAND = ("compare", "glove:a.txt", "glove:b.txt", "corpus.txt", "--queries", "queries.txt")


@pytest.fixture
def place(tmp_path):
    """A folder with three files of word vectors, a corpus with a repeated and a blank row, and queries."""
    for width, name in ((8, "a"), (5, "b"), (3, "c")):
        write_vectors(tmp_path / f"{name}.txt", width=width)
    (tmp_path / "corpus.txt").write_text("".join(f"{row}\n" for row in [*ROWS, ROWS[3], ""]), encoding="utf8")
    (tmp_path / "queries.txt").write_text("".join(f"{each}\n" for each in ASKED), encoding="utf8")
    return tmp_path


def judge(path, end=None):
    """Fills in the last column of a file as a person would: relevant texts share two words with the query."""
    with open(path, newline="", encoding="utf8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == COLUMNS
    for row in rows[:end]:
        row[2] = int(len(set(row[0].split()) & set(row[1].split())) > 1)
    with open(path, "w", newline="", encoding="utf8") as file:
        csv.writer(file).writerows([header, *rows])
    return rows


def written(cse, place, *arguments):
    done = cse(*arguments, "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_pool_holds_what_either_encoder_finds_and_the_verdict_is_that_of_cse_compare(place, cse_here):
    pooled = written(cse_here, place, *COMMAND, "--pool", "pool.csv")
    rows = judge(place / "pool.csv")
    assert (pooled["texts"], pooled["to_judge"]) == (len(rows), len(rows))
    assert "glove" not in (place / "pool.csv").read_text(encoding="utf8")
    distinct, expected = list(dict.fromkeys(ROWS)), set()
    for name in "ab":
        hits = SearchIndex.build(Encoder(f"glove:{place}/{name}.txt"), distinct).search(ASKED, 10)
        expected |= {(query, hit.text) for query, each in zip(ASKED, hits, strict=True) for hit in each}
    assert {(query, text) for query, text, _ in rows} == expected
    assert len(rows) == len(expected)
    found = written(cse_here, place, *COMMAND, "--judged", "pool.csv")
    # The same judgements as a data set.
    judged = {query: {text: mark for asked, text, mark in rows if asked == query} for query in ASKED}
    write(place / "data", [(text, "", text) for text in distinct], {query: query for query in ASKED}, judged)
    (side,) = written(cse_here, place, *COMMAND[:3], "--suite", "retrieval", "--data", "data")["comparisons"]
    (record,) = side["tasks"]
    for name in ("a", "b", "mean", "low", "high", "p"):
        assert found["comparison"][name] == pytest.approx(record[name]), name
    assert (found["comparison"]["verdict"], found["scored"]) == (record["verdict"], record["examples"])
    assert found["complete"] == found["queries"] == 4
    shown = cse_here(*COMMAND, "--judged", "pool.csv", cwd=place).stdout
    assert "4 of 4 queries are judged" in shown
    assert "A true difference of 3 points is found" in shown


def test_vectors_words_and_both_stand_side_by_side(place, cse_here):
    systems = ["compare", "glove:a.txt", "glove:a.txt+bm25", "bm25", "corpus.txt", "--queries", "queries.txt"]
    pooled = written(cse_here, place, *systems, "--pool", "pool.csv")
    rows = judge(place / "pool.csv")
    assert pooled["texts"] == len(rows)
    found = written(cse_here, place, *systems, "--judged", "pool.csv")
    assert [found["b"], *(each["b"] for each in found["others"])] == ["glove:a.txt+bm25", "bm25"]
    records = [found["comparison"], found["others"][0]["comparison"]]
    assert [each["p_holm"] for each in records] == pytest.approx(holm([each["p"] for each in records]))
    index = SearchIndex.build(Encoder(f"glove:{place}/a.txt"), list(dict.fromkeys(ROWS)))
    found_by_both = index.search(ASKED, 10, hybrid=True)
    hybrid = {query: [hit.text for hit in hits] for query, hits in zip(ASKED, found_by_both, strict=True)}
    assert all(
        text in {text for asked, text, _ in rows if asked == query} for query in hybrid for text in hybrid[query]
    )
    alone = written(cse_here, place, *systems[:3], *systems[4:], "--judged", "pool.csv")
    assert alone["comparison"]["b"] == records[0]["b"]
    shown = cse_here(*systems, "--pool", "other.csv", cwd=place).stderr
    assert "4 queries: a difference in nDCG below about 42 points will probably not show" in shown


def test_another_encoder_and_more_queries_ask_only_for_texts_without_a_judgement(place, cse_here):
    written(cse_here, place, *COMMAND, "--pool", "pool.csv")
    before = judge(place / "pool.csv")
    with (place / "queries.txt").open("a") as file:
        file.write(f"{ROWS[50]}\n")
    other = [*COMMAND[:2], "glove:c.txt", *COMMAND[3:]]
    found = written(cse_here, place, *other, "--judged", "pool.csv", "--pool", "more.csv")
    assert found["complete"] < found["queries"] == 5
    rows = judge(place / "more.csv", end=0)
    known = {(query, text): mark for query, text, mark in before}
    assert [mark for *_, mark in rows] == [str(known.get((query, text), "")) for query, text, _ in rows]
    again = cse_here(*other, "--judged", "pool.csv", "--pool", "pool.csv", cwd=place)
    assert again.returncode == 2
    assert "--pool pool.csv: exists, and may be filled in already" in again.stderr
    assert found["to_judge"] == sum(mark == "" for *_, mark in rows) > 0
    judge(place / "more.csv")
    assert written(cse_here, place, *other, "--judged", "more.csv")["complete"] == 5


def test_judgements_may_have_other_white_space_and_empty_marks_and_need_valid_values(tmp_path):
    path = tmp_path / "pool.csv"
    path.write_text('\ufeffquery,text,relevant\nq,"a  cat\nsat",1.0\nq,a dog,\nq,a cow,0\n', encoding="utf8")
    assert read_judgements(path) == {key_of("Q", "A cat\u200b sat"): 1, key_of("q", "a cow"): 0}
    for row, message in (
        ("q,a dog,yes", "row 1: relevant must be 0, 1 or a larger integer, or empty, got 'yes'"),
        ("q,a dog,-1", "got '-1'"),
        ("q,a dog,1\nq,a dog,0", "row 2 judges a text of an earlier row differently"),
    ):
        path.write_text(f"query,text,relevant\n{row}\n", encoding="utf8")
        with pytest.raises(InputError, match=message):
            read_judgements(path)


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ((*COMMAND[:3], "--queries", "queries.txt", "--pool", "p.csv"), "two models or more, a corpus and queries"),
        ((*COMMAND, "--pool", "p.csv", "--suite", "retrieval"), "and no --suite"),
        ((*COMMAND[:2], "glove:a.txt", *COMMAND[3:], "--pool", "p.csv"), "stands twice"),
        ((*COMMAND[:3], "nowhere.txt", *COMMAND[4:], "--pool", "p.csv"), "nowhere.txt: no such file"),
        ((*COMMAND[:4], "--queries", "blank.txt", "--pool", "p.csv"), "blank.txt: all 2 lines are blank"),
        ((*COMMAND[:4], "--queries", "blank.csv", "--pool", "p.csv"), "blank.csv: is a table"),
        ((*COMMAND, "--pool", "p.txt"), "--pool p.txt: the name must end in .csv or .jsonl"),
        ((*COMMAND, "--judged", "corpus.txt"), "corpus.txt: is not a table"),
        ((*COMMAND, "--pool", "p.csv", "--data", "x"), "--pool cannot be combined with --data"),
        (COMMAND, "--queries has no effect without --pool or --judged"),
        (COMMAND[:3], "cse compare needs data"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(place, monkeypatch, arguments, phrase):
    (place / "blank.txt").write_text("\n \n")
    monkeypatch.chdir(place)
    done = command(*arguments)
    assert isinstance(done.exception, (InputError, OSError, SystemExit))
    assert phrase in f"{done.exception} {done.stderr}"
    assert not (place / "p.csv").exists()
