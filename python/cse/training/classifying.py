"""The classifier of a run with labels, which is kept with the encoder in ``best/``."""

from __future__ import annotations

from dataclasses import replace

from ..classifier.fitted import Fitted, fit, texts_taught
from ..classifier.labelled import Labelled
from ..classifier.stored import save, save_labelled
from ..encoder.base import NotFinite
from ..errors import EqualVectors
from ..evaluation.base import Encodes, embed
from . import folds
from .folder.outputs import BEST
from .run import Run


def classify(run: Run, labelled: Labelled, encoder: Encodes) -> Fitted | None:
    """Fits the classifier of the labelled texts to the encoder in ``best/``, and saves it there; None if the encoder
    has no usable vectors. Its confidence is from what did not know the labels: if all labels taught the encoder, from
    the encoders of the folds."""
    if not (run.state.selector.best_step or run.judge.anew):
        # best/ is the encoder before training, which this run's labels did not teach.
        labelled = replace(labelled, how="held out" if labelled.how == "held out" else "classifiers")
    try:
        (vectors,) = embed(encoder, [labelled.texts])
    except (EqualVectors, NotFinite):
        return None
    taught = texts_taught(run.earlier, labelled.texts)
    fitted = fit(labelled, vectors, taught, folds.read_log_odds(run.folder))
    save(fitted, run.folder / BEST)
    save_labelled(run.folder, labelled, vectors)
    return fitted
