"""Compares two installations of cse on one machine, for example before and after a refactoring.

    python benches/same_results.py BASE_PYTHON NEW_PYTHON [--only augment] [--save base.json | --saved base.json]

Both arguments are Python interpreters of environments in which cse is installed. An environment for revision REV is
created by ``git worktree add ../base REV && make -C ../base .venv/ready``. For each installation, the script collects

- help: the help of every command;
- settings: the settings of a run, or the sentence that refuses them, for each combination of positive, loss and UNA
  that ``cse methods --combinations`` lists, in five model families, and for each preset;
- drawn: the same for 8,000 drawn configurations, valid and invalid: of settings, presets, methods and their options;
- flags: the same for 1,600 drawn command lines of ``cse train``, some of which repeat or resume a run with changes;
- index: digests of the index and the matrix, for each tokenizer;
- augment: digests of the negatives of ``cse augment``, for all combinations of the sampling options, with two values
  of beta and two radii;
- train: digests of the log (without times), the saved weights, config.toml, data.json and the model card of six steps
  of a tiny model with random weights, for each loss, without UNA and with each form of it, for each preset, and for
  methods that no preset uses.

The script prints what differs, and exits with 1 if anything does. ``--save`` writes the results of the first
installation to a file, which later comparisons on the same machine read instead of running it again (``--saved``).
"""

from __future__ import annotations

import argparse
import difflib
import json
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("help", "settings", "drawn", "flags", "index", "augment", "train")

# Runs of methods that no preset uses, or that have several forms.
METHODS: dict[str, dict[str, Any]] = {
    **{
        f"positive {name}": {"positive": name}
        for name in ("crop", "delete", "eda-swap", "eda-delete", "aeda", "repetition", "masked-span", "one-of")
    },
    **{f"positive {name}": {"positive": name} for name in ("halves", "spans", "next-sentence", "uda")},
    "positive eda-synonym": {"positive": "eda-synonym", "eda-synonym": {"synonyms": "synonyms.txt"}},
    "positive eda-insert": {"positive": "eda-insert", "eda-insert": {"synonyms": "synonyms.txt"}},
    "positive substitution": {"positive": "substitution", "substitution": {"model": "generator"}},
    "positive parallel": {"positive": "parallel", "parallel": {"file": "parallel.txt"}},
    **{f"negative {name}": {"negatives": (name,)} for name in ("eda-swap", "delete", "repetition")},
    **{
        f"modals {kind}": {"feature_augmentations": ("modals",), "modals": {"kind": kind}}
        for kind in ("interpolation", "extrapolation", "linear", "noise")
    },
    **{
        f"hook {name}": {"positive_hook": name, "anchor_hook": name}
        for name in ("feature-cutoff", "token-cutoff", "token-shuffle", "pca")
    },
    "dclr paper": {"feature_augmentations": ("dclr",), "dclr": {"model": "second", "threshold": 0.3, "noise": 1.5}},
    "momentum paper": {"feature_augmentations": ("momentum",), "momentum": {"size": 20}},
    "diffcse release": {"loss_terms": ("diffcse",), "diffcse": {"generator": "generator", "variant": "release"}},
    "augcse": {"loss_terms": ("augcse",), "positive": "one-of"},
    "encoder method ema": {"encoder_methods": ("ema",)},
    "encoder method lora": {"encoder_methods": ("lora",)},
    "mlm": {"loss_terms": ("mlm",)},
    "keep-similarities": {"loss_terms": ("keep-similarities",)},
    "matryoshka": {"loss_terms": ("matryoshka",), "pooler": "avg", "matryoshka": {"dims": "16,8"}},
}
LOSSES: dict[str, dict[str, Any]] = {
    "standard": {},
    "focal": {"loss": "focal"},
    "mixed": {"loss": "mixed"},
    "mixed release": {"loss": "mixed", "mix_variant": "release"},
}
UNA: dict[str, dict[str, Any]] = {
    "without UNA": {},
    "UNA as pairs": {"negatives": ("una",), "una": {"every": 2, "use_as": "pairs"}},
    "UNA as hard negatives": {"negatives": ("una",), "una": {"every": 2, "use_as": "hard-negatives"}},
}
# Options that presets of these names need, or that make their methods act within six steps.
NEEDED: dict[str, dict[str, Any]] = {
    "dclr": {"dclr": {"model": "second", "threshold": 0.3}},
    "diffcse": {"diffcse": {"generator": "generator"}},
    "una": {"una": {"every": 2, "radius": 50}},
    "scd": {"scd": {"width": 64}},
    "esimcse": {"momentum": {"size": 30}},
    "clusterns": {"clusterns": {"clusters": 4}},
    "infocse": {"infocse": {"frozen_layers": 2, "head_layers": 1}},
    "whitenedcse": {"group-whitening": {"size": 4}},
    "rankcse": {"rankcse": {"teachers": ["second", "bert"]}},
}

# Runs in each installation, with the kinds to collect, the METHODS and so on in runs.json; prints a line per result.
COLLECT = r"""
import contextlib, hashlib, io, itertools, json, random, sys, tomllib, warnings
from pathlib import Path
warnings.filterwarnings("ignore")
import click
from cse import InputError, TrainConfig, train
from cse.augment import AUGMENTATIONS, PAIRS_POSITIVE
from cse.cli import group
from cse import _core
from cse.options import options_of
from cse.training import loop, setup
from cse.training.settings.presets import preset_names
from cse.cli.commands import methods as combined
from cse.encoder.resolve import Source
from cse.training.settings.names import SETTINGS, TABLES, method_flags
from cse.training.settings.resolve import resolve
try:
    from cse.training.settings.described import public_toml, recipe_reason
except ImportError:  # of version 2794a914
    from cse.training.settings.resolve import Resolved, recipe_reason
    public_toml = Resolved.public_toml

kinds, output, given = sys.argv[1].split(","), Path(sys.argv[2]), json.loads(Path("runs.json").read_text())

def found(kind, name, value):
    print(json.dumps([kind, name, value]), flush=True)

def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]

def run(*arguments):
    group.cli.main(list(map(str, arguments)), standalone_mode=False)

def final(config, family, own_pooler=None, precision=None):
    resolved = resolve(config, lambda name: Source(name, name, name, family, own_pooler))
    resolved = resolved.changed(precision=precision) if precision else resolved
    loss, public = setup.describe_loss(resolved), public_toml(resolved)
    return resolved, "\n".join([resolved.to_toml(), recipe_reason(resolved, family), loss, public])

def resolved(family, *others, **values):
    try:
        return final(TrainConfig(**values), family, *others)[1]
    except InputError as error:
        return f"refused: {error}"

def refused(option, value):
    with contextlib.suppress(InputError):
        return option.check([value] if option.several else value) is None

def drawn_value(option):
    choices = sorted(option.names())
    if not choices:
        numbers = {bool: [True, False], int: [1, 2, 9, 64, 0], float: [0.05, 0.1, 0.5, 1.0, 0.0]}
        choices = ["5%"] if option.name == "radius" else numbers.get(option.kind, ["corpus.txt", "4,2", "{text} x"])
        choices = [value for value in choices if not refused(option, value)] or choices
    if draw.random() < 0.02:
        choices = [-1, "odd", 1e9, ["odd"], 10**30, ""]
    return [draw.choice(choices) for _ in range(draw.choice((1, 1, 2)))] if option.several else draw.choice(choices)

def drawn_values():
    kinds = dict(zip(("loss", "positive", "preset"), (0.6, 0.4, 0.25), strict=True))
    kinds |= dict.fromkeys(("loss_terms", "negatives", "feature_augmentations", "encoder_methods"), 0.08)
    values = dict(draw.choice([{"corpus": ["corpus.txt"]}] * 3 + [{"pairs": ["pairs.jsonl"]}] * 2 + [{}]))
    for name, share in kinds.items():
        if draw.random() < (0.05 if name == "positive" and "pairs" in values else share):
            values[name] = drawn_value(SETTINGS[name])
    if values.get("loss") and draw.random() < 0.5:
        values["loss"] = draw.choice(["standard", "focal", "mixed"])
    others = [name for name in SETTINGS if name != "imports" and (name != "corpus" or draw.random() < 0.1)]
    for name in draw.sample(others, draw.choice((0, 0, 1, 1, 2, 3))):
        values.setdefault(name, drawn_value(SETTINGS[name]))
    if draw.random() < 0.3:
        values.setdefault("una", draw.choice((True, True, False)))
    for name in draw.sample(sorted(method_flags()), draw.choice((0, 0, 0, 0, 0, 1, 2))):
        values[name] = drawn_value(method_flags()[name].option)
    named = ["contrastive", "una"] if draw.random() < 0.2 else []
    named += [item for value in values.values() for item in (value if isinstance(value, list) else [value])]
    for table, methods in {table: table.names() for table in TABLES}.items():
        for method in methods:
            options = options_of(table.options(method))
            if options and draw.random() < (0.4 if method in named else 0.002):
                chosen = draw.sample(options, min(len(options), draw.choice((1, 1, 2))))
                values.setdefault("options", {})[method] = {each.name: drawn_value(each) for each in chosen}
    return values

def arguments_of(values):
    arguments = []
    for name, value in values.items():
        option = SETTINGS[name] if name in SETTINGS else method_flags()[name].option if name in method_flags() else None
        several = value if isinstance(value, list) else [value]
        if name == "options":
            for method, key, item in ((m, k, i) for m, table in value.items() for k, i in table.items()):
                arguments += ["--set", f"{method}.{key}={item if isinstance(item, str) else json.dumps(item)}"]
        elif name == "corpus":
            arguments += several
        elif isinstance(value, bool):
            arguments += [f"--{'' if value else 'no-'}{(option.flag if option else name).removeprefix('--')}"]
        elif option.opt.separator:
            arguments += [option.flag, option.opt.separator.join(map(str, several))]
        else:
            arguments += [text for item in several for text in (option.flag, str(item))]
    return arguments

def captured(config, callback, resume=None):
    raise Captured(config, callback.lost)

class Captured(Exception):
    pass

def command_line(arguments, family):
    try:
        run("train", *arguments)
    except Captured as error:
        config, lost = error.args
        try:
            config, text = final(config, family, *(() if "--resume" not in arguments else (None, config.precision)))
        except InputError as error:
            return f"refused by the run: {error}"
        return "\n".join([text, *(lost(config) if lost else ())])
    except (InputError, OSError, click.UsageError) as error:
        return f"refused: {error}"

root = click.Context(group.cli, info_name="cse", **group.cli.context_settings)
for name in group.cli.list_commands(root) if "help" in kinds else ():
    command = group.cli.get_command(root, name)
    found("help", name, command.get_help(click.Context(command, parent=root, info_name=name)))
for family in given["families"] if "settings" in kinds else ():
    for positive, (loss, chosen), (form, una) in itertools.product(
        AUGMENTATIONS.names(), combined.losses().items(), combined.UNA.items()
    ):
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        values = {**source, "positive": positive, **chosen, **una}
        found("settings", f"{family}: {positive}, {loss}, {form}", resolved(family, **values))
    for preset in preset_names():
        found("settings", f"{family}: preset {preset}", resolved(family, preset=preset))
        found("settings", f"{family}: preset {preset}, pairs", resolved(family, preset=preset, pairs="pairs.csv"))
    found("settings", f"{family}: no settings", resolved(family))
draw = random.Random(1)
for number in range(given["drawn"] if "drawn" in kinds else 0):
    values, family = drawn_values(), draw.choice(given["families"])
    others = draw.choice((None, None, "avg", "mask")), draw.choice((None, "fp32", "bf16"))
    found("drawn", f"{number}: {family} {others} {json.dumps(values)}", resolved(family, *others, **values))
draw, train_steps, loop.train = random.Random(2), loop.train, captured
for number in range(given["flags"] if "flags" in kinds else 0):
    family, arguments, stored = draw.choice(given["families"]), arguments_of(drawn_values()), None
    while number % 2 and stored is None:  # a run to repeat or to resume
        values = drawn_values()
        with contextlib.suppress(InputError):
            stored = final(TrainConfig(**values), family)[0].to_toml()
    if stored is not None:
        folder = output / "stored" / "checkpoints" / "step-00000001"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").write_text(stored)
        (folder.parent.parent / "config.toml").write_text(stored)
        sums = {"config.toml": _core.hash_file(str(folder / "config.toml"))}
        (folder / "manifest.json").write_text(json.dumps(sums))
        small = draw.choice(([], [], ["--max-steps", "90"], ["-o", "other"], ["--lr", "0.1"], ["--loss", "mixed"]))
        arguments = draw.choice((arguments, small, small))
        if draw.random() < 0.5:
            arguments = [*arguments, "--config", folder / "config.toml"]
        else:
            arguments = [*arguments, "--resume", folder.parent.parent]
    found("flags", f"{number}: {family} {' '.join(map(str, arguments))}", command_line(arguments, family))
loop.train = train_steps
for tokenizer in ("unicode", "whitespace", "treebank"):  # the further kinds need the indexes
    with contextlib.redirect_stdout(sys.stderr):
        run("build-tfidf", "corpus.txt", "--tokenizer", tokenizer, "-o", output / tokenizer)
    for name in ("index.safetensors", "matrix.npz") if "index" in kinds else ():
        found("index", f"{tokenizer}/{name}", digest((output / tokenizer / name).read_bytes()))
forms = [*itertools.product(("unicode", "whitespace"), ("keep", "plain")), ("treebank", "plain")]
options = itertools.product(
    forms, ("tfidf", "random"), ("radius", "random"), ("negative", "positive"), ("0.3", "0.7"), ("50", "5%")
)
for (tokenizer, surface), which, using, mode, beta, radius in options if "augment" in kinds else ():
    arguments = ["augment", "corpus.txt", "--tfidf", output / tokenizer, "--surface", surface, "--replace-which", which]
    arguments += ["--replace-with", using, "--mode", mode, "--beta", beta, "--radius", radius, "--seed", "3"]
    run(*arguments, "-o", output / "negatives.txt")
    name = f"{tokenizer} {surface} {which} {using} {mode} beta {beta} radius {radius}"
    found("augment", name, digest((output / "negatives.txt").read_bytes()))
runs = {}
for name in preset_names():
    needed = [table for start, table in given["needed"].items() if name.startswith(f"{start}-")]
    labelled = name.startswith(("simcse-sup", "encoder-queries"))
    runs[f"preset {name}"] = {
        "preset": name,
        "model": "roberta" if "roberta" in name else "bert",
        **({"pairs": "pairs.jsonl"} if labelled else {"corpus": "corpus.txt"}),
        **(needed[0] if needed else {}),
        "tfidf": str(output / "treebank"),
    }
for name, values in given["runs"].items():
    chosen = {"model": "bert", "corpus": "corpus.txt", "positive": "dropout", "loss": "standard", **values}
    runs[name] = {"pooler": "cls", **chosen, "tfidf": str(output / "unicode")}
for name, values in runs.items() if "train" in kinds else ():
    values = {**given["common"], **values}
    try:
        folder = train(TrainConfig(**values, output=str(output), name=name.replace(" ", "-"))).folder
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        log = json.dumps([{k: v for k, v in line.items() if "second" not in k} for line in lines], sort_keys=True)
        weights = digest((folder / "last" / "model.safetensors").read_bytes())
        files = [digest((folder / file).read_bytes()) for file in ("config.toml", "data.json", "best/README.md")]
        found("train", name, f"{len(lines)} steps {digest(log.encode())} weights {weights} files {files}")
    except InputError as error:
        found("train", name, f"refused: {error}")
"""


def collected(python: str, kinds: str, folder: Path, name: str) -> dict[str, dict[str, str]]:
    """Returns the results of an installation by kind and name; ``folder`` holds what the runs read."""
    shutil.rmtree(folder / "runs", ignore_errors=True)  # the files of runs name their folder
    command = [python, "-c", COLLECT, kinds, "runs"]
    found: dict[str, dict[str, str]] = {}
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, encoding="utf8") as process:
        assert process.stdout is not None
        for line in process.stdout:
            kind, result, value = json.loads(line)
            found.setdefault(kind, {})[result] = value
            print(f"\r{name}: {kind} {len(found[kind])}  ", end="", file=sys.stderr, flush=True)
    if process.returncode:
        sys.exit(f"{python} ended with exit code {process.returncode}")
    return found


def write_inputs(folder: Path) -> None:
    """Writes the corpus, pairs, models (a tiny BERT and RoBERTa, a second encoder, a masked model) and runs.json."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

    from tiny import make_tiny  # type: ignore[import-not-found]

    for kind in ("bert", "roberta"):
        make_tiny(folder / kind, kind)
    sizes: dict[str, Any] = {"vocab_size": 2000, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=32, max_position_embeddings=64)
    torch.manual_seed(1)
    for name, model in (("second", BertModel(config)), ("generator", BertForMaskedLM(config))):
        model.save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(folder / "bert").save_pretrained(folder / name)
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").splitlines()[:300]
    words = sorted({word for row in sample for word in row.split()})
    columns = ("anchor", "positive", "negative")
    triples = [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*[iter(sample)] * 3, strict=True)]
    losses = {
        f"{loss}, {form}, {objective}": {**chosen, **una, "objective": objective}
        for loss, chosen in LOSSES.items()
        for form, una in UNA.items()
        for objective in ("infonce", "nt-xent")
    }
    common = {"max_steps": 6, "batch_size": 12, "log_every": 1, "eval_every": 0, "seed": 1, "device": "cpu"}
    given = {
        "families": ["bert-base", "bert-large", "roberta-base", "roberta-large", "encoder"],
        "needed": NEEDED,
        "runs": losses | METHODS,
        "drawn": 8000,
        "flags": 1600,
        "common": {**common, "threads": 1, "precision": "fp32", "lr": 5e-4},
    }
    for name, lines in {
        "corpus.txt": sample,
        "parallel.txt": sample[::-1],
        "synonyms.txt": [f"{word}\tother, {word}s" for word in words],
        "pairs.jsonl": triples,
        "runs.json": [json.dumps(given)],
    }.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="Python interpreter of the starting revision.")
    parser.add_argument("new", help="Python interpreter of the changed revision.")
    parser.add_argument("--only", choices=KINDS, action="append", help="Compare only results of this kind.")
    parser.add_argument("--save", type=Path, help="Write the results of the starting revision to this file.")
    parser.add_argument("--saved", type=Path, help="Read the results of the starting revision from this file.")
    options = parser.parse_args()
    kinds = ",".join(options.only or KINDS)
    with tempfile.TemporaryDirectory() as temporary:
        write_inputs(Path(temporary))
        if options.saved:
            base = json.loads(options.saved.read_text(encoding="utf8"))
        else:
            base = collected(options.base, kinds, Path(temporary), "one")
        if options.save:
            options.save.write_text(json.dumps(base), encoding="utf8")
        new = collected(options.new, kinds, Path(temporary), "two")
    different = 0
    for kind in options.only or KINDS:
        names = list(dict.fromkeys([*base.get(kind, {}), *new.get(kind, {})]))
        changed = [name for name in names if base[kind].get(name) != new[kind].get(name)]
        different += len(changed)
        print(f"{kind}: {len(names) - len(changed):,} of {len(names):,} are the same")
        for name in changed:
            old, now = (side[kind].get(name, "").splitlines() for side in (base, new))
            print("\n".join([f"== {kind}: {name}", *difflib.unified_diff(old, now, lineterm="", n=0)]))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
