"""Faulty texts and tables are refused with a precise message; unusual texts and file names are accepted."""

import json
import os

import pytest

from cse import TfidfIndex, TrainConfig, train


def test_an_index_of_another_folder_is_named_with_the_file_that_is_missing(tmp_path, tiny_bert, short_rows, cse_here):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "first" / "base.txt").write_text("\n".join(short_rows) + "\n", encoding="utf8")
    assert cse_here("build-tfidf", "base.txt", cwd=tmp_path / "first").returncode == 0
    train = ("train", "--model", tiny_bert, "--max-steps", 1, "--batch-size", 8)
    done = cse_here(*train, "--tfidf", "../first/tfidf", cwd=tmp_path / "second")
    assert done.returncode == 2
    assert "the TF-IDF index was built from base.txt, and there is no such file here" in done.stderr
    done = cse_here(*train, "--tfidf", "nowhere", cwd=tmp_path / "second")
    assert done.returncode == 2
    assert "no file was given, and nowhere is no TF-IDF index" in done.stderr


def test_explain_shows_which_words_are_never_replaced(tmp_path, cse_here):
    (tmp_path / "a.txt").write_text("\u5317\u4eac is a city\nanother city is here\n", encoding="utf8")
    assert cse_here("build-tfidf", "a.txt", cwd=tmp_path).returncode == 0
    done = cse_here("explain", "the \u5317\u4eac city", cwd=tmp_path)
    assert "joined to another word" in " ".join(done.stdout.split())
    words = json.loads(cse_here("explain", "the \u5317\u4eac city", "--json", cwd=tmp_path).stdout)["words"]
    assert [word["replaceable"] for word in words] == [True, False, False, True]
    assert not words[1]["samples"]


def test_training_finds_a_corpus_with_a_non_utf8_name_through_its_index(tmp_path, tiny_bert, sample_rows):
    name = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        with open(name, "w", encoding="utf8") as file:
            file.write("\n".join(sample_rows[:100]))
    except OSError:
        pytest.skip("the file system accepts only UTF-8 names")
    TfidfIndex.build(os.fsdecode(name)).save(tmp_path / "tfidf")
    values = {"model": str(tiny_bert), "max_steps": 1, "batch_size": 8, "device": "cpu"}
    assert train(TrainConfig(tfidf=tmp_path / "tfidf", output=tmp_path, **values)).steps == 1
