"""Regression tests: each test fails without the corresponding fix."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cse import Encoder, InputError, TfidfIndex, TrainConfig, train
from cse.errors import RunError


def copied(folder, target):
    import shutil

    shutil.copytree(folder, target)
    return target


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory, tiny_bert):
    """A decoder-only model with the tokenizer of the tiny BERT."""
    from transformers import AutoTokenizer, GPT2Config, GPT2Model

    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    GPT2Model(GPT2Config(vocab_size=2000, n_embd=32, n_layer=2, n_head=2, n_positions=64)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def config(tmp_path, sample, model, **values):
    values = {"batch_size": 8, "max_steps": 3, "eval_every": 0, "device": "cpu", **values}
    return TrainConfig(corpus=sample, output=tmp_path / "runs", model=str(model), **values)


def test_a_decoder_is_refused_with_cls_and_trains_with_avg(tmp_path, sample, tiny_gpt2):
    with pytest.raises(InputError, match=r"--pooler cls: .* is a decoder, .*--pooler avg"):
        train(config(tmp_path, sample, tiny_gpt2))
    assert train(config(tmp_path, sample, tiny_gpt2, pooler="avg")).steps == 3


def test_collapse_is_judged_absolutely(tmp_path, sample, tiny_bert):
    """The [CLS] vectors of the random model are all nearly equal, before and after."""
    result = train(config(tmp_path, sample, tiny_bert, lr=1e-6))
    assert not any("have not collapsed" in note for note in result.notes)
    assert any("nearly all equal" in note for note in result.notes)


def test_an_encoder_decoder_is_refused(tmp_path, sample, tiny_bert):
    from transformers import AutoTokenizer, T5Config, T5Model

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    T5Model(T5Config(vocab_size=2000, **sizes)).save_pretrained(tmp_path / "t5")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match="t5 is an encoder-decoder"):
        train(config(tmp_path, sample, tmp_path / "t5"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("nan", r"the weights encoder\.layer\.0\.output\.dense\.weight hold NaN"),
        ("shape", "shape"),
        ("vocabulary", "the tokenizer belongs to another model"),
        ("no pad", "no padding token"),
    ],
)
def test_faulty_weights_and_tokenizers_are_named(tmp_path, tiny_bert, damage, message):
    folder = copied(tiny_bert, tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    if damage == "nan":
        weights["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    elif damage == "shape":
        settings["intermediate_size"] = 48
    elif damage == "vocabulary":
        settings["vocab_size"] = 1000
        name = "embeddings.word_embeddings.weight"
        weights[name] = weights[name][:1000].clone()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        path = folder / "tokenizer_config.json"
        values = json.loads(path.read_text())
        values.pop("pad_token")
        path.write_text(json.dumps(values))
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        Encoder(folder, device="cpu")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("command", r"pytorch_model\.bin holds \w+\.system, which is not a tensor"),
        ("bare pickle", r"pytorch_model\.bin holds something, which is not a tensor"),
        ("torn", r"pytorch_model\.bin is incomplete"),
        (b"", "holds no weights of PyTorch"),
        (b"hello world\n", "holds no weights of PyTorch"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12\n", "git lfs pull"),
    ],
)
def test_a_pickle_that_is_not_weights_is_refused_and_never_executed(tmp_path, tiny_bert, content, message, cse):
    folder = copied(tiny_bert, tmp_path / "broken")
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"

    class Command:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    if content == "command":
        torch.save({"weight": Command()}, path)
    elif content == "bare pickle":
        path.write_bytes(pickle.dumps(Command()))
    elif content == "torn":
        torch.save(load_file(tiny_bert / "model.safetensors"), path)
        path.write_bytes(path.read_bytes()[:10_000])
    else:
        path.write_bytes(content)
    done = cse("encode", folder, "-o", tmp_path / "v.npy", stdin="a word\n")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.search(message, line)
    assert "weights_only" not in line
    assert not (tmp_path / "executed").exists()


def test_arguments_of_encode_are_checked(tiny_bert):
    encoder = Encoder(tiny_bert, device="cpu")
    for size in (-1, 0, 1.5, True, None):
        with pytest.raises(InputError, match="batch_size"):
            encoder.encode(["a"], batch_size=size)
    for texts in ("one", None, 5, ["a", None], ["a", 5]):
        with pytest.raises(InputError, match="texts"):
            encoder.encode(texts)
    with pytest.raises(InputError, match="--pooler: 'median' is unknown"):
        Encoder(tiny_bert, pooler="median")
    expected = encoder.encode(["a word", "two words"])
    np.testing.assert_array_equal(encoder.encode(text for text in ["a word", "two words"]), expected)
    np.testing.assert_array_equal(encoder.encode(np.array(["a word", "two words"])), expected)
    assert encoder.encode([]).shape == (0, 32)


def test_blank_texts_are_rows_of_zeros_as_in_the_command(tiny_bert, tmp_path, cse):
    vectors = Encoder(tiny_bert, device="cpu").encode(["a word", " ", ""])
    assert vectors[0].any()
    assert not vectors[1:].any()
    done = cse("encode", tiny_bert, "-o", tmp_path / "v.npy", stdin="a word\n \n\n")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)


def test_texts_of_an_index_are_checked():
    for texts in ("one", None, ["a", None]):
        with pytest.raises(InputError, match="texts"):
            TfidfIndex.from_texts(texts)
    index = TfidfIndex.from_texts(np.array(["a b c", "b c d"]))
    assert len(index.augment(text for text in ["a b", "c d"])) == 2


CHINESE = ["北京是中华人民共和国的首都", "上海是一个大城市吗", "我喜欢学习机器学习", "今天天气非常好"]


def test_rows_without_a_synthetic_negative_are_masked_and_reported(tmp_path, tiny_bert, sample_rows, cse):
    rows = [*CHINESE, *sample_rows[:12]]
    (tmp_path / "mixed.txt").write_text("\n".join(rows), encoding="utf8")
    assert cse("build-tfidf", "mixed.txt", cwd=tmp_path).returncode == 0
    done = cse("train", "mixed.txt", "--una", "--model", tiny_bert, "--batch-size", 16, "--max-steps", 1, "--name", "r",
               "--temperature", 0.05, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "25% of the sentences have no word that can be replaced" in done.stderr
    assert "--tokenizer whitespace" in done.stderr
    lines = (tmp_path / "runs" / "r" / "log.jsonl").read_text().splitlines()
    (step,) = [record for record in map(json.loads, lines) if "loss" in record]
    assert step["masked/synthetic"] == 4


def test_the_una_presets_need_a_treebank_index(tmp_path, sample, tiny_bert, cse):
    assert cse("build-tfidf", sample, "-o", "unicode", cwd=tmp_path).returncode == 0
    assert cse("build-tfidf", sample, "-o", "treebank", "--tokenizer", "treebank", cwd=tmp_path).returncode == 0
    arguments = ("--preset", "una-bert-base", "--model", tiny_bert, "--max-steps", 1, "--batch-size", 8)
    done = cse("train", *arguments, "--tfidf", "unicode", cwd=tmp_path)
    assert done.returncode == 2
    assert "cse build-tfidf CORPUS --tokenizer treebank" in done.stderr
    done = cse("train", *arguments, "--tfidf", "treebank", "--name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'surface = "plain"' in (tmp_path / "runs" / "r" / "config.toml").read_text()


def test_cls_is_the_trained_pooler_where_the_checkpoint_has_one(tmp_path, tiny_bert, tiny_roberta):
    from transformers import AutoModel, AutoTokenizer

    text = ["A sentence of some words."]
    model, tokenizer = AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)
    with torch.no_grad():
        out = model(**tokenizer(text, return_tensors="pt"))
    trained = Encoder(tiny_bert, pooler="cls", device="cpu")
    assert "the trained pooler" in trained.pooling
    np.testing.assert_allclose(trained.encode(text), out.pooler_output, atol=1e-6)
    bare = Encoder(tiny_bert, pooler="cls_before_pooler", device="cpu")
    np.testing.assert_allclose(bare.encode(text), out.last_hidden_state[:, 0], atol=1e-6)
    without = Encoder(tiny_roberta, pooler="cls", device="cpu")  # its checkpoint has no pooler
    assert "without a trained pooler" in without.pooling
    np.testing.assert_allclose(
        without.encode(text), Encoder(tiny_roberta, pooler="cls_before_pooler", device="cpu").encode(text), atol=1e-6
    )


@pytest.mark.parametrize("value", ["5", "true", "[1, 2]", '[["a"]]'])
def test_a_corpus_of_the_wrong_type_in_a_configuration_is_named(tmp_path, cse, value):
    (tmp_path / "config.toml").write_text(f"corpus = {value}\n")
    done = cse("train", "--config", "config.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "config.toml: --corpus" in done.stderr


def test_threads_reach_the_core(tmp_path, sample, tiny_bert, cse):
    script = (
        "import sys, threading, os, cse.models.device as d, cse.training.setup as s\n"
        "from cse import TrainConfig\n"
        f"run = s.prepare(TrainConfig(corpus={str(sample)!r}, model={str(tiny_bert)!r}, threads=1, batch_size=8))\n"
        "import torch\n"
        "names = [open(f'/proc/self/task/{t}/comm').read().strip() for t in os.listdir('/proc/self/task')]\n"
        "print(torch.get_num_threads(), sum(name.startswith('cse-core') for name in names))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    threads, core = map(int, done.stdout.split())
    assert threads == 1
    assert core <= 1


def test_counts_of_a_run_add_up(tmp_path, tiny_bert, sample_rows, cse):
    rows = [*sample_rows[:400], "", *sample_rows[:400]]
    (tmp_path / "twice.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    done = cse("train", "twice.txt", "--model", tiny_bert, "--max-steps", 1, "--batch-size", 8, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "801 rows" in line]
    numbers = [int(word.replace(",", "")) for word in line.split() if word.replace(",", "").isdigit()]
    assert numbers[0] == sum(numbers[1:]) == 801
    assert "left out because they repeat held-out rows" in line
    (share,) = [float(word.removesuffix("%")) for line in done.stderr.splitlines() if "duplicate rows" in line
                for word in line.split() if word.endswith("%")][:1]  # fmt: skip
    assert share == pytest.approx(50, abs=1)
    assert "unknown tokens" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_leaves_no_temporary_file(tmp_path, sample_rows, number, code):
    path = tmp_path / "large.txt"
    with open(path, "w", encoding="utf8") as file:
        for _ in range(120):
            file.write("\n".join(sample_rows) + "\n")
    for wait in (0.0, 0.05, 0.15):
        command = [sys.executable, "-m", "cse", "build-tfidf", path, "-o", tmp_path / "index"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not is_open(process.pid, path):  # the signal handlers are in place by then
            time.sleep(0.005)
        time.sleep(wait)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode in (code, 0)
        left = [file.name for file in tmp_path.rglob(".cse-*")]
        assert not left, left


def is_open(pid, path):
    """Whether a process has a file open."""
    try:
        return any(os.readlink(link) == str(path) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


@pytest.mark.parametrize("command", ["augment", "encode"])
def test_a_reader_that_leaves_ends_a_filter_by_sigpipe(indexed, sample, tiny_bert, command):
    arguments = f"augment {sample}" if command == "augment" else f"encode {tiny_bert} {sample}"
    script = f"{sys.executable} -m cse {arguments} | head -c 10 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=indexed, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "141"
    assert "rror" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["explain a", "doctor {sample}", "augment {sample}", "encode {tiny} {sample}"])
def test_a_closed_standard_output_is_an_error(indexed, sample, tiny_bert, command):
    arguments = command.format(sample=sample, tiny=tiny_bert)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m cse {arguments} >&-"],
        cwd=indexed,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "standard output" in done.stderr


def test_python_m_cse_is_the_command():
    done = subprocess.run([sys.executable, "-m", "cse", "--version"], capture_output=True, text=True, check=True)
    assert "cse" in done.stdout


def test_the_package_says_that_it_is_typed():
    from importlib.resources import files

    assert (files("cse") / "py.typed").is_file()


def test_a_loss_that_is_not_finite_names_its_step_and_leaves_the_weights_finite(
    tmp_path, sample, tiny_bert, monkeypatch
):
    from cse.losses.contrastive import Contrastive
    from cse.training import loop

    whole = Contrastive.forward

    def explode(term, views, step):
        loss = whole(term, views, step)
        return loss * float("inf") if step.number == 1 else loss

    monkeypatch.setattr(Contrastive, "forward", explode)
    states = []
    prepare = loop.prepare

    def keep(*arguments, **more):
        states.append(prepare(*arguments, **more))
        return states[0]

    monkeypatch.setattr(loop, "prepare", keep)
    with pytest.raises(RunError, match=r"not finite at step 2 \(rows \d+, .*lower --lr"):
        train(config(tmp_path, sample, tiny_bert, pooler="avg"))
    assert all(torch.isfinite(weights).all() for weights in states[0].state.encoder.parameters())


def test_a_quote_that_is_never_closed_is_an_error_with_its_line(tmp_path, cse):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'cse[tables]'")
    path = tmp_path / "b.csv"
    path.write_text('b,text\n1,hello world\n2,"open quote\n3,foo bar\n4,last\n')
    with pytest.raises(InputError, match=r"b\.csv: a quote in the record at line 3 is never closed"):
        TfidfIndex.build(path, column="text")
    path.write_text('b,text\n1,hello world\n2,"closed\nquote"\n')
    assert TfidfIndex.build(path, column="text").info.documents == 2


def test_a_json_array_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('["a sentence"]')
    with pytest.raises(InputError, match=r"a \.json file is not read; .*\.jsonl"):
        TfidfIndex.build(path)


def test_a_corpus_whose_name_is_not_utf8_is_found_through_its_index(tmp_path, tiny_bert, sample_rows):
    name = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    try:
        with open(name, "w", encoding="utf8") as file:
            file.write("\n".join(sample_rows[:100]))
    except OSError:
        pytest.skip("the file system takes only UTF-8 names")
    TfidfIndex.build(os.fsdecode(name)).save(tmp_path / "tfidf")
    values = {"model": str(tiny_bert), "max_steps": 1, "batch_size": 8, "device": "cpu"}
    assert train(TrainConfig(tfidf=tmp_path / "tfidf", output=tmp_path, **values)).steps == 1


def test_a_dangling_link_is_replaced_by_every_command(indexed, tiny_bert, sample, tmp_path, cse):
    for number, arguments in enumerate((["augment", sample], ["encode", tiny_bert, sample])):
        link = tmp_path / f"link{number}.npy"
        link.symlink_to(tmp_path / "nowhere" / "file")
        done = cse(*arguments, "-o", link, cwd=indexed)
        assert done.returncode == 0, done.stderr
        assert link.is_file()
        assert not link.is_symlink()


def test_explain_says_which_words_are_never_replaced(tmp_path, cse):
    (tmp_path / "a.txt").write_text("\u5317\u4eac is a city\nanother city is here\n", encoding="utf8")
    assert cse("build-tfidf", "a.txt", cwd=tmp_path).returncode == 0
    done = cse("explain", "the \u5317\u4eac city", cwd=tmp_path)
    assert "touches another word" in " ".join(done.stdout.split())
    words = json.loads(cse("explain", "the \u5317\u4eac city", "--json", cwd=tmp_path).stdout)["words"]
    assert [word["replaceable"] for word in words] == [True, False, False, True]
    assert not words[1]["samples"]
