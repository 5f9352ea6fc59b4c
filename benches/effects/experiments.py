"""The experiments of benches/effects: systems, temperatures, seeds and ablations, and what the papers report for them.

An ``Experiment`` is one training run. ``declared`` lists the runs of three stages in the order in which they are run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stored import records

# Name of the stored scores of the base.
BEFORE = "before-training"

STEPS = 400
# What all runs have in common. Some values are also defaults, but the defaults depend on the model.
COMMON: dict[str, Any] = {
    "pooler": "avg",
    "max_length": 32,
    "positive": "dropout",
    "loss": "standard",
    "batch_size": 64,
    "lr": 3e-5,
    "lr_scheduler": "linear",
    "weight_decay": 0.0,
    "merge_with_base": 0.0,
    "max_steps": STEPS,
    "eval_every": 0,
    "threads": 1,
}
# The radius of 4,000 terms in the paper is about 1 % of the terms of its corpus, a million sentences.
UNA = {"una": {"every": 5, "use_as": "pairs", "beta": 0.5, "radius": "1%"}}
SYSTEMS: dict[str, dict[str, Any]] = {
    "standard": {},
    "UNA": UNA,
    "standard, nt-xent": {"objective": "nt-xent"},  # the objective of UNA without its negatives
    "focal": {"loss": "focal", "margin": 0.3},
    "mixed": {"loss": "mixed", "mix_lambda": 0.2},
    "focal + UNA": {"loss": "focal", "margin": 0.3} | UNA,
    "mixed + UNA": {"loss": "mixed", "mix_lambda": 0.2} | UNA,
    "UDA": {"positive": "uda"},
}
TAUS = (0.05, 0.07, 0.1, 0.03, 0.15)
SEEDS = (0, 1, 2, 3, 4)
# The temperature in the paper of each system; a combination, which no paper has, takes the one of its loss.
PUBLISHED_TAU = dict.fromkeys(SYSTEMS, 0.05) | {"focal": 0.07, "focal + UNA": 0.07}
# Published averages of the seven test sets on BERT-base: the method, and the one that its paper compares with.
PUBLISHED = {
    "UNA": (("una-table1", "UNA"), ("una-table1", "SimCSE (reproduced)")),
    "focal": (("focal-readme", "Focal-InfoNCE"), ("focal-table2", "SimCSE")),
    "mixed": (("mixcse-sts", "MixCSE"), ("mixcse-sts", "SimCSE")),
}
# In an option, stands for the folder of the base model, and ``trained`` for that of a model that another run trains.
BASE = "{base}"


def trained(name: str) -> str:
    """Stands in an option for the folder of the model that the run with this name trains."""
    return f"{{trained {name}}}"


def merged(options: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Options with changes; an option that is changed to None is left out."""
    return {name: value for name, value in (options | changed).items() if value is not None}


@dataclass(frozen=True)
class Experiment:
    """A system at a temperature with a seed; in an ablation also changed settings, and a name for the change."""

    system: str
    tau: float
    seed: int = 0
    change: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the stored result."""
        parts = (self.system, f"tau{self.tau:g}", self.change, f"seed{self.seed}")
        return "-".join(re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part)

    @property
    def uses_index(self) -> bool:
        """Whether the run needs a TF-IDF index."""
        settings = self.keywords()
        return "una" in settings or settings["positive"] == "uda"

    @property
    def teachers(self) -> list[str]:
        """Names of the runs whose models this run needs; see ``trained``."""
        return re.findall(r"{trained ([^}]+)}", " ".join(self.arguments()))

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of ``TrainConfig``, without model, corpus, index and output."""
        settings = COMMON | SYSTEMS[self.system] | {"temperature": self.tau, "seed": self.seed}
        for name, value in self.settings.items():
            settings[name] = merged(settings.get(name, {}), value) if isinstance(value, dict) else value
        return settings

    def arguments(self) -> list[str]:
        """The flags of ``cse train`` that mean the same as ``keywords``."""
        result: list[str] = []
        for name, value in self.keywords().items():
            if isinstance(value, dict):
                result += ["--una"] if name == "una" else []
                result += [part for option, each in value.items() for part in ("--set", f"{name}.{option}={each}")]
            elif isinstance(value, list):  # the flag is in the singular and is given once for each value
                result += [part for each in value for part in ("--" + name[:-1].replace("_", "-"), each)]
            else:
                result += ["--" + name.replace("_", "-"), str(value)]
        return result


def best_taus(results: Path) -> dict[str, float]:
    """The temperature of each system with the highest STS-B dev score, for the systems whose grid is stored."""
    best, stored = {}, records(results)
    for system in SYSTEMS:
        names = {tau: Experiment(system, tau).name for tau in TAUS}
        if all(name in stored for name in names.values()):
            dev = {tau: stored[name]["scores"]["STS-B dev"] for tau, name in names.items()}
            best[system] = max(dev, key=lambda tau: dev[tau])
    return best


# The changed settings of a row (or another run), the published row, and its column if it is not that of the table.
Change = tuple[Mapping[str, Any] | Experiment, str] | tuple[Mapping[str, Any] | Experiment, str, str]


@dataclass(frozen=True)
class Ablation:
    """A table of a paper: rows of one score by label, all compared with the first one.

    ``column`` of the published ``table`` has the published values; a row without a published row has an empty name.
    The rows are run with ``seeds``, each.
    """

    title: str
    score: str
    base: Experiment
    table: str
    column: str
    rows: Mapping[str, Change]
    seeds: Sequence[int] = (0,)

    def experiment(self, label: str) -> Experiment:
        """The run of a row with seed 0."""
        change = self.rows[label][0]
        if isinstance(change, Experiment):
            return change
        changed = replace(self.base, change=f"{self.title.split()[-1]} {label}", settings=change)
        return self.base if changed.keywords() == self.base.keywords() else changed

    def published(self, label: str) -> tuple[str, str, str] | None:
        """Table, row and column of the published value of a row."""
        _, method, *column = self.rows[label]
        return (self.table, method, column[0] if column else self.column) if method else None


STANDARD, NT_XENT = Experiment("standard", 0.05), Experiment("standard, nt-xent", 0.05)
FOCAL, MIXED, WITH_UNA = Experiment("focal", 0.07), Experiment("mixed", 0.05), Experiment("UNA", 0.05)
AT_BEST = replace(STANDARD, tau=0.1)  # the best temperature of the standard loss in the grid
STEP = "step 2 and 3 ablation, row "
# One of the two steps is random in the second row of the published table, and which one is not known. The row is
# compared with one reading only, so that its sign counts once.
RANDOM_STEPS: dict[str, Change] = {
    "UNA": ({}, "no step random (UNA)"),
    "random words are replaced": ({"una": {"replace_which": "random"}}, STEP + "2"),
    "by random words": ({"una": {"replace_with": "random", "radius": None}}, ""),
    "both random": ({"una": {"replace_which": "random", "replace_with": "random", "radius": None}}, STEP + "1"),
}
EVERY: dict[str, Change] = {str(n): ({"una": {"every": n}}, f"every {n} batches") for n in (5, 1, 3, 7, 9)}
EVERY["never"] = (NT_XENT, "every 0")
BETAS: dict[str, Change] = {f"{b}": ({"una": {"beta": b}}, f"beta {b}") for b in (0.5, 0.3, 0.4, 0.6, 0.7, 0.8)}
TERMS = (4000, 1000, 2000, 3000, 5000, 6000)
RADII: dict[str, Change] = {f"{n / 4000:g} %": ({"una": {"radius": f"{n / 4000:g}%"}}, f"radius {n}") for n in TERMS}
AUGMENTATIONS: dict[str, Change] = {
    "none (SimCSE)": ({}, "SimCSE (reproduced)"),
    "EDA swap": ({"positive": "eda-swap"}, "EDA random swap"),
    "EDA delete": ({"positive": "eda-delete"}, "EDA random delete"),
    "PCA jitter": ({"positive_hook": "pca"}, "EfficientCL PCA jittering"),
}
for kind, method in (
    ("interpolation", "interpolation"),
    ("extrapolation", "extrapolation"),
    ("linear", "linear sampling"),
    ("noise", "Gaussian noise"),
):
    modals = {"feature_augmentations": ["modals"], "modals": {"kind": kind}}
    AUGMENTATIONS[f"MODALS {kind}"] = (modals, f"MODALS {method}")
FOCAL_TAUS: dict[str, Change] = {f"{t}": (Experiment("focal", t), f"temp {t}") for t in (0.07, 0.03, 0.05, 0.1)}
MARGINS: dict[str, Change] = {f"{m}": ({"margin": m}, f"m {m}") for m in (0.3, 0.1, 0.2, 0.4)}
DIFFCSE = {"loss_terms": ["diffcse"], "feature_augmentations": ["projector"], "diffcse": {"generator": BASE}}
# The published second encoder is a SimCSE model, too.
DCLR = {"feature_augmentations": ["dclr"], "dclr": {"model": trained("standard-tau0.05-seed0")}}
WITH_FOCAL: dict[str, Change] = {
    "SimCSE": ({}, "SimCSE"),
    "SimCSE + focal": (FOCAL, "SimCSE + Focal"),
    "DiffCSE": (DIFFCSE, "DiffCSE"),
    "DiffCSE + focal": (replace(FOCAL, change="with DiffCSE", settings=DIFFCSE), "DiffCSE + Focal"),
    "DCLR": (DCLR, "DCLR"),
    "DCLR + focal": (replace(FOCAL, change="with DCLR", settings=DCLR), "DCLR + Focal"),
}
PROMPT = {"encoder_methods": ["prompt"], "pooler": "mask", "max_length": 42}
LATER: dict[str, Change] = {
    "SimCSE": ({}, "SimCSE"),
    "SimCSE++": ({"feature_augmentations": ["off-dropout"], "loss_terms": ["dimensions"]}, ""),
    "SSCL": ({"loss_terms": ["sscl"]}, ""),
    "WhitenedCSE": ({"feature_augmentations": ["group-whitening"]}, "WhitenedCSE"),
    # Half of the layers are frozen ones, as in BERT-base.
    "InfoCSE": (
        {
            "loss_terms": ["infocse"],
            "feature_augmentations": ["state-projector"],
            "infocse": {"frozen_layers": 3},
        },
        "InfoCSE",
    ),
    # The published teachers are a DiffCSE and a large SimCSE model, which the paper distils at the temperature .05.
    "RankCSE": (
        {
            "loss_terms": ["rankcse"],
            "rankcse": {"teachers": [trained("standard-tau0.05-seed0"), trained("una-tau0.05-seed0")]},
        },
        "RankCSE",
    ),
    # Half as many clusters as rows, as in the published recipe.
    "ClusterNS": ({"loss_terms": ["clusterns"], "clusterns": {"clusters": 32}}, "ClusterNS"),
    "PCL": ({"positive": "diverse", "loss_terms": ["pcl"], "diverse": {"longest": 30}}, "PCL"),
    # The base model lower-cases its texts, so that the other part, switched case, would have no effect.
    # The negatives are retrieved with a trained model, in the paper with the model before training.
    "CARDS, retrieved negatives": (
        {"negatives": ["retrieved"], "retrieved": {"model": trained("standard-tau0.05-seed0")}},
        "",
    ),
    "PromptBERT": (PROMPT, ""),
    "SNCSE": (PROMPT | {"positive": "negation", "loss_terms": ["soft-negative"]}, "SNCSE"),
}
RIVALS: dict[str, Change] = {
    "standard": ({}, ""),
    "focal": (Experiment("focal", 0.05), ""),
    "hardness, alpha 2": ({"feature_augmentations": ["hardness"], "hardness": {"alpha": 2.0}}, ""),
    "hardness, alpha 9": ({"feature_augmentations": ["hardness"]}, ""),
    "GIST, margin 0.1": ({"feature_augmentations": ["gist"], "gist": {"margin": 0.1}}, ""),
    "orthogonality": ({"loss_terms": ["orthogonality"]}, ""),
}
AT_LARGER_TAU = {label: change for label, change in RIVALS.items() if label != "focal"}
AT_LARGER_TAU["focal"] = (Experiment("focal", 0.1), "")
LAMBDAS: dict[str, Change] = {f"{value}": ({"mix_lambda": value}, "") for value in (0.2, 0.1, 0.3, 0.4, 0.5)}
VARIANTS: dict[str, Change] = {"paper": ({}, ""), "release": ({"mix_variant": "release"}, "")}
# The margin at other temperatures than the published one.
MARGINS_AND_TAUS: dict[str, Change] = {}
for tau in (0.07, 0.05, 0.1):
    for m in (0.3, 0.1, 0.2, 0.4):  # the runs with 0.3 are those of the grid
        run = Experiment("focal", tau)
        changed = run if m == 0.3 else replace(run, change=f"m {m}", settings={"margin": m})
        MARGINS_AND_TAUS[f"tau {tau}, m {m}"] = (changed, "")
MIXTURES = {"imports": ["benches/effects/mixtures.py"], "feature_augmentations": ["mixtures"]}
GRADIENTS: dict[str, Change] = {
    "without (MixCSE)": ({}, ""),
    "with": (Experiment("standard", 0.05, change="mixtures with gradient", settings=MIXTURES), ""),
    "none mixed": (STANDARD, ""),
}
EDITS: dict[str, Change] = {"none": ({}, "none (unsup SimCSE)")}
for title, edit in (("crop", "crop"), ("word deletion", "delete")):
    for n in (10, 20, 30):
        EDITS[f"{title} {n} %"] = ({"positive": edit, edit: {"share": n / 100}}, f"{title} {n}%")
POSITIVES: dict[str, Change] = {
    "same sentence": ({}, "unsup SimCSE"),
    "next sentence": ({"positive": "next-sentence"}, "next sentence"),
    "one of the next 3": ({"positive": "next-sentence", "next-sentence": {"within": 3}}, "next 3 sentences"),
}
DROPOUT: dict[str, Change] = {"0.1": ({}, "dropout p")}
for p in ("0.0", "0.01", "0.05", "0.15", "0.2", "0.5"):
    DROPOUT[p] = ({"anchor_dropout": float(p), "positive_dropout": float(p)}, "dropout p", p)
DROPOUT["0.1, same mask"] = ({"dropout": {"mask": "shared"}}, "dropout p", "fixed 0.1")
# Changes that gain at .05 may do so because they weaken the loss, as a higher temperature does.
SOFTER: dict[str, Change] = {
    "standard": ({}, ""),
    "next sentence": (POSITIVES["next sentence"][0], ""),
    "MODALS interpolation": (AUGMENTATIONS["MODALS interpolation"][0], ""),
    "dropout 0.2": (DROPOUT["0.2"][0], ""),
    "EDA swap": (AUGMENTATIONS["EDA swap"][0], ""),
    "ClusterNS": (LATER["ClusterNS"][0], ""),
    "PromptBERT": (LATER["PromptBERT"][0], ""),
    "mixed, lambda 0.4": (Experiment("mixed", 0.1, change="lambda 0.4", settings={"mix_lambda": 0.4}), ""),
}
HARDNESS, ORTHOGONALITY = {"feature_augmentations": ["hardness"]}, {"loss_terms": ["orthogonality"]}
TOGETHER: dict[str, Change] = {
    "UNA": ({}, ""),
    "hardness": (HARDNESS, ""),
    "orthogonality": (ORTHOGONALITY, ""),
    "hardness and orthogonality": (HARDNESS | ORTHOGONALITY, ""),
}
SCALES: dict[str, dict[str, Any]] = {
    "1,600 steps": {"max_steps": 4 * STEPS},
    "batches of 256": {"batch_size": 256},
    "CLS with a head": {"pooler": "cls"},
}


def scaled(title: str) -> Ablation:
    """The systems of the papers at their temperatures, with changed settings that could explain a difference."""
    published = {run.system: run for run in (STANDARD, WITH_UNA, FOCAL, MIXED)}
    published |= {"standard, tau 0.1": AT_BEST, "focal, tau 0.1": Experiment("focal", 0.1)}
    runs = {name: replace(run, change=title, settings=SCALES[title]) for name, run in published.items()}
    rows: dict[str, Change] = {name: (run, "") for name, run in runs.items()}
    return Ablation(f"{title}: system", "mean", runs["standard"], "", "", rows)


def with_later(base: Experiment) -> Ablation:
    """The later systems, each together with another one."""
    rows: dict[str, Change] = {base.system: ({}, "")}
    rows |= {label: (change[0], "") for label, change in LATER.items() if label != "SimCSE"}
    return Ablation(f"Later systems with {base.system}: system", "mean", base, "", "", rows)


def negatives_alone(tau: float) -> dict[str, Change]:
    """UNA compared with its objective without its negatives."""
    return {"standard, nt-xent": (replace(NT_XENT, tau=tau), ""), "UNA": (replace(WITH_UNA, tau=tau), "")}


DEV = "STS-B dev"
ABLATIONS = (
    Ablation("UNA, Table 2: steps", "mean", WITH_UNA, "una-table2", "STS Avg.", RANDOM_STEPS),
    Ablation("UNA, Table C4: every", DEV, WITH_UNA, "una-tableC4", "UNA", EVERY),
    Ablation("UNA, Table C5: beta", DEV, WITH_UNA, "una-tableC5", "UNA", BETAS),
    Ablation("UNA, Table C6: radius", DEV, WITH_UNA, "una-tableC6", "UNA", RADII),
    Ablation("Focal-InfoNCE, Table 5: m", "STS-B", FOCAL, "focal-table5", "bert-base STS-B", MARGINS),
    Ablation("Focal-InfoNCE, Table 4: temperature", "STS-B", FOCAL, "focal-table4", "bert-base-uncased", FOCAL_TAUS),
    Ablation("MixCSE: lambda", "mean", MIXED, "", "", LAMBDAS),
    Ablation("MixCSE: gradient", "mean", MIXED, "", "", GRADIENTS),
    Ablation("SimCSE, Table 1: edit", DEV, STANDARD, "simcse-table1", "value", EDITS),
    Ablation("SimCSE, Table 3: dropout", DEV, STANDARD, "simcse-table3", "0.1", DROPOUT),
    Ablation("SimCSE, Table 2: positive", DEV, STANDARD, "simcse-table2", "one encoder", POSITIVES),
    Ablation("UNA, Table C3: augmentation", "mean", NT_XENT, "una-tableC3", "Avg.", AUGMENTATIONS),
    Ablation("Rivals of focal logits: loss", "mean", STANDARD, "", "", RIVALS, SEEDS),
    Ablation("Rivals of focal logits at 0.1: loss", "mean", AT_BEST, "", "", AT_LARGER_TAU, SEEDS),
    Ablation("Later systems: system", "mean", STANDARD, "later-systems", "Avg.", LATER),
    with_later(WITH_UNA),
    with_later(FOCAL),
    *map(scaled, SCALES),
    Ablation("At 0.1: change", "mean", AT_BEST, "", "", SOFTER, SEEDS[:3]),
    Ablation("UNA at 0.1: with", "mean", replace(WITH_UNA, tau=0.1), "", "", TOGETHER, SEEDS[:3]),
    Ablation("Focal-InfoNCE, Table 3: with", "uniformity", STANDARD, "focal-table3", "UNIF", WITH_FOCAL),
    Ablation("Focal-InfoNCE, Table 3: alignment with", "alignment", STANDARD, "focal-table3", "ALGN", WITH_FOCAL),
    Ablation("UNA's negatives alone: system", "mean", NT_XENT, "", "", negatives_alone(0.05)),
    Ablation("UNA's negatives alone at 0.1: system", "mean", replace(NT_XENT, tau=0.1), "", "", negatives_alone(0.1)),
    Ablation("MixCSE: variant", "mean", MIXED, "", "", VARIANTS),
    Ablation("Focal-InfoNCE: tau and m", "mean", FOCAL, "", "", MARGINS_AND_TAUS),
    Ablation("Temperature alone: system", "mean", STANDARD, "", "", {"at 0.05": ({}, ""), "at 0.1": (AT_BEST, "")}),
)


def declared(best: Mapping[str, float]) -> dict[str, list[Experiment]]:
    """The runs of each stage; a run that two stages need is listed in the first of them.

    grid: every system at every temperature with seed 0, the systems of the papers first. seeds: the other seeds at the
    published temperature and at ``best``, the best temperature of each system in the grid. ablations: every row with
    seed 0, then the rows of the tables that have further seeds.
    """
    systems = list(SYSTEMS)
    chosen = {system: sorted({PUBLISHED_TAU[system], best.get(system, PUBLISHED_TAU[system])}) for system in systems}
    stages: dict[str, Iterable[Experiment]] = {
        "grid": (Experiment(system, tau) for part in (systems[:5], systems[5:]) for tau in TAUS for system in part),
        "seeds": (Experiment(system, tau, seed) for seed in SEEDS[1:] for system in systems for tau in chosen[system]),
        "ablations": (
            replace(table.experiment(label), seed=seed)
            for seed in SEEDS
            for table in ABLATIONS
            if seed in table.seeds
            for label in table.rows
        ),
    }
    result: dict[str, list[Experiment]] = {}
    known: set[str] = set()
    for stage, experiments in stages.items():
        unique = {each.name: each for each in experiments if each.name not in known}
        result[stage] = list(unique.values())
        known |= unique.keys()
    return result
