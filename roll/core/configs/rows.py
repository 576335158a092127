"""Keys of rows of files that are trained as they stand: conversations (SFT), pairs of answers (DPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from roll.core.configs.arguments import DataArguments
from roll.core.configs.fields import Bounds, option, required

LossOn = Literal["assistant", "last", "all"]


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """Columns of rows besides those of data_args."""

    system: str | None = option(None, "Column with the system message of rows that have a prompt and no messages.")
    query: str | None = option(None, "Column with a text that follows the prompt on a line of its own.")
    tools: str = option("tools", "Column with the tools that the chat template shows: a list, or its JSON.")


@dataclass(frozen=True, kw_only=True)
class SFTKeysConfig(ColumnsConfig):
    loss_on: LossOn = option(
        "assistant",
        "Tokens that are trained.\n"
        "assistant: those of the assistant's turns, with the token that ends each.\n"
        "last: those of its last turn.\n"
        "all: those of the whole row.",
    )
    response: str = option("response", "Column with the answer to the prompt, in rows without messages.")


@dataclass(frozen=True, kw_only=True)
class WarmStartConfig(SFTKeysConfig):
    """Steps of supervised fine-tuning that come first, on rows of a file."""

    steps: int = required("Their number, which max_steps counts; each trains rollout_batch_size rows.", bounds=Bounds(ge=1))
    learning_rate: float | None = option(None, "Of these steps, before its schedule; null: actor_train's.", bounds=Bounds(gt=0))
    data_args: DataArguments = option(DataArguments(), "The rows.")


@dataclass(frozen=True, kw_only=True)
class PairLossConfig:
    """The loss of a better and a worse answer to the same question."""

    loss: Literal["sigmoid", "ipo", "simpo"] = option(
        "sigmoid",
        "Loss of a pair with log-ratios to the reference h = Σ(ℓ − ℓ_r) of the chosen answer minus that of the rejected one.\n"
        "sigmoid: −log σ(β·h), DPO.\n"
        "ipo: (h − 1/(2β))², h of means over an answer's tokens.\n"
        "simpo: −log σ(β·h − margin), h of mean ℓ over an answer's tokens, without a reference.",
    )
    beta: float = option(0.1, "β: strength of the preference; SimPO's is about 2.", bounds=Bounds(gt=0))
    label_smoothing: float = option(
        0.0, "sigmoid, simpo: share of pairs taken to be labelled the wrong way round.", bounds=Bounds(ge=0, lt=0.5)
    )
    margin: float = option(0.0, "simpo: least difference that is asked for.", bounds=Bounds(ge=0))


@dataclass(frozen=True, kw_only=True)
class DPOKeysConfig(ColumnsConfig, PairLossConfig):
    chosen: str = option("chosen", "Column with the better answer: a text, messages, or the conversation that ends with it.")
    rejected: str = option("rejected", "Column with the worse answer, in the same form.")
