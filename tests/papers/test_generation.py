"""Tests of cse generate with tiny random models: output, resumption, back-translation, queries, and errors."""

import json

import pytest
import torch

from cse_papers.generate import GenerationOptions, Generator, batches, generate
from tiny import make_t5

SHORT = {"max_new_tokens": 6, "batch_size": 4}
LAYERS = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}


@pytest.fixture(scope="session")
def writers(tmp_path_factory, tiny_bert):
    """A folder with a tiny T5 model in ``t5`` and a tiny Marian model in ``marian``."""
    from transformers import AutoTokenizer, MarianConfig, MarianMTModel

    folder = tmp_path_factory.mktemp("writers")
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    end = tokenizer.sep_token_id
    ends = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": end, "forced_eos_token_id": end}
    sizes = {"vocab_size": len(tokenizer), "d_model": 16, "max_position_embeddings": 24}
    sizes |= {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in LAYERS.items()}
    torch.manual_seed(0)
    config = MarianConfig(**ends, **sizes, pad_token_id=tokenizer.pad_token_id)
    MarianMTModel(config).save_pretrained(folder / "marian")
    make_t5(folder / "t5", tiny_bert)
    tokenizer.save_pretrained(folder / "marian")
    return folder


@pytest.fixture
def texts(sample_rows):
    return [*sample_rows[:5], "", *sample_rows[5:10]]


def test_output_has_one_line_per_row_and_keeps_blank_rows(writers, texts, tmp_path):
    out = tmp_path / "out.txt"
    done = []
    counts = generate(texts, Generator(str(writers / "t5"), GenerationOptions(**SHORT)), out, done.append)
    lines = out.read_text(encoding="utf8").split("\n")
    assert len(lines) == len(texts) + 1
    assert lines[5] == ""
    assert counts["rows"] == 11
    assert counts["generated"] + counts["empty"] == sum(done) == 10
    assert not list(tmp_path.glob("*.part*"))
    assert list(batches(["a" * n for n in (5, 1, 9, 0, 7, 3)], 2)) == [[2, 4], [0, 5], [1]]


def interrupted(generator, texts, out):
    """Generates, and is interrupted in the second batch."""
    calls = []

    def stops(some, first):
        calls.append(first)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generator(some, first)

    stops.options, stops.names = generator.options, generator.names
    with pytest.raises(KeyboardInterrupt):
        generate(texts, stops, out)


@pytest.mark.parametrize("drawn", [False, True])
def test_resumed_generation_equals_uninterrupted_generation(writers, texts, tmp_path, drawn):
    options = GenerationOptions(**SHORT, sample=drawn, beams=2)
    whole, resumed = tmp_path / "whole.txt", tmp_path / "resumed.txt"
    generate(texts, Generator(str(writers / "t5"), options), whole)
    generator = Generator(str(writers / "t5"), options)
    interrupted(generator, texts, resumed)
    part = resumed.with_name("resumed.txt.part")
    assert len(part.read_text(encoding="utf8").splitlines()) == 2  # the key, and one batch
    with open(part, "a", encoding="utf8") as file:
        file.write('0123 [[3, "not whol')
    generate(texts, generator, resumed)
    assert resumed.read_bytes() == whole.read_bytes()


def test_generation_with_other_options_or_rows_or_a_foreign_part_file_begins_anew(writers, texts, tmp_path):
    generator = Generator(str(writers / "t5"), GenerationOptions(**SHORT))
    longer = Generator(str(writers / "t5"), GenerationOptions(max_new_tokens=7, batch_size=4))
    out, whole = tmp_path / "out.txt", tmp_path / "whole.txt"
    for other, rows in ((longer, texts), (generator, texts[1:]), (None, texts)):
        if other is None:  # another program wrote the part file
            (tmp_path / "out.txt.part").write_text('[0, "of another call"]\n', encoding="utf8")
        else:
            interrupted(generator, texts, out)
        for path in (out, whole):
            generate(rows, other or generator, path)
        assert out.read_bytes() == whole.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "whole.txt"]


def test_back_translation_applies_the_second_model_to_the_output_of_the_first(writers, texts):
    options = GenerationOptions(**SHORT, beams=2)
    both = Generator(str(writers / "marian"), options, via=str(writers / "t5"))
    first, second = (Generator(str(writers / name), options) for name in ("marian", "t5"))
    assert both(texts[:3], 0) == second(first(texts[:3], 0), 0)
    assert len(first(["word " * 500], 0)) == 1  # longer than the maximum input


def test_generated_queries_can_be_opened_as_labelled_pairs(cse_here, writers, texts, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf8")
    given = ["--task", "query", "--model", writers / "t5", "--max-new-tokens", "6", "-o", "pairs.jsonl", "--json"]
    done = cse_here("generate", "corpus.txt", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text(encoding="utf8").splitlines()]
    assert len(rows) == counts["generated"] > 0
    assert {row["positive"] for row in rows} <= set(texts)
    from cse.data.pairs import open_pairs

    assert len(open_pairs(str(tmp_path / "pairs.jsonl"), ()).corpora[0]) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "TINY", "-o", "x.txt"], "cannot be loaded as a sequence-to-sequence model"),
        (["--model", "T5", "-o", "x.csv"], "the name must end in .txt or .jsonl"),
        (["--model", "T5", "-o", "x.txt", "--sample", "--beams", "3"], "--beams cannot be combined with --sample"),
    ],
)
def test_invalid_options_of_generate_are_refused(cse_here, writers, tiny_bert, sample, tmp_path, arguments, message):
    places = {"TINY": tiny_bert, "T5": writers / "t5"}
    done = cse_here("generate", sample, *(places.get(each, each) for each in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
