"""Log-probs of a padded batch from whole logits, as plainly as can be: what the trainers' ways are compared with."""

from torch import Tensor

from roll.data.token_batch import Padded
from roll.strategies.train.logprobs import EntropyMode, row_logprobs


def padded_logprobs(logits: Tensor, padded: Padded, entropy: EntropyMode = "none") -> tuple[Tensor, Tensor | None]:
    """[B, T] each, of the trained tokens, from logits [B, T, V]; 0 elsewhere."""
    rows, predictors = padded.loss_mask[:, 1:].nonzero(as_tuple=True)
    targets = padded.tokens[rows, predictors + 1]
    values = row_logprobs(logits[rows, predictors], targets, padded.temperatures[rows], entropy)
    placed = [None if v is None else v.new_zeros(padded.tokens.shape).index_put((rows, predictors + 1), v) for v in values]
    return placed[0], placed[1]
