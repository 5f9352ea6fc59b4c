"""The cse commands: results, JSON output, and error messages."""

import json
import re
import resource
import shlex
import signal
import subprocess
import sys

import pytest

from cse import InputError, TfidfIndex
from cse.cli import printing
from cse.evaluation import EVALUATIONS
from forked import Forked


def ran(done):
    """Asserts that a command succeeded; returns what it printed."""
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done, *phrases):
    """Asserts exit code 2, an error message with these phrases as the last line of stderr, and an empty stdout."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr.strip().splitlines()[-1]
    assert message.startswith("Error: ")
    for phrase in phrases:
        assert phrase in message, message
    assert done.stdout == ""


def run_and_list_imports(*arguments, cwd=None, code="from cse.cli import main; main()"):
    """Runs a program in a new process; returns its exit code, the large packages it imports, and what it prints."""
    large = ("torch", "transformers", "numpy", "scipy", "rich")
    listed = f"print(*[name for name in {large} if name in sys.modules], file=sys.stderr)"
    command = [sys.executable, "-c", f"import sys\ntry:\n    {code}\nfinally:\n    {listed}", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    *printed, packages = done.stderr.splitlines()
    return done.returncode, {*packages.split()}, done.stdout + "\n".join(printed)


def test_large_packages_are_imported_only_where_they_are_used(sample, tmp_path):
    for command in ([], ["train"], ["search"]):
        code, packages, printed = run_and_list_imports(*command, "--help")
        assert (code, packages) == (0, set())
    code, packages, _ = run_and_list_imports("build-tfidf", sample, cwd=tmp_path)
    assert code == 0
    assert not {"torch", "transformers"} & packages
    assert "torch" not in run_and_list_imports(code="import cse; cse.evaluate; cse.compare")[1]
    preset = "from cse.training.settings.resolve import with_preset as f; from cse import TrainConfig; "
    preset += "f(TrainConfig(preset='una-bert-base', loss='focal', una={'beta': 0.3}))"
    assert not {"torch", "transformers"} & run_and_list_imports(code=preset)[1]
    _, packages, printed = run_and_list_imports("methods")
    assert "torch" not in packages
    assert "loss term:\n" in printed
    listed = re.findall(r"^  \S+ .*", printed, re.MULTILINE)
    assert len(listed) == len({*listed}) > 40
    change = r"\(UNA\) \(\+0\.31 \[\+0\.07, \+0\.53\], compared with the standard loss, each at its best temperature\)"
    assert re.search(f"^  una .*{change}", printed, re.MULTILINE)


def test_missing_inputs_are_reported_before_torch_is_imported(tmp_path):
    (tmp_path / "c.txt").write_text("a sentence\n")
    for arguments, message in (
        ("encode runs/nope c.txt -o x.npy", "runs/nope: no such folder"),
        ("encode minilm c.txt -o x.foo", "-o x.foo: the name must end in"),
        ("train nope.txt", "nope.txt: no such file"),
        ("train c.txt --column x", "--column x: none of the files is a table"),
        ("train c.txt --tfidf nope --una", "--tfidf nope: no TF-IDF index there"),
        ("train c.txt --dev nope.tsv", "nope.tsv: no such file"),
        ("train --resume runs/nope", "--resume runs/nope: no such folder"),
    ):
        code, packages, printed = run_and_list_imports(*arguments.split(), cwd=tmp_path)
        assert (code, "torch" in packages) == (2, False)
        assert message in printed


def test_build_tfidf_prints_one_json_object_and_removes_the_matrix_if_told_so(cse_here, sample, tmp_path):
    ran(cse_here("build-tfidf", sample, cwd=tmp_path))
    done = cse_here("build-tfidf", sample, "--no-matrix", "--json", cwd=tmp_path)
    value = json.loads(done.stdout)
    assert (value["documents"], value["rows"], value["blank"]) == (10_000, 10_000, 0)
    assert [path.name for path in (tmp_path / "tfidf").iterdir()] == list(value["written"]) == ["index.safetensors"]
    assert done.stderr == ""
    (tmp_path / "bad.txt").write_bytes(b"one \xff two\nthree\n\xfe\n")
    done = cse_here("build-tfidf", "bad.txt", "--encoding-errors", "replace", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["repaired"] == 2


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


def test_negatives_do_not_depend_on_threads_or_batch_size(cse_here, indexed, sample, sample_rows, tmp_path):
    index, written = TfidfIndex.open(indexed / "tfidf"), []
    for threads in (1, 2):
        path = tmp_path / str(threads)
        done = cse_here("augment", sample, "--seed", 5, "--threads", threads, "-o", path, "--json", cwd=indexed)
        value = json.loads(done.stdout)
        assert value["rows"] == 10_000
        assert value["replacement_rate"] == pytest.approx(0.5, abs=0.03)
        written.append(path.read_text(encoding="utf8").split("\n")[:-1])
    alone = [index.augment([text], rows=[row], seed=5)[0] for row, text in enumerate(sample_rows)]
    assert written[0] == written[1] == alone == index.augment(sample_rows, seed=5)


def test_with_both_steps_random_no_word_is_forced_and_beta_0_gives_a_warning(cse_here, indexed, sample):
    random = ("--replace-which", "random", "--replace-with", "random", "--beta", "0")
    done = cse_here("augment", sample, "-o", "n.txt", *random, cwd=indexed)
    assert "with --beta 0 and both steps random, no word is replaced" in done.stderr
    assert (indexed / "n.txt").read_text(encoding="utf8") == sample.read_text(encoding="utf8")
    done = cse_here("augment", sample, "-o", "n.txt", *random[:2], "--beta", "0", cwd=indexed)
    assert "no word is replaced" not in done.stderr
    assert (indexed / "n.txt").read_text(encoding="utf8") != sample.read_text(encoding="utf8")


def test_explain_shows_each_word_literally(cse_here, indexed, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    sentence = "Greetings from the real universe."
    shown = cse_here("explain", sentence, cwd=indexed).stdout
    assert all(word in shown for word in ("Greetings", "not in index", "universe", "p(replace)"))
    value = json.loads(cse_here("explain", sentence, "--json", cwd=indexed).stdout)
    assert [word["word"] for word in value["words"]] == ["Greetings", "from", "the", "real", "universe"]
    assert all(len(word["samples"]) == 4 for word in value["words"])
    forced = "one of them, chosen at random, is always replaced"
    assert forced in cse_here("explain", "the the", cwd=indexed).stdout
    ablation = ("--replace-which", "random", "--replace-with", "random")
    assert forced not in cse_here("explain", "the the", *ablation, cwd=indexed).stdout
    (tmp_path / "a.txt").write_text("[/red] hello [bold] world\nanother [/b] row\n")
    assert cse_here("build-tfidf", "a.txt", "--tokenizer", "whitespace", cwd=tmp_path).returncode == 0
    shown = cse_here("explain", "[bold] world [/red]", cwd=tmp_path).stdout
    assert "[bold]" in shown
    assert "[/red]" in shown
    (tmp_path / "a.txt").write_text("\u5317\u4eac is a city\nanother city is here\n", encoding="utf8")
    assert cse_here("build-tfidf", "a.txt", cwd=tmp_path).returncode == 0
    shown = cse_here("explain", "the \u5317\u4eac city", cwd=tmp_path).stdout
    assert "joined to another word" in " ".join(shown.split())
    words = json.loads(cse_here("explain", "the \u5317\u4eac city", "--json", cwd=tmp_path).stdout)["words"]
    assert [word["replaceable"] for word in words] == [True, False, False, True]
    assert not words[1]["samples"]


def test_each_error_is_printed_once_and_names_the_rank(cse_here, tmp_path, monkeypatch):
    found = []
    for rank, name, rendezvous in (("0", "a", ""), ("2", "a", ""), ("1", "a", "x"), ("0", "a", "x"), ("0", "b", "x")):
        (tmp_path / "x" / rank).mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", rendezvous and str(tmp_path / "x" / rank / "error.json"))
        done = cse_here("build-tfidf", f"{name}.txt", cwd=tmp_path)
        assert done.returncode == 2
        found.append(done.stderr.replace(".txt: no such file; check the path\n", ""))
    assert found == ["Error: a", "Error on rank 2: a", "Error on rank 1: a", "", "Error: b"]


# Each command with a part of its error message, which names the file and line, or the flag.
CONTENTS = {
    "c": b"a sentence\n",
    "empty": b"",
    "blank": b"\n \n\t\n",
    "latin": b"one\ntwo \xff three\n",
    "marked": b"\xef\xbb\xbfab \xff\n",
    "long": b"one\n" + b"x" * (1 << 20) + b"y\n",
    "mute": b"...\n!!!\n",
}
REFUSED = [
    ("build-tfidf empty.txt -o out", "empty.txt: the file is empty"),
    ("build-tfidf blank.txt -o out", "blank.txt: all 3 lines are blank"),
    ("build-tfidf latin.txt -o out", "line 2 is not valid UTF-8 (byte offset 8); convert the file, or pass --encodi"),
    ("build-tfidf marked.txt -o out", "marked.txt: line 1 is not valid UTF-8 (byte offset 6"),
    ("build-tfidf long.txt -o out", "long.txt: line 2 is longer than 1048576 bytes"),
    ("build-tfidf mute.txt -o out", "no line contains a word"),
    ("build-tfidf nope.txt", "nope.txt: no such file"),
    ("build-tfidf sub", "is a folder; name the files in it, like 'sub/*.txt'"),
    ("build-tfidf c.txt -o c.txt/out", "Error: c.txt/out: "),
    ("build-tfidf c.txt --engine ray --matrix", "--matrix cannot be combined with --engine ray"),
    ("build-tfidf c.txt --engine odd", "choose one of local, ray"),
    ("build-tfidf c.txt --tokenizer odd", "unicode, whitespace"),
    ("build-tfidf --learning-rate 1", "No such option --learning-rate."),
    ("trian", "No such command 'trian' (did you mean train?)."),
    ("augment c.txt --tfidf nope", "no TF-IDF index there; make one with 'cse build-tfidf"),
    ("augment c.txt --json", "-o FILE"),
    ("augment c.txt -o negatives.txt.gz", "is plain lines"),
    ("augment c.txt -o no/x.txt", "Error: no/x.txt: there is no folder no; create it, or check the path"),
    ("augment c.txt --radius 0", "--radius"),
    ("augment c.txt --surface odd", "--surface"),
    ("augment c.txt --encoding-errors odd", "--encoding-errors"),
    ("explain 'a b' --beta 2", "--beta"),
    ("encode TINY blank.txt -o v.npy", "blank.txt: all 3 lines are blank"),
    ("encode TINY c.txt -o no/v.npy", "Error: -o no/v.npy: its folder does not exist; create it first"),
    ("train --tfidf none", "CORPUS: no file was given, and none is no TF-IDF index"),
    ("train --tfidf gone --model TINY", "gone.txt, and there is no such file here"),
    ("train --tfidf none", "one sentence per line (cse train corpus.txt)"),
    ("train - --query a", "--query searches the files of CORPUS"),
    ("train c.txt --query ' '", "--query is blank"),
    ("train blank.txt --model TINY", "blank.txt: all 3 lines are blank"),
    ("train --frob", "No such option --frob"),
    ("search c --no-verify", "No such option --no-verify: the checksum is always compared"),
    ("train --learning-rate 1", "No such option --learning-rate (did you mean --lr?)."),
    ("train --loss fokal", "--loss: 'fokal' is unknown (did you mean focal?); choose one of"),
    ("train --pooler mean", "--pooler: 'mean' is unknown (did you mean avg?); choose one of"),
    ("train c.txt --preset encoder-queries", "needs --pairs FILE"),
    ("train --preset simsce-bert-base", "(did you mean simcse-bert-base?)"),
    ("train --set una.odd=1", "una.odd: no such option; the options of una are every"),
    ("train --set una", "--set una: the form is"),
    ("train --set odd.option=1", "odd: neither a setting nor a method"),
    ("train --una --set una.beta=many", "--beta must be a number, got 'many'"),
    ("train --una --set una.every=1e9", "--una-every must be an integer, got 1000000000.0"),
    ("train --name 'two\nlines'", r"--name: 'two\nlines' cannot be the name of a folder"),
    ("train --positive odd", "--positive: 'odd' is unknown; choose one of"),
    ("train --loss mixed --no-mixed-negatives", "--no-mixed-negatives"),
    ("train --loss mixed --mix-variant release --una --model TINY", "--mix-variant release"),
    ("train --device cuda:7", "--device cuda:7"),
    ("train c.txt --data nope", "nope: no such file"),
    ("train --max-length 500 --model TINY", "--max-length: 500 is more than the 64 tokens"),
    (f"train --seed {2**64}", "--seed"),
    ("train --preset una-bert-base --config x.toml", "--preset"),
    ("train --batch-size 20000 --model TINY", "--batch-size: 20000 is more than the"),
]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory, indexed):
    folder = tmp_path_factory.mktemp("refused")
    for name, content in CONTENTS.items():
        (folder / f"{name}.txt").write_bytes(content)
    (folder / "tfidf").symlink_to(indexed / "tfidf")
    (folder / "sub").mkdir()
    (folder / "gone.txt").write_text("a sentence\n")
    TfidfIndex.build(folder / "gone.txt").save(folder / "gone")
    (folder / "gone.txt").unlink()
    return folder


@pytest.mark.parametrize(("command", "phrase"), REFUSED, ids=lambda text: text[:60])
def test_errors_name_the_file_or_the_flag_and_nothing_is_written(cse_here, refusing, tiny_bert, command, phrase):
    before = {*refusing.iterdir()}
    refused(cse_here(*shlex.split(command.replace("TINY", str(tiny_bert))), cwd=refusing), phrase)
    assert {*refusing.iterdir()} == before


def test_output_may_be_a_symbolic_link_or_a_device(cse, indexed, sample, tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    assert cse("augment", sample, "-o", tmp_path / "link.txt", cwd=indexed).returncode == 0
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text(encoding="utf8").count("\n") == 10_000
    assert cse("augment", sample, "-o", "/dev/stdout", cwd=indexed).stdout.count("\n") == 10_000


def test_six_lines_and_one_example_describe_a_run_unless_verbose(run_config, capsys):
    from cse import ProgressCallback
    from cse.cli.commands.train import ConsoleCallback
    from cse.training.setup import prepare

    run = prepare(run_config.replace(una=True))
    run.facts["warning"] = "the rows are short"
    sentences, shown = len({example.text for example in run.examples}), {}
    for kind in (ConsoleCallback, ProgressCallback):
        for verbose, examples in ((False, 1), (True, sentences)):
            kind(verbose=verbose).on_train_begin(run)
            shown[verbose] = capsys.readouterr().err.splitlines()
            assert sum(line.lstrip().startswith("-  ") for line in shown[verbose]) == examples > verbose
        names = [line[:9].strip() for line in shown[False][:6]]
        assert names == ["corpus", "model", "recipe", "steps", "device", "warning"]
        assert f" positive  {run.facts['positive']}" in shown[True]
        assert all(any(f"  {value}" in line for line in shown[True]) for value in run.facts.values())


def test_train_with_a_query_shows_hits_before_and_after_training(cse_here, short_corpus, tiny_bert, tmp_path):
    from cse import Encoder, SearchIndex

    done = cse_here(
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


def test_long_sentences_are_truncated_on_the_screen(capsys):
    from cse.augment.base import Example

    text = "word " * 40
    printing.print_examples([[Example(text, "short", ((0, 4), (110, 114), (116, 122), (150, 154)))]])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].count("[") == 2
    assert lines[1].replace("[", "").replace("]", "").strip() == f"-  {text[:119].rstrip()}\u2026"
    (_, *lines) = printing.neighbours([{"sentence": "x" * 130, "before": "x" * 120, "after": "short"}])
    assert [line.split()[-1] for line in lines] == ["x" * 119 + "\u2026", "x" * 120, "short"]


def test_train_has_an_option_for_each_setting_and_help_lists_the_common_ones(cse_here):
    from cse.cli.commands.train import COMMON, train_command
    from cse.training.settings.names import SETTINGS, method_flags

    options = [option for option in train_command.params if option.param_type_name == "option"]
    named = {option.name: option.opts[0] for option in options}
    assert set(SETTINGS) - {"loss_terms", "corpus"} <= named.keys()  # --loss-term adds to it, as more_loss_terms
    assert set(method_flags()) <= named.keys()
    flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
    assert len(flags) == len(set(flags))
    assert all(option.help for option in options)
    short, whole = cse_here("train", "--help").stdout, cse_here("train", "--help-all").stdout
    listed = [name for name, flag in named.items() if re.search(rf"^  (-\w, )?{flag}\b", short, re.MULTILINE)]
    assert set(listed) == set(COMMON) > {"labels", "seed"}
    assert f"{len(named) - len(COMMON) - 1} more options: cse train --help-all" in short
    assert all(re.search(rf"^  (-\w, )?{flag}\b", whole, re.MULTILINE) for flag in named.values())


def test_the_help_of_eval_names_every_suite(cse_here):
    shown = cse_here("eval", "--help").stdout
    assert all(re.search(rf"\b{name}\b", shown) for name in EVALUATIONS.names())


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
    options = {"mlm": {"weight": 0.5}, "matryoshka": {"dims": [8, 16]}}
    assert terms == TrainConfig(more_loss_terms=["mlm", "matryoshka"], options=options)
    assert TrainConfig(loss_terms=["scd"], mlm_weight=0.5).loss_terms == ("scd", "mlm")
    assert terms.replace(mlm_weight=0) == TrainConfig(dims=[8, 16])
    assert TrainConfig(loss="focal", margin=0.2).replace(margin=0.1).contrastive.margin == 0.1
    with pytest.raises(InputError, match=r"contrastive\.temperature: use --temperature, unless the loss"):
        TrainConfig(options={"contrastive": {"temperature": 0.1}})


def test_the_loss_terms_of_the_command_line_are_added_to_those_of_the_recipe(tiny_bert):
    from cse import TrainConfig
    from cse.cli.commands.train import given_values
    from runs import resolved

    for given, family, expected in (
        ({"more_loss_terms": ("mlm",)}, "encoder", ("keep-similarities", "mlm")),
        ({"mlm_weight": 0.1}, "encoder", ("keep-similarities", "mlm")),
        ({"teacher": "m", "loss": "focal"}, "encoder", ("keep-similarities", "teacher")),
        ({"teacher": "m", "dims": "8"}, "bert-base", ("teacher", "matryoshka")),
        ({"more_loss_terms": ("none",)}, "encoder", ()),
        ({"more_loss_terms": ("none", "mlm")}, "encoder", ("mlm",)),
        ({"more_loss_terms": ("mlm",)}, "bert-base", ("mlm",)),
    ):
        found = resolved(TrainConfig(model=str(tiny_bert), **given_values(given)), family)
        assert found.loss.loss_terms == expected
        as_keywords = resolved(TrainConfig(model=str(tiny_bert), **given), family)
        assert as_keywords.to_toml() == found.to_toml()
        assert resolved(TrainConfig(**{**found.values(), "options": {}}), "encoder").loss.loss_terms == expected
    assert resolved(TrainConfig(model=str(tiny_bert), loss_terms=("mlm",)), "encoder").loss.loss_terms == ("mlm",)


def test_shell_completion_offers_the_values_of_options():
    import click

    from cse.cli.commands.train import train_command

    options = {option.name: option for option in train_command.params}
    for name, incomplete, expected in (
        ("objective", "n", ["nt-xent"]),
        ("positive", "eda-s", ["eda-swap", "eda-synonym"]),
        ("pooler", "avg_f", ["avg_first_last"]),
        ("una_as", "", ["pairs", "hard-negatives"]),
        ("preset", "una-r", ["una-roberta-base"]),
    ):
        found = options[name].type.shell_complete(click.Context(train_command), options[name], incomplete)
        assert [item.value for item in found] == expected


def test_training_on_a_full_disk_fails_and_leaves_no_run_folder(indexed, tiny_bert, tmp_path):
    flags = ("--model", tiny_bert, "--max-steps", 2, "--batch-size", 8, "-o", tmp_path / "runs")
    more = {"env": {"LIMIT": "150000"}, "entry": "test_resume:main_on_a_small_disk"}
    process = Forked("train", *flags, cwd=indexed, **more)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "best" in printed.decode().splitlines()[-1]
    assert list((tmp_path / "runs").iterdir()) == []


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


def test_a_misspelt_column_of_labels_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"row {n},{'ab'[n % 2]}\n" for n in range(20)), "utf8")
    for arguments, message in (
        (["--labels", "lable"], "--labels lable: .* has no column 'lable'; its columns are: text, label"),
        (["--judge", "labels=nowhere.csv"], "--judge labels=nowhere.csv: must be SUITE=PATH"),
    ):
        code, packages, printed = run_and_list_imports("train", tmp_path / "t.csv", "--column", "text", *arguments)
        assert code == 2
        assert re.search(message, printed)
        assert not {"torch", "transformers"} & packages
