"""MU: full attention to what has been heard, which ends with a meaning unit; and the classifier that finds the units.

What a meaning unit is, and how its labels are made: `gma.training.unit_labels`. How units are translated one after the
other: `gma.decoding.unit_batch`.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from gma.policies.base import LatencyError
from gma.policies.offline import OfflineCrossAttention
from gma.text.vocabulary import Vocabulary

HIDDEN = 256
THRESHOLD = 0.5


class MeaningUnits(OfflineCrossAttention):
    """Full attention over what has been heard, which ends with a unit.

    A model is not built with this policy: one that was trained offline takes it over with `Transformer.use_segmenter`.
    """

    name: ClassVar = "meaning_units"
    summary: ClassVar = "MU: wait until a meaning unit ends, by a classifier's score of θ; made by `gma segment`"
    latency_symbol: ClassVar = "θ"
    usual_latencies: ClassVar = (0.1, 0.3, 0.5, 0.7, 0.9)
    latency_of_all: ClassVar = None
    can_be_forced: ClassVar = False
    can_be_segmented: ClassVar = False

    @classmethod
    def checked_latency(cls, delta: float) -> float:
        threshold = super().checked_latency(delta)
        if not 0.0 < threshold < 1.0:
            raise LatencyError(f"the threshold θ is {threshold:g}; expected a number between 0 and 1, both left out")
        return threshold


class Segmenter(nn.Module):
    """The score that a meaning unit ends with word t: s_t = sigmoid(v · ReLU(W h_t + b) + c), where h_t is the causal
    encoder's state of the word's last token.

    Args:
        vocabulary: the source's, which knows where words end.
        width: features of an encoder state.
        hidden: features between the two maps.
    """

    threshold = THRESHOLD  # θ if nobody asks for another one

    def __init__(self, vocabulary: Vocabulary, width: int, hidden: int = HIDDEN):
        super().__init__()
        self.vocabulary = vocabulary
        self.hidden = nn.Linear(width, hidden)
        self.output = nn.Linear(hidden, 1)

    def logits(self, states: Tensor) -> Tensor:
        """[…, E] → […]"""
        return self.output(torch.relu(self.hidden(states))).squeeze(-1)

    def forward(self, states: Tensor) -> Tensor:
        """Scores between 0 and 1: […, E] → […]"""
        return torch.sigmoid(self.logits(states))
