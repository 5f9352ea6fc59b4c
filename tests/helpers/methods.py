"""Settings of runs by name, one a line, which several test files use.

The fixture ``system`` replaces words in capitals with paths: TINY is tiny_bert, MASKED is a masked language model with
the same tokenizer, METHODS is user_methods.py, SYNONYMS is a file of synonyms, and TABLE is a table with labels. A word
of ``SHORT`` stands for several settings.
"""

from ast import literal_eval
from pathlib import Path

METHODS = Path(__file__).with_name("user_methods.py")
LISTS = {"encoder_methods", "feature_augmentations", "imports", "loss_terms", "negatives"}
SHORT = {
    "UNA": "negatives=una una.every=1",
    "COLUMNS": "negatives=una una.every=1 una.use_as=hard-negatives",
    "PLAIN": "anchor_dropout=0.0 positive_dropout=0.0",
    "LABELS": "corpus=TABLE column=text labels=label learn=True",
}


def settings(text):
    """Reads settings ``name=value`` and ``method.option=value``, whose values are Python literals or words."""
    found = {}
    for name, _, given in (each.partition("=") for word in text.split() for each in SHORT.get(word, word).split()):
        try:
            value = literal_eval(given)
        except (SyntaxError, ValueError):
            value = given
        method, _, option = name.rpartition(".")
        place = found.setdefault(method, {}) if method else found
        place[option] = tuple(given.split(",")) if name in LISTS else value
    return found


def table(lines):
    """Reads lines ``name: settings``, which continue on indented lines."""
    rows = (line.partition(":") for line in lines.replace("\n    ", " ").strip().splitlines())
    return {name: settings(values) for name, _, values in rows}


# What a step does with its views and with a device depends on these settings.
STEPS = table("""
standard:
focal una: loss=focal negatives=una una.every=2 una.beta=0.5
mixed una columns: loss=mixed COLUMNS
standard mlm: loss_terms=mlm
una pairs: UNA
mixed una pairs: loss=mixed UNA
release: loss=mixed mix_variant='release'
spans: positive=spans
halves: positive=halves
two layers: pooler=avg_top2
chunks: loss=focal chunk_size=3
""")
SYSTEMS = STEPS | table("""
two encoders: positive_encoder=copy
two dropout rates: anchor_dropout=0.05 positive_dropout=0.155
fixed mask: positive=dropout dropout.mask=shared
kept similarities: loss=focal loss_terms=keep-similarities keep-similarities.weight=2.0 positive=halves UNA
a teacher: pooler=avg loss=focal loss_terms=teacher teacher.model=TINY teacher.weight=2.0 UNA
lora: encoder_methods=lora lora.rank=4 lora.dropout=0.1
lora in two encoders: encoder_methods=lora positive_encoder=copy pooler=avg
repetition as a negative: imports=METHODS negatives=repetition,una loss=focal
contrastive by its options: loss=contrastive contrastive.temperature=0.2
matryoshka: keep_head=True loss=focal loss_terms=matryoshka matryoshka.dims='16,8' UNA
a term on gathered embeddings: imports=METHODS loss_terms=ball
diffcse: loss_terms=diffcse diffcse.generator=MASKED diffcse.weight=0.5
diffcse release: loss=focal loss_terms=diffcse diffcse.generator=MASKED diffcse.variant=release
dclr: feature_augmentations=dclr dclr.model=TINY dclr.threshold=0.5 dclr.noise=2.5 UNA
dclr release: feature_augmentations=dclr positive=crop dclr.model=TINY dclr.threshold=0.5 dclr.noise=1.5
    dclr.variant=release
dclr, infonce: feature_augmentations=dclr dclr.model=TINY dclr.threshold=0.5
rankcse: loss_terms=rankcse rankcse.teachers=("TINY","TINY") rankcse.ranking=listmle
interpolation: feature_augmentations=modals modals.kind=interpolation
linear: feature_augmentations=modals modals.kind=linear modals.detach=False
pca jitter: positive_hook=pca pca.layers=(0,1,2) pca.curriculum=continuous
no dropout: positive=delete PLAIN
prompt: encoder_methods=prompt
aeda: positive=aeda anchor_hook=token-cutoff feature_augmentations=gaussian
eda synonyms: negatives=eda-synonym eda-synonym.synonyms=SYNONYMS
next sentence of three: positive=next-sentence next-sentence.within=3
esimcse: positive=repetition feature_augmentations=momentum momentum.size=12 momentum.decay=0.9
esimcse release: positive=repetition negatives=repetition max_length=12 feature_augmentations=momentum
    repetition.variant=release momentum.size=12 momentum.variant=release
masked span, cut-off and shuffle: positive=masked-span anchor_hook=feature-cutoff positive_hook=token-shuffle
    objective=nt-xent PLAIN
self-contrast: loss=scd scd.width=32 anchor_dropout=0.05 positive_dropout=0.155
substitution: positive=substitution substitution.model=MASKED substitution.share=0.3
augcse: loss_terms=augcse augcse.weight=0.5
augcse release: loss_terms=augcse feature_augmentations=projector objective=nt-xent loss=mixed augcse.weight=0.5
    augcse.variant=release one-of.as_positive=False
moving average: encoder_methods=ema ema.decay=0.5
simcse++: feature_augmentations=off-dropout loss=focal loss_terms=dimensions UNA
hardness and orthogonality: feature_augmentations=hardness loss_terms=orthogonality UNA
gist: feature_augmentations=gist positive=crop gist.margin=0.0
cards: positive=switch-case switch-case.probability=0.5 negatives=retrieved retrieved.model=TINY retrieved.nearest=9
sscl: loss_terms=sscl sscl.layers=1
clusterns: loss=focal loss_terms=clusterns clusterns.clusters=2 clusterns.threshold=1.0 clusterns.rate=0.3
    clusterns.weight=0.5 clusterns.alpha=0.1 UNA
clusterns, mixed: loss=mixed mix_variant=release loss_terms=clusterns clusterns.clusters=2 clusterns.threshold=1.0
    clusterns.rate=0.3 clusterns.weight=0.5 clusterns.alpha=0.1 COLUMNS
clusterns, nt-xent: objective=nt-xent loss_terms=clusterns clusterns.clusters=2 clusterns.threshold=1.0
whitenedcse: feature_augmentations=group-whitening group-whitening.size=4
infocse: model=MASKED loss_terms=infocse infocse.weight=0.5 infocse.frozen_layers=1 infocse.head_layers=1
sncse: encoder_methods=prompt loss_terms=soft-negative soft-negative.weight=1.0
labels: LABELS UNA loss=focal positive=spans loss_terms=mlm
labels, nt-xent: LABELS objective=nt-xent
labels, kept similarities: LABELS loss_terms=keep-similarities
pcl: loss=focal loss_terms=pcl UNA
pcl release: loss_terms=pcl diverse.edits=("repeat","delete") diverse.longest=10 pcl.variant=release
""")
TEMPLATE = 'The sentence of "{}" means [MASK].'
SYSTEMS["two templates"] = {"encoder_methods": ("prompt",), "prompt": {"positive_template": TEMPLATE}}
