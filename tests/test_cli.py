"""The cse commands: results, JSON output, and error messages."""

import importlib.util
import json
import re
import resource
import signal
import subprocess
import sys

import pytest

from cse import InputError, TfidfIndex
from cse.cli import printing
from forked import Forked


def refused(done, *phrases):
    """Asserts exit code 2, an error message with these phrases as the last line of stderr, and an empty stdout."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("Error: ")
    for phrase in phrases:
        assert phrase in message, message
    assert done.stdout == ""


IMPORTS = """
import sys
try:
    {0}
except SystemExit as error:
    code = error.code
else:
    code = 0
print()
print(code, *[name for name in ("torch", "transformers", "numpy", "scipy", "rich") if name in sys.modules])
"""


def run_and_list_imports(*arguments, cwd=None, code="from cse.cli import main; main()"):
    """Runs a program in a new process; returns its exit code, the large packages it imports, and its messages."""
    command = [sys.executable, "-c", IMPORTS.format(code), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True)
    code, *packages = done.stdout.splitlines()[-1].split()
    return int(code), packages, done.stderr


@pytest.mark.parametrize("command", [[], ["train"], ["search"]])
def test_help_imports_no_large_packages(command):
    assert run_and_list_imports(*command, "--help") == (0, [], "")


def test_building_an_index_and_applying_a_preset_do_not_import_torch(sample, tmp_path):
    code, packages, _ = run_and_list_imports("build-tfidf", sample, cwd=tmp_path)
    assert code == 0
    assert not {"torch", "transformers"} & {*packages}
    preset = "from cse.training.settings.precedence import with_preset as f; from cse import TrainConfig; "
    preset += "f(TrainConfig(preset='una-bert-base', loss='focal', una={'beta': 0.3}))"
    assert not {"torch", "transformers"} & {*run_and_list_imports(code=preset)[1]}


def test_build_tfidf_prints_one_json_object(cse_here, sample, tmp_path):
    done = cse_here("build-tfidf", sample, "-o", tmp_path / "out", "--no-matrix", "--json")
    value = json.loads(done.stdout)
    assert (value["documents"], value["rows"], value["blank"]) == (10_000, 10_000, 0)
    assert list(value["written"]) == ["index.safetensors"]
    assert done.stderr == ""


def test_augment_reads_stdin_and_writes_stdout(cse, indexed, sample_rows):
    text = "\n".join([sample_rows[0], "", sample_rows[1], "  ", "..."]) + "\n"
    done = cse("augment", cwd=indexed, stdin=text)
    rows = done.stdout.split("\n")
    assert len(rows) == 6
    assert rows[1] == ""
    assert rows[3:] == ["  ", "...", ""]
    index = TfidfIndex.open(indexed / "tfidf")
    assert [rows[0], rows[2]] == index.augment([sample_rows[0], sample_rows[1]], rows=[0, 2])
    assert "5 rows" in done.stderr
    assert "3 rows unchanged (2 blank)" in done.stderr


def test_negatives_do_not_depend_on_threads_or_batch_size(cse, indexed, sample, sample_rows, tmp_path):
    written = []
    for threads in (1, 2):
        done = cse("augment", sample, "--seed", 5, "--threads", threads, "-o", tmp_path / str(threads), cwd=indexed)
        assert done.returncode == 0
        assert done.stdout == ""
        written.append((tmp_path / str(threads)).read_text(encoding="utf8").split("\n")[:-1])
    index = TfidfIndex.open(indexed / "tfidf")
    for size in (1, 1000):
        batches = [range(start, start + size) for start in range(0, 10_000, size)]
        negatives = []
        for rows in batches:
            negatives += index.augment([sample_rows[row] for row in rows], rows=list(rows), seed=5)
        written.append(negatives)
    assert written[0] == written[1] == written[2] == written[3]
    assert len(written[0]) == 10_000


def test_augment_prints_a_json_summary_if_it_writes_a_file(cse, indexed, sample, tmp_path):
    done = cse("augment", sample, "-o", tmp_path / "n.txt", "--json", cwd=indexed)
    value = json.loads(done.stdout)
    assert value["rows"] == 10_000
    assert value["replacement_rate"] == pytest.approx(0.5, abs=0.03)
    refused(cse("augment", sample, "--json", cwd=indexed), "--json", "-o FILE")


def test_build_tfidf_with_stream_writes_no_matrix(cse, sample, tmp_path):
    done = cse("build-tfidf", sample, "--stream", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "tfidf").iterdir()] == ["index.safetensors"]
    refused(cse("build-tfidf", sample, "--stream", "--matrix", cwd=tmp_path), "--matrix")
    refused(cse("build-tfidf", sample, "--engine", "odd", cwd=tmp_path), "--engine", "choose one of local, ray")


def test_explain_shows_each_word(cse, indexed):
    sentence = "Greetings from the real universe."
    done = cse("explain", sentence, cwd=indexed, env={"COLUMNS": "120"})
    for word in ("Greetings", "not in index", "universe", "p(replace)"):
        assert word in done.stdout
    value = json.loads(cse("explain", sentence, "--json", cwd=indexed).stdout)
    assert [word["word"] for word in value["words"]] == ["Greetings", "from", "the", "real", "universe"]
    assert all(len(word["samples"]) == 4 for word in value["words"])
    forced = "one of them, chosen at random, is always replaced"
    assert forced in cse("explain", "the the", cwd=indexed).stdout
    ablation = ("--replace-which", "random", "--replace-with", "random")
    assert forced not in cse("explain", "the the", *ablation, cwd=indexed).stdout


def test_errors_of_ranks_other_than_zero_name_the_rank(cse):
    for rank, start in (("0", "Error: "), ("2", "Error on rank 2: ")):
        done = cse("build-tfidf", "missing.txt", env={"RANK": rank})
        assert (done.returncode, done.stderr) == (2, f"{start}missing.txt: no such file; check the path\n")


def test_processes_of_torchrun_report_the_same_error_once(cse, tmp_path):
    folder = tmp_path / "attempt_0"
    for rank in ("0", "1"):
        (folder / rank).mkdir(parents=True)
    found = []
    for rank, name in (("1", "missing.txt"), ("0", "missing.txt"), ("0", "other.txt")):
        place = {"RANK": rank, "TORCHELASTIC_ERROR_FILE": str(folder / rank / "error.json")}
        done = cse("build-tfidf", name, env=place)
        assert done.returncode == 2
        found.append(done.stderr)
    assert found == [
        "Error on rank 1: missing.txt: no such file; check the path\n",
        "",
        "Error: other.txt: no such file; check the path\n",
    ]


# Invalid input: the error message names the file and line, or the flag.


def corpus(tmp_path, content):
    path = tmp_path / "corpus.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "phrases"),
    [
        (b"", ["corpus.txt", "empty"]),
        (b"\n \n\t\n", ["corpus.txt", "all 3 lines are blank"]),
        (b"one\ntwo \xff three\n", ["corpus.txt: line 2 is not valid UTF-8", "byte offset 8", "--encoding-errors"]),
        (b"\xef\xbb\xbfab \xff\n", ["corpus.txt: line 1 is not valid UTF-8", "byte offset 6"]),
        (b"one\n" + b"x" * (1 << 20) + b"y\n", ["corpus.txt: line 2 is longer than 1048576 bytes", "--max-line-bytes"]),
        (b"...\n!!!\n", ["corpus.txt", "no line contains a word"]),
    ],
)
def test_errors_name_the_corpus_file_and_the_problem(cse, tmp_path, content, phrases):
    path = corpus(tmp_path, content)
    refused(cse("build-tfidf", path, "-o", tmp_path / "out"), *phrases)
    assert not (tmp_path / "out").exists()


def test_missing_files_and_directories_are_named(cse, tmp_path):
    refused(cse("build-tfidf", tmp_path / "nope.txt"), "nope.txt: no such file")
    refused(cse("build-tfidf", tmp_path), "is a folder; name the files in it")
    refused(cse("augment", tmp_path / "nope.txt", "--tfidf", tmp_path), "no TF-IDF index there", "cse build-tfidf")


def test_invalid_utf8_can_be_replaced_and_is_counted(cse, tmp_path):
    path = corpus(tmp_path, b"one \xff two\nthree\n\xfe\n")
    done = cse("build-tfidf", path, "-o", tmp_path / "out", "--encoding-errors", "replace", "--json")
    assert json.loads(done.stdout)["repaired"] == 2


FLAGS = [
    (["--radius", "0"], "--radius"),
    (["--mix-lambda", "2"], "--mix-lambda must be <= 1, got 2.0"),
    (["--set", "una.odd=1"], "una.odd: no such option; the options of una are every"),
    (["--set", "una"], "--set una: the form is"),
    (["--set", "odd.option=1"], "odd: neither a setting nor a method"),
    (["--una", "--set", "una.beta=many"], "--beta must be a number, got 'many'"),
    (["--una", "--set", "una.every=1e9"], "--una-every must be an integer, got 1000000000.0"),
    (["--name", "two\nlines"], r"--name: 'two\nlines' cannot be the name of a folder"),
    (["--positive", "odd"], "--positive: 'odd' is unknown; choose one of"),
    (["--loss", "mixed", "--no-mixed-negatives"], "--no-mixed-negatives"),
    (["--batch-size", "1"], "--batch-size must be >= 2, got 1"),
    (["--loss", "mixed", "--mix-variant", "release", "--una", "--model", "TINY"], "--mix-variant release"),
    (["--device", "cuda:7"], "--device cuda:7"),
    (["--data", "nope"], "--data nope"),
    (["--max-length", "500", "--model", "TINY"], "--max-length: 500 is more than the 64 tokens"),
    (["--lr", "nan"], "--lr must be a finite number, got nan"),
    (["--seed", str(2**64)], "--seed"),
    (["--preset", "una-bert-base", "--config", "x.toml"], "--preset"),
    (["--batch-size", "20000", "--model", "TINY"], "--batch-size: 20000 is more than the"),
]


@pytest.mark.parametrize(("flags", "phrase"), FLAGS, ids=lambda value: value if isinstance(value, str) else "")
def test_errors_name_the_invalid_flag(cse, indexed, tiny_bert, tmp_path, flags, phrase):
    flags = [str(tiny_bert) if flag == "TINY" else flag for flag in flags]
    refused(cse("train", *flags, "-o", tmp_path / "runs", cwd=indexed), phrase)
    assert not (tmp_path / "runs").exists()


def test_output_may_be_a_symbolic_link_or_a_device(cse, indexed, sample, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    assert cse("augment", sample, "-o", tmp_path / "link.txt", cwd=indexed).returncode == 0
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text(encoding="utf8").count("\n") == 10_000
    assert cse("augment", sample, "-o", "/dev/stdout", cwd=indexed).stdout.count("\n") == 10_000


def test_error_for_a_missing_corpus_shows_the_command_to_use(cse, tmp_path):
    refused(cse("train", cwd=tmp_path), "CORPUS: no file was given", "one sentence per line (cse train corpus.txt)")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["trian"], "No such command 'trian' (did you mean train?)."),
        (["train", "--learning-rate", "1"], "No such option --learning-rate (did you mean --lr?)."),
        (["build-tfidf", "--learning-rate", "1"], "No such option --learning-rate."),
        (["train", "--loss", "fokal"], "--loss: 'fokal' is unknown (did you mean focal?); choose one of"),
        (["train", "--pooler", "mean"], "--pooler: 'mean' is unknown (did you mean avg?); choose one of"),
        (["train", "--preset", "simsce-bert-base"], "(did you mean simcse-bert-base?)"),
    ],
)
def test_errors_suggest_the_name_that_was_probably_meant(cse, arguments, meant):
    done = cse(*arguments)
    assert done.returncode == 2
    assert meant in done.stderr.splitlines()[-1]


def test_seven_lines_and_one_example_describe_a_run_unless_verbose(run_config, capsys):
    from cse import ProgressCallback
    from cse.cli.commands.train import ConsoleCallback
    from cse.training.setup import prepare

    run = prepare(run_config.replace(una=True))
    run.facts["warning"] = "the rows are short"
    assert len(run.examples) > 1
    sentences = len({example.text for example in run.examples})
    assert {"recipe", "text"} <= set(run.facts)
    for kind in (ConsoleCallback, ProgressCallback):
        kind().on_train_begin(run)
        few = capsys.readouterr().err.splitlines()
        kind(verbose=True).on_train_begin(run)
        every = capsys.readouterr().err.splitlines()
        names = [line[:9].strip() for line in few[:8]]
        assert names == ["device", "model", "recipe", "loss", "positive", "corpus", "steps", "warning"]
        assert few[4] == f" positive  {run.facts['positive']}; negatives: {run.facts['negatives']}"
        assert few[7] == "  warning  the rows are short"
        assert all(any(f"  {value}" in line for line in every) for value in run.facts.values())
        for lines, examples in ((few, 1), (every, sentences)):
            assert sum(line.lstrip().startswith("-  ") for line in lines) == examples


def test_train_with_a_query_shows_hits_before_and_after_training(cse, short_corpus, tiny_bert, tmp_path):
    from cse import Encoder, SearchIndex

    done = cse(
        "train", short_corpus, "--model", tiny_bert, "--max-steps", 4, "--device", "cpu", "--threads", 1,
        "-o", tmp_path, "--name", "run", "--query", "a war between two kings", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for name, folder, model in (("before", "before", tiny_bert), ("after", "index", tmp_path / "run" / "best")):
        index = SearchIndex.open(tmp_path / "run" / folder, Encoder(model, device="cpu"))
        hits = index.search([result["query"]], 5)[0]
        assert [hit["row"] for hit in result["hits"][name]] == [hit.row for hit in hits]
        assert [hit["score"] for hit in result["hits"][name]] == pytest.approx([hit.score for hit in hits], abs=1e-6)
    assert result["hits"]["before"] != result["hits"]["after"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("-", "--query", "a"), "--query searches the files of CORPUS"), (("c.txt", "--query", " "), "--query is blank")],
)
def test_train_refuses_a_query_of_standard_input_and_a_blank_query(cse, arguments, message, tmp_path):
    (tmp_path / "c.txt").write_text("a sentence\n")
    done = cse("train", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_long_sentences_are_truncated_on_the_screen(capsys):
    from cse.augment.base import Example

    text = "word " * 40
    printing.print_examples([[Example(text, "short", ((0, 4), (110, 114), (116, 122), (150, 154)))]])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].count("[") == 2
    assert lines[1].replace("[", "").replace("]", "").strip() == f"-  {text[:119].rstrip()}\u2026"
    (_, *lines) = printing.neighbours([{"sentence": "x" * 130, "before": "x" * 120, "after": "short"}])
    assert [line.split()[-1] for line in lines] == ["x" * 119 + "\u2026", "x" * 120, "short"]


def test_training_on_a_full_disk_fails_and_leaves_no_run_folder(indexed, tiny_bert, tmp_path):
    flags = ("--model", tiny_bert, "--max-steps", 2, "--batch-size", 8, "-o", tmp_path / "runs")
    more = {"env": {"LIMIT": "100000"}, "entry": "test_resume:main_on_a_small_disk"}
    process = Forked("train", *flags, cwd=indexed, **more)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "best" in printed.decode().splitlines()[-1]
    assert list((tmp_path / "runs").iterdir()) == []


def test_terms_that_look_like_markup_are_printed_literally(cse, tmp_path):
    (tmp_path / "a.txt").write_text("[/red] hello [bold] world\nanother [/b] row\n")
    assert cse("build-tfidf", "a.txt", "--tokenizer", "whitespace", cwd=tmp_path).returncode == 0
    done = cse("explain", "[bold] world [/red]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[bold]" in done.stdout
    assert "[/red]" in done.stdout


def test_train_has_an_option_for_each_setting_and_each_method_flag():
    from cse.cli.commands.train import train_command
    from cse.training.settings.values import SETTINGS, method_flags

    named = {option.name for option in train_command.params}
    assert set(SETTINGS) - {"loss_terms"} <= named  # --loss-term adds to it, as more_loss_terms
    assert set(method_flags()) <= named
    flags = [flag for option in train_command.params for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags))
    assert all(option.help for option in train_command.params if option.param_type_name == "option")


def test_method_flags_set_the_options_of_their_methods():
    from cse import TrainConfig
    from cse.cli.commands.train import given_values

    given = given_values({"margin": 0.2, "mlm_weight": 0.5, "una_every": 3, "lr": None, "negatives": ()})
    options = {"contrastive.margin": 0.2, "mlm.weight": 0.5, "una.every": 3}
    assert given == {"more_loss_terms": ("mlm",), **options}
    assert given_values({"mlm_weight": 0.0}) == {}
    assert given_values({"more_loss_terms": ("none", "scd"), "mlm_weight": 0.1})["loss_terms"] == ("scd", "mlm")
    # Configuration files of earlier versions set the options of methods, such as margin, at the top level.
    assert TrainConfig(margin=0.2) == TrainConfig(options={"contrastive": {"margin": 0.2}})
    # A flag that enables its method does so as a keyword argument and as a key, too.
    terms = TrainConfig(mlm_weight=0.5, dims=[8, 16])
    assert terms == TrainConfig(loss_terms=["mlm", "matryoshka"], mlm={"weight": 0.5}, matryoshka={"dims": [8, 16]})
    assert terms.replace(mlm_weight=0) == TrainConfig(dims=[8, 16])
    assert TrainConfig(loss="focal", margin=0.2).replace(margin=0.1).contrastive.margin == 0.1
    with pytest.raises(InputError, match=r"contrastive\.temperature: use --temperature, unless the loss"):
        TrainConfig(options={"contrastive": {"temperature": 0.1}})


@pytest.mark.parametrize(
    ("name", "incomplete", "expected"),
    [
        ("objective", "n", ["nt-xent"]),
        ("positive", "eda-s", ["eda-swap", "eda-synonym"]),
        ("pooler", "avg_f", ["avg_first_last"]),
        ("una_as", "", ["pairs", "hard-negatives"]),
        ("preset", "una-r", ["una-roberta-base"]),
    ],
)
def test_shell_completion_offers_the_values_of_options(name, incomplete, expected):
    import click

    from cse.cli.commands.train import train_command

    option = next(option for option in train_command.params if option.name == name)
    found = option.type.shell_complete(click.Context(train_command), option, incomplete)
    assert [item.value for item in found] == expected


def test_the_help_of_train_lists_fifteen_options_and_names_how_many_more_there_are(cse):
    from cse.cli.commands.train import COMMON, train_command

    short, whole = cse("train", "--help").stdout, cse("train", "--help-all").stdout
    flags = {option.name: option.opts[0] for option in train_command.params if option.param_type_name == "option"}
    assert len(COMMON) == 15
    assert all(
        f"  {flags[name]} " in short or f"{flags[name]}, " in short or f", {flags[name]}" in short for name in COMMON
    )
    listed = [name for name, flag in flags.items() if re.search(rf"^  (-\w, )?{flag}\b", short, re.MULTILINE)]
    assert set(listed) == set(COMMON)
    assert f"{len(flags) - len(COMMON) - 1} more options: cse train --help-all" in short
    assert all(re.search(rf"^  (-\w, )?{flag}\b", whole, re.MULTILINE) for flag in flags.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("encode runs/nope c.txt -o x.npy", "runs/nope: no such folder"),
        ("encode minilm c.txt -o x.foo", "-o x.foo: the name must end in"),
        ("train nope.txt", "nope.txt: no such file"),
        ("train c.txt --column x", "--column x: none of the files is a table"),
        ("train c.txt --tfidf nope --una", "--tfidf nope: no TF-IDF index there"),
        ("train c.txt --dev nope.tsv", "nope.tsv: no such file"),
        ("train --resume runs/nope", "--resume runs/nope: no such folder"),
    ],
)
def test_missing_inputs_are_reported_before_torch_is_imported(tmp_path, arguments, message):
    (tmp_path / "c.txt").write_text("a sentence\n")
    code, packages, printed = run_and_list_imports(*arguments.split(), cwd=tmp_path)
    assert code == 2
    assert "torch" not in packages
    assert message in printed


def test_the_loss_terms_of_the_command_line_are_added_to_those_of_the_recipe(tiny_bert):
    from cse import TrainConfig
    from cse.cli.commands.train import given_values
    from cse.training.settings.precedence import resolve

    def terms(family="encoder", **values):
        config = TrainConfig(model=str(tiny_bert), **given_values(values))
        return resolve(config, family).loss_terms

    assert terms(more_loss_terms=("mlm",)) == ("keep-similarities", "mlm")
    assert terms(mlm_weight=0.1) == ("keep-similarities", "mlm")
    assert terms(more_loss_terms=("none",)) == ()
    assert terms(more_loss_terms=("none", "mlm")) == ("mlm",)
    assert terms("bert-base", more_loss_terms=("mlm",)) == ("mlm",)
    again = resolve(TrainConfig(model=str(tiny_bert), more_loss_terms=("mlm",)), "encoder")
    assert resolve(TrainConfig(**{**again.values(), "options": {}}), "encoder").loss_terms == again.loss_terms
    assert resolve(TrainConfig(model=str(tiny_bert), loss_terms=("mlm",)), "encoder").loss_terms == ("mlm",)


def test_methods_are_listed_by_kind_without_importing_torch(cse):
    code = "import sys; from cse.cli import cli\ncli(['methods'], standalone_mode=False); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "loss term:\n" in done.stdout
    una = next(line for line in done.stdout.splitlines() if line.startswith("  una "))
    assert re.search(r"\(UNA\) \(\+0\.31 \[\+0\.07, \+0\.53\] each at its best temperature\)", una)


def test_unknown_tokenizers_commands_and_options_are_refused(cse, indexed, sample, tmp_path):
    refused(
        cse("build-tfidf", sample, "--tokenizer", "odd", "-o", tmp_path / "x"), "--tokenizer", "unicode, whitespace"
    )
    for arguments in (["frobnicate"], ["train", "--frob"], ["train", "--epochs", "many"]):
        done = cse(*arguments, cwd=indexed)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
    for radius in ("0", "-1"):
        refused(cse("augment", sample, "--radius", radius, cwd=indexed), "--radius")
    refused(cse("augment", sample, "--beta", "1.5", cwd=indexed), "--beta")
    refused(cse("explain", "a b", "--beta", "2", cwd=indexed), "--beta")
    refused(cse("augment", sample, "--surface", "odd", cwd=indexed), "--surface")
    refused(cse("augment", sample, "--encoding-errors", "odd", cwd=indexed), "--encoding-errors")


def test_train_and_encode_refuse_a_corpus_of_blank_lines(cse, tiny_bert, tmp_path):
    path = corpus(tmp_path, b"\n\n")
    refused(cse("train", path, "--model", tiny_bert, cwd=tmp_path), "corpus.txt: all 2 lines are blank")
    refused(cse("encode", tiny_bert, path, "-o", tmp_path / "v.npy"), "corpus.txt: all 2 lines are blank")
    refused(cse("encode", tiny_bert, path, "-o", tmp_path / "no" / "v.npy"), "-o", "folder does not exist")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt"]


@pytest.mark.skipif(importlib.util.find_spec("resource") is None, reason="no resource limits on this system")
def test_a_full_disk_does_not_damage_existing_files(cse, sample, tmp_path):
    """A limit on file sizes simulates a full disk: a write fails halfway through the file."""

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    assert cse("build-tfidf", sample, cwd=tmp_path, text=True).returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "tfidf").iterdir()}
    done = cse("build-tfidf", sample, "--tokenizer", "whitespace", cwd=tmp_path, preexec=small_files)
    refused(done, "matrix.npz", "file too large")
    assert {path.name: path.read_bytes() for path in (tmp_path / "tfidf").iterdir()} == before
    done = cse("build-tfidf", sample, "--no-matrix", "-o", "other", cwd=tmp_path, preexec=small_files)
    refused(done, "index.safetensors")
    assert list((tmp_path / "other").iterdir()) == []

    (tmp_path / "negatives.txt").write_text("old")
    done = cse("augment", sample, "-o", "negatives.txt", cwd=tmp_path, preexec=small_files)
    refused(done, "negatives.txt")
    assert (tmp_path / "negatives.txt").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["negatives.txt", "other", "tfidf"]
