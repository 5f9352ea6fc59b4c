"""BibTeX entries of the papers behind ``InfoNCELoss``, for model cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIMCSE = """
@inproceedings{gao2021simcse,
    title={{SimCSE}: Simple Contrastive Learning of Sentence Embeddings},
    author={Tianyu Gao and Xingcheng Yao and Danqi Chen},
    booktitle={Proceedings of EMNLP},
    year={2021},
    eprint={2104.08821},
    archivePrefix={arXiv}
}
"""
SIMCLR = """
@inproceedings{chen2020simclr,
    title={A Simple Framework for Contrastive Learning of Visual Representations},
    author={Ting Chen and Simon Kornblith and Mohammad Norouzi and Geoffrey Hinton},
    booktitle={Proceedings of ICML},
    year={2020},
    eprint={2002.05709},
    archivePrefix={arXiv}
}
"""
FOCAL = """
@inproceedings{hou2023focal,
    title={Improving Contrastive Learning of Sentence Embeddings with Focal-{InfoNCE}},
    author={Pengyue Hou and Xingyu Li},
    booktitle={Findings of EMNLP},
    year={2023},
    eprint={2310.06918},
    archivePrefix={arXiv}
}
"""
MIXCSE = """
@inproceedings{zhang2022mixcse,
    title={Unsupervised Sentence Representation via Contrastive Learning with Mixing Negatives},
    author={Yanzhao Zhang and Richong Zhang and Samuel Mensah and Xudong Liu and Yongyi Mao},
    booktitle={Proceedings of AAAI},
    year={2022}
}
"""
UNA = """
@article{shu2024una,
    title={Unsupervised hard Negative Augmentation for contrastive learning},
    author={Yuxuan Shu and Vasileios Lampos},
    year={2024},
    eprint={2401.02594},
    archivePrefix={arXiv}
}
"""
GRADCACHE = """
@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv}
}
"""


def citations(parts: Mapping[str, Any], negatives_as: str, cached: bool) -> str:
    """Returns the BibTeX entries of the papers behind the given loss parts, with SimCSE first."""
    found = [SIMCSE]
    if parts["objective"] == "nt-xent":
        found.append(SIMCLR)
    if negatives_as == "pairs":
        found.append(UNA)
    if parts["logits"] == "focal":
        found.append(FOCAL)
    if parts["mixed"] is not None:
        found.append(MIXCSE)
    if cached:
        found.append(GRADCACHE)
    return "".join(found)
