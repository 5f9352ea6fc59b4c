"""The TF-IDF index of a run: given, found in ./tfidf, or built for the run."""

import pytest

from cse import TfidfIndex, TrainConfig, train
from cse.errors import InputError
from cse.training import data as run_index


@pytest.fixture
def short(tiny_bert, tmp_path, sample_rows, monkeypatch):
    """A configuration of one step, in an empty working directory with the corpus c.txt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("\n".join(sample_rows[:80]) + "\n", encoding="utf8")
    values = {"max_steps": 1, "batch_size": 8, "eval_every": 0, "device": "cpu", "threads": 1, "una": {"every": 1}}
    return TrainConfig(corpus="c.txt", model=str(tiny_bert), negatives=("una",), **values)


def terms(folder):
    index = TfidfIndex.open(folder)
    return list(index.terms), index.df.tolist(), index.max_score.tolist(), index.tokenizer


def facts(config, **arguments):
    from cse import Callback

    class Shown(Callback):
        def on_train_begin(self, run):
            self.facts = run.facts

    shown = Shown()
    result = train(config, shown, **arguments)
    return result.folder, shown.facts


def test_an_index_is_built_for_the_run_and_kept_in_its_folder(short, tmp_path):
    folder, shown = facts(short)
    assert shown["index"].startswith("built for the run from 80 rows")
    TfidfIndex.build("c.txt").save("other")
    assert terms(folder / "tfidf") == terms("other")
    given, _ = facts(short.replace(tfidf="other"))
    assert (folder / "best" / "model.safetensors").read_bytes() == (given / "best" / "model.safetensors").read_bytes()
    assert not (given / "tfidf").exists()
    longer, _ = facts(TrainConfig(max_steps=2), resume=folder)
    assert longer == folder
    whole, _ = facts(short.replace(max_steps=2))
    assert (whole / "last" / "model.safetensors").read_bytes() == (folder / "last" / "model.safetensors").read_bytes()


def test_the_index_in_the_working_directory_is_used_only_if_it_was_built_from_exactly_these_files(short, sample_rows):
    TfidfIndex.build("c.txt").save("tfidf")
    folder, shown = facts(short)
    assert "index" not in shown
    assert not (folder / "tfidf").exists()
    with open("c.txt", "a", encoding="utf8") as file:
        file.write("\n".join(sample_rows[80:90]) + "\n")
    folder, shown = facts(short)
    assert shown["index"].startswith("built for the run from 90 rows")
    folder, shown = facts(short.replace(una={"every": 1, "tokenizer": "treebank"}))
    assert terms(folder / "tfidf")[3] == "treebank"


def test_a_given_index_of_other_files_is_used_and_named(short, sample_rows):
    with open("d.txt", "w", encoding="utf8") as file:
        file.write("\n".join(sample_rows[100:200]) + "\n")
    TfidfIndex.build("d.txt").save("other")
    folder, shown = facts(short.replace(tfidf="other"))
    assert shown["index"] == "other was built from other files than the run trains on (d.txt)"
    assert not (folder / "tfidf").exists()


def test_texts_in_memory_and_anchors_of_pairs_have_an_index(short, sample_rows, tmp_path):
    folder, shown = facts(short.replace(corpus=()), texts=sample_rows[:60])
    assert shown["index"].startswith("built for the run from 60 rows")
    rows = [f"{one}\t{two}" for one, two in zip(sample_rows[:40], sample_rows[40:80], strict=True)]
    (tmp_path / "p.tsv").write_text("\n".join(["anchor\tpositive", *(row.replace('"', "") for row in rows)]) + "\n")
    folder, shown = facts(short.replace(corpus=(), pairs="p.tsv"))
    assert shown["index"].startswith("built for the run from 40 rows")
    assert TfidfIndex.open(folder / "tfidf").info.rows == 40


def test_a_large_corpus_needs_a_stored_index(short, monkeypatch):
    monkeypatch.setattr(run_index, "MOST_INDEXED", 50)
    with pytest.raises(InputError, match=r"--tfidf: 80 rows are more than the 50 .* cse build-tfidf CORPUS"):
        train(short)
