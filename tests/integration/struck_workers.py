"""A training rank whose memory is struck, named by dotted path."""

import numpy as np

from roll.core.workers.workers import TrainWorker


class Struck(TrainWorker):
    """A bit of a weight flips before a step is trained, as memory does it: the exponent becomes all ones."""

    at = 0
    calls = 0
    place = 0

    def train(self, batches, loss, totals):
        type(self).calls += 1
        if self.calls == self.at:
            weight = dict(self.strategy._model.named_parameters())["model.layers.0.mlp.down_proj.weight"]
            bits = weight.detach().view(-1).numpy().view(np.uint32)
            bits[self.place] |= 0x7F800000
        return super().train(batches, loss, totals)
