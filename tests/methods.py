"""Settings of runs by name: losses, views, and systems, which several test files use."""

UNA = {"negatives": ("una",), "una": {"every": 1}}
WITHOUT_DROPOUT = {"anchor_dropout": 0.0, "positive_dropout": 0.0}
# The fixture ``system`` of test_systems.py replaces words in capitals with paths: TINY is tiny_bert, MASKED is a masked
# language model with the same tokenizer, METHODS is user_methods.py, and SYNONYMS is a file of synonyms.
SYSTEMS = {
    "two encoders": {"positive_encoder": "copy"},
    "two dropout rates": {"anchor_dropout": 0.05, "positive_dropout": 0.155},
    "fixed mask": {"positive": "dropout", "options": {"dropout": {"mask": "shared"}}},
    "kept similarities": {
        "loss": "focal",
        "loss_terms": ("keep-similarities",),
        "options": {"keep-similarities": {"weight": 2.0}},
        "positive": "halves",
        "una": {"every": 1},
        "negatives": ("una",),
    },
    "lora": {"encoder_methods": ("lora",), "options": {"lora": {"rank": 4, "dropout": 0.1}}},
    "lora in two encoders": {"encoder_methods": ("lora",), "positive_encoder": "copy", "pooler": "avg"},
    "repetition as a negative": {"imports": ("METHODS",), "negatives": ("repetition", "una"), "loss": "focal"},
    "contrastive by its options": {"loss": "contrastive", "options": {"contrastive": {"temperature": 0.2}}},
    "matryoshka": {
        "keep_head": True,
        "loss": "focal",
        "loss_terms": ("matryoshka",),
        "options": {"matryoshka": {"dims": "16,8"}},
        "negatives": ("una",),
        "una": {"every": 1},
    },
    "a term on gathered embeddings": {"imports": ("METHODS",), "loss_terms": ("ball",)},
    "diffcse": {"loss_terms": ("diffcse",), "diffcse": {"generator": "MASKED", "weight": 0.5}},
    "diffcse release": {
        "loss": "focal",
        "loss_terms": ("diffcse",),
        "diffcse": {"generator": "MASKED", "variant": "release"},
    },
    "dclr": {"feature_augmentations": ("dclr",), "dclr": {"model": "TINY", "threshold": 0.5, "noise": 2.5}, **UNA},
    "dclr release": {
        "feature_augmentations": ("dclr",),
        "positive": "crop",
        "dclr": {"model": "TINY", "threshold": 0.5, "noise": 1.5, "variant": "release"},
    },
    "dclr, infonce": {"feature_augmentations": ("dclr",), "dclr": {"model": "TINY", "threshold": 0.5}},
    "rankcse": {"loss_terms": ("rankcse",), "rankcse": {"teachers": ("TINY", "TINY"), "ranking": "listmle"}},
    "interpolation": {"feature_augmentations": ("modals",), "modals": {"kind": "interpolation"}},
    "linear": {"feature_augmentations": ("modals",), "modals": {"kind": "linear", "detach": False}},
    "pca jitter": {"positive_hook": "pca", "pca": {"layers": (0, 1, 2), "curriculum": "continuous"}},
    "no dropout": {"positive": "delete", **WITHOUT_DROPOUT},
    "prompt": {"encoder_methods": ("prompt",)},
    "aeda": {"positive": "aeda", "anchor_hook": "token-cutoff", "feature_augmentations": ("gaussian",)},
    "eda synonyms": {"negatives": ("eda-synonym",), "eda-synonym": {"synonyms": "SYNONYMS"}},
    "next sentence of three": {"positive": "next-sentence", "next-sentence": {"within": 3}},
    "esimcse": {
        "positive": "repetition",
        "feature_augmentations": ("momentum",),
        "momentum": {"size": 12, "decay": 0.9},
    },
    "esimcse release": {
        "positive": "repetition",
        "negatives": ("repetition",),
        "max_length": 12,
        "feature_augmentations": ("momentum",),
        "repetition": {"variant": "release"},
        "momentum": {"size": 12, "variant": "release"},
    },
    "masked span, cut-off and shuffle": {
        "positive": "masked-span",
        "anchor_hook": "feature-cutoff",
        "positive_hook": "token-shuffle",
        "objective": "nt-xent",
        **WITHOUT_DROPOUT,
    },
    "self-contrast": {"loss": "scd", "scd": {"width": 32}, "anchor_dropout": 0.05, "positive_dropout": 0.155},
    "substitution": {"positive": "substitution", "substitution": {"model": "MASKED", "share": 0.3}},
    "augcse": {"loss_terms": ("augcse",), "augcse": {"weight": 0.5}},
    "augcse release": {
        "loss_terms": ("augcse",),
        "feature_augmentations": ("projector",),
        "objective": "nt-xent",
        "loss": "mixed",
        "augcse": {"weight": 0.5, "variant": "release"},
        "one-of": {"as_positive": False},
    },
    "moving average": {"encoder_methods": ("ema",), "ema": {"decay": 0.5}},
    "simcse++": {"feature_augmentations": ("off-dropout",), "loss": "focal", "loss_terms": ("dimensions",), **UNA},
    "hardness and orthogonality": {"feature_augmentations": ("hardness",), "loss_terms": ("orthogonality",), **UNA},
    "gist": {"feature_augmentations": ("gist",), "positive": "crop", "gist": {"margin": 0.0}},
    "cards": {
        "positive": "switch-case",
        "negatives": ("retrieved",),
        "switch-case": {"probability": 0.5},
        "retrieved": {"model": "TINY", "nearest": 9},
    },
    "sscl": {"loss_terms": ("sscl",), "sscl": {"layers": 1}},
    "clusterns": {
        "loss": "focal",
        "loss_terms": ("clusterns",),
        "clusterns": {"clusters": 2, "threshold": 1.0, "rate": 0.3, "weight": 0.5, "alpha": 0.1},
        **UNA,
    },
    "whitenedcse": {"feature_augmentations": ("group-whitening",), "group-whitening": {"size": 4}},
    "infocse": {
        "model": "MASKED",
        "loss_terms": ("infocse",),
        "infocse": {"weight": 0.5, "frozen_layers": 1, "head_layers": 1},
    },
    "sncse": {"encoder_methods": ("prompt",), "loss_terms": ("soft-negative",), "soft-negative": {"weight": 1.0}},
    "pcl": {"loss": "focal", "loss_terms": ("pcl",), **UNA},
    "pcl release": {
        "loss_terms": ("pcl",),
        "diverse": {"edits": ("repeat", "delete"), "longest": 10},
        "pcl": {"variant": "release"},
    },
}
LOSSES = {
    "standard": {},
    "focal una": {"loss": "focal", "negatives": ("una",), "una": {"every": 2, "beta": 0.5}},
    "mixed una columns": {"loss": "mixed", "negatives": ("una",), "una": {"every": 1, "use_as": "hard-negatives"}},
    "standard mlm": {"loss_terms": ("mlm",)},
    "focal chunks": {"loss": "focal", "chunk_size": 3},
    "accumulated": {"accumulate": 2},
}
VIEWS = {
    **{name: values for name, values in LOSSES.items() if name not in ("accumulated", "focal chunks")},
    "una pairs": UNA,
    "mixed una pairs": {"loss": "mixed", **UNA},
    "release": {"loss": "mixed", "mix_variant": "release"},
    "spans": {"positive": "spans"},
}
# What a step does with a device depends on these settings.
STEPS = {**LOSSES, **VIEWS, "halves": {"positive": "halves"}, "two layers": {"pooler": "avg_top2"}}
