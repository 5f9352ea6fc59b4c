"""Tests of `cse reproduce TABLE --print-commands`: the commands make what the table makes."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from cse import InputError, TrainConfig
from cse.cli.commands.train import given_values, train_command
from cse.cli.group import cli
from cse.registry import parse_setting
from cse.training.settings.flat import merge
from cse_papers.reproduce.cells import Cell, cells_of, config_of
from cse_papers.reproduce.commands import commands_of, train_words
from cse_papers.reproduce.effects import laboratory
from cse_papers.reproduce.runner import run_cell
from cse_papers.reproduce.scores import Scorer
from cse_papers.reproduce.smoke import smoke_inputs
from cse_papers.reproduce.tables import find_table, tables
from cse_papers.reproduce.work import Work, planned


def parsed(words):
    """Returns the configuration of the words of ``cse train``."""
    values = dict(train_command.make_context("train", list(words)).params)
    known = {name: values.pop(name) for name in ("config_file", "resume", "query", "verbose", "as_json", "settings")}
    chosen = given_values(values)
    for text in known["settings"] or ():
        method, option, value = parse_setting(text)
        chosen[f"{method}.{option}"] = value
    return TrainConfig(**chosen)


def test_the_command_of_each_run_has_its_configuration(tmp_path):
    inputs = smoke_inputs(find_table("una-tableC3"), tmp_path, "cpu", 1)
    seen = 0
    for table in [*tables().values(), laboratory().table]:
        for row in table.rows:
            for column, recipe in row.recipes.items():
                names = dict.fromkeys(recipe.needs(), str(inputs.corpus))
                if recipe.encoder is not None:
                    continue
                given = replace(inputs, files={**inputs.files, **names}) if names else inputs
                config = config_of(Cell(table, row, column, recipe, 3), given, tmp_path)
                words = train_words(config)
                assert words[:2] == ["cse", "train"]
                assert merge(parsed(shlex.split(shlex.join(words[2:]))).values()) == merge(config.values()), words
                seen += 1
    assert seen > 300


@pytest.fixture
def printed(tmp_path):
    """A cell with its inputs and its scorer, whose commands have been typed, and what they printed as JSON."""
    table = find_table("una-table1")
    inputs = smoke_inputs(table, tmp_path / "smoke", "cpu", 1)
    (cell,) = cells_of(table, table.find_rows(["UNA, bert-base-uncased"]), [0])
    scorer = Scorer(table.suite, table.columns, inputs.data, inputs.partial)
    index, train, *evaluate = commands_of(cell, inputs, scorer, tmp_path)
    assert index.startswith("cse build-tfidf")
    outputs = []
    for line in (index, train, *evaluate):
        done = CliRunner().invoke(cli, [*shlex.split(line)[1:], "--json"])
        assert done.exit_code == 0, (line, done.output)
        outputs.append(done.stdout)
    return cell, inputs, scorer, outputs


def test_a_run_that_was_made_by_the_commands_is_read_and_kept(printed, tmp_path):
    cell, inputs, scorer, outputs = printed
    folder = tmp_path / cell.folder / "seed-0"
    before = (folder / "best" / "model.safetensors").read_bytes()
    record = run_cell(cell, inputs, scorer, tmp_path)
    (found,) = [json.loads(text) for text in outputs[2:]]
    scores = {row["task"]: row["spearman"] for row in found["suites"]["sts"]["tasks"]}
    known = record["scores"].keys() & scores.keys()
    assert len(known) >= 7
    assert {task: record["scores"][task] for task in known} == pytest.approx({task: scores[task] for task in known})
    assert (folder / "best" / "model.safetensors").read_bytes() == before
    cell.path(tmp_path).unlink()
    with pytest.raises(InputError, match=r"seed-0: was made with batch_size 8, not 9; choose another folder with -o"):
        run_cell(cell, replace(inputs, batch_size=9), scorer, tmp_path)
    assert Path(folder).exists()
    config = (folder / "environment.json").read_text(encoding="utf8")
    (folder / "environment.json").write_text(config.replace('"fp32"', '"bf16"'), encoding="utf8")
    with pytest.raises(InputError, match="seed-0: was made with precision bf16, not fp32; give --precision"):
        run_cell(cell, inputs, scorer, tmp_path)
    (folder / "environment.json").write_text(config, encoding="utf8")
    assert (record["steps"], record["train_processor_seconds"]) == (2, None)
    text = inputs.corpus.read_text(encoding="utf8")
    inputs.corpus.write_text(f"{text}one more\n", encoding="utf8")
    with pytest.raises(InputError, match="has changed"):  # the encoder is not of this corpus
        run_cell(cell, inputs, scorer, tmp_path)
    inputs.corpus.write_text(text, encoding="utf8")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(InputError, match="exists"):  # nothing that a person may need is removed
        run_cell(cell, inputs, scorer, tmp_path)
    assert (folder / "best").exists()


def test_commands_of_the_laboratory_make_the_encoders_that_rows_need_and_score_all(tmp_path):
    lab = laboratory()
    inputs = smoke_inputs(lab.table, tmp_path / "smoke", "cpu", 1)
    scorer = Scorer("effects", lab.table.columns, inputs.data, inputs.partial)
    rows = lab.table.find_rows(["CARDS, retrieved negatives", "CARDS*"])
    assert len(rows) == 1
    work = Work(lab.table, rows, range(2), inputs, scorer, tmp_path)
    cells = lab.cells([rows[0].name], 2, {})
    work, first, chosen = planned(lab, work, cells)
    assert [(cell.row.name, cell.seed) for cell in first] == [("standard", 0)]
    own = [cell for cell in chosen.wanted if cell.row == rows[0]]
    lines = [line for cell in own for line in commands_of(cell, work.inputs, scorer, tmp_path)]
    (taught,) = {line.split("retrieved.model=")[1].split()[0] for line in lines if "retrieved.model=" in line}
    (made,) = {line.split()[2] for line in commands_of(first[0], work.inputs, scorer, tmp_path) if " eval " in line}
    assert taught.strip("\"'") == made
    kinds = [line.split("--suite ")[1].split()[0] for line in commands_of(first[0], work.inputs, scorer, tmp_path)
             if "--suite" in line]  # fmt: skip
    assert kinds == ["sts-dev", "geometry"]
