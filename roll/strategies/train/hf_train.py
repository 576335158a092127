"""The common part of the back ends that train a transformers causal LM; each adds how its ranks divide the model.

Invariant: an optimiser step is a function of the whole batch. How it is cut into micro-batches and ranks changes the sums' order
of addition, nothing else: every loss is normalised by the batch's totals, gradients are summed, and ranks run equally many
micro-batches (the missing ones without a token) so that their collectives match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from roll.core.algorithms.loss import LossSpec, Metrics, compute_loss, reduce_metrics
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.data.transfer import moved
from roll.core.weights.adapter import BaseWeights, with_base
from roll.core.weights.bucket import Bucket, Put
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import Optimisation, TrainSpec, resolve_dtype
from roll.strategies import model_folder
from roll.strategies.train import checkpoint_files as files
from roll.strategies.train.checkpoint_files import AllOnFirst, Share, Snapshot
from roll.strategies.train.compiled import compile_layers
from roll.strategies.train.image_rows import opened
from roll.strategies.train.layout import Layout, RankMicrobatch, rank_microbatches
from roll.strategies.train.logprobs import EntropyMode
from roll.strategies.train.optimizer import MOMENTS, RateScale, make_adamw, unscaled
from roll.strategies.train.packed_attention import packs
from roll.strategies.train.process import follow_cores, prepare_process
from roll.strategies.train.recomputed import recompute_activations
from roll.strategies.train.scorer import Call, TokenScorer
from roll.strategies.train.sharding import Ranks
from roll.strategies.train.tensor_files import FilesOf, MappedTensors, TensorFiles
from roll.strategies.train.top_tokens import batch_top
from roll.strategies.vision.family import copy_processor
from roll.transports.buckets import host_copies, make_buckets
from roll.transports.experts import Fused, published, published_moments

if TYPE_CHECKING:
    from roll.strategies.train.lora import Adapters

LossOf: TypeAlias = Callable[[Padded, Layout], tuple[Tensor, Metrics]]
"""A micro-batch and how it goes through the model -> its share of the loss, and its metrics."""


class HFTrainStrategy(ABC):
    """A `TrainStrategy` (see the interface for its methods) but for what is abstract here.

    Trained master weights and moments are float32; layers compute in `dtype`. Dropout is off: the ratio of two log-probs must
    come from the weights alone. Weight decay acts on matrices only. With `lora_target` only adapters are trained (see `lora`):
    checkpoints hold them and the merged model, engines get merged weights, or with `export_adapters` the adapters alone.

    Raises:
        FileNotFoundError: `model_path` lacks the model's or the tokenizer's files.
        ValueError: a `lora_target` that the model does not have.
    """

    frozen_name: ClassVar[str]
    """`strategy_name` of a frozen model."""
    metrics_of: ClassVar[str] = "actor_train"
    """Prefix of the optimiser's metrics."""

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        path, self._spec, self._device = Path(spec.model_path), spec, torch.device(context.device)
        model_folder.check_model_folder(path)
        self._cores = prepare_process(context, self._device)
        self._compute_dtype = resolve_dtype(spec.dtype, self._device)
        self._ranks = Ranks(context, self._device, spec.collective_timeout_s, spec.model.ulysses_size)
        self._tokenizer = model_folder.load_tokenizer(path)
        masters = spec.trained and spec.model.lora_target is None
        self._kept_dtype = torch.float32 if masters else self._compute_dtype
        self._model, later = self._loaded(path, masters)
        self._hollow = files.on_meta_device(self._model, self._kept_dtype)
        self._model.requires_grad_(masters).eval()
        self._adapters = self._add_adapters(context.seed)
        self._adapted_base = BaseWeights(path) if spec.export_adapters else None
        if spec.recomputes_activations:
            recompute_activations(self._model)
        fast = spec.backend.compiles(self._device.type != "cpu")
        packed = packs(self._device, self._compute_dtype, self._model.config.get_text_config())
        sight, fp32_head = opened(self._model, spec, masters), spec.model.head_dtype is not None
        self._scorer = TokenScorer(self._model, fast, packed, sight, self._ranks.of_batch, fp32_head)
        if fast and self._layers_can_be_compiled:
            compile_layers(self._model.get_decoder())
        follow_cores(self._model, self._cores)
        self._state = files.TrainerState()
        self._shapes = {name: tensor.shape for name, tensor in self._named_tensors()}
        self._mixed = spec.trained and self._compute_dtype != torch.float32
        self._optimizer: torch.optim.AdamW | None = None
        self._place()
        assert later.experts.keys() <= self._shapes.keys(), "experts would stay empty"
        with torch.no_grad():
            self._set_weights(later)

    def _loaded(self, path: Path, masters: bool) -> tuple[PreTrainedModel, Fused]:
        """The model, and the weights that it gets when it is divided: experts, and for masters what is wider in the files."""
        stored = MappedTensors(path)
        dtype, wider = model_folder.stored_dtype(path) if masters else (self._compute_dtype, set())
        model = self._load_model(path, dtype, stored.state(dtype))
        wider -= stored.fused
        if wider - model.state_dict().keys():  # it has other names than the files
            return self._load_model(path, torch.float32, stored.state(torch.float32)), stored.later()
        return model, stored.later(wider)

    def _add_adapters(self, seed: int) -> Adapters | None:
        model = self._spec.model
        if not self._spec.trained or model.lora_target is None:
            return None
        from roll.strategies.train.lora import Adapters

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the same adapters on every rank, however many there are
            return Adapters(self._model, model.lora_target, model.adapter_rank, model.adapter_alpha)

    def _make_optimizer(self, masters: Iterable[nn.Parameter]) -> torch.optim.AdamW | None:
        """None for a frozen model."""
        training = self._spec.optimisation
        return None if training is None else make_adamw(masters, training.arguments)

    def _load_model(self, path: Path, dtype: torch.dtype, state: dict[str, Tensor] | None = None) -> PreTrainedModel:
        """Loads the model from a Hugging Face folder, on the CPU, or of the `state` that `MappedTensors` says. In the type that
        they are stored in, weights are the files' own memory, which the ranks of a machine share."""
        return model_folder.load_model(path, dtype, self._spec.model.attn_implementation, state=state)

    @property
    def _layers_can_be_compiled(self) -> bool:
        return True

    # How the ranks divide the model

    @abstractmethod
    def _place(self) -> None:
        """Divides `self._model`, whose weights are then of `self._kept_dtype` or what the back end makes of it, and sets
        `self._optimizer` to what `_make_optimizer` makes."""

    @property
    @abstractmethod
    def _callable(self) -> Call:
        """The model, or its wrapper."""

    @abstractmethod
    def _backward(self, loss: Tensor, last: bool) -> None:
        """Adds the gradient of this rank's share of the loss; after the `last` one of a step they are summed over the ranks."""

    @abstractmethod
    def _step(self) -> float:
        """Clips the gradients to the global norm `max_grad_norm`, moves the weights unless the norm is not finite, and clears
        the gradients. Returns the norm before clipping."""

    @abstractmethod
    def _full_weights(self, trained_only: bool = False, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """A collective: every tensor of `_named_tensors`, whole, one at a time; with `dtype` it may be gathered in that type."""

    @abstractmethod
    def _full_moments(self) -> Iterator[tuple[str, Tensor]]:
        """A collective: `<parameter>.<moment>`, whole, one at a time; nothing before the first step."""

    @abstractmethod
    def _set_weights(self, full: Fused) -> None:
        """Replaces the tensors of these names, on every rank."""

    @abstractmethod
    def _set_moments(self, full: Fused, step: int) -> None:
        """Replaces the optimiser's state by that after `step` steps."""

    @abstractmethod
    def _free_device(self) -> None:
        """Moves to the host's memory as much as it can of this rank's share."""

    @abstractmethod
    def _fill_device(self) -> None:
        """Moves it back."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the process group; the last call."""

    def _after_inference(self) -> None:  # noqa: B027
        """Frees the weights that a forward pass without a backward pass leaves gathered."""

    # The interface
    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self._per_token(batch, lambda micro, layout: self._scorer.logprobs(self._callable, micro, layout, "none")[0])

    def top_log_probs(self, batch: TokenBatch, top: int) -> tuple[Tensor, Tensor, Tensor]:
        return batch_top(self, batch, top)

    def train_step(self, batch: TokenBatch, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        return self._optimise(batch, self._policy_loss(loss, totals), loss.rate_scale)

    def _policy_loss(self, loss: LossSpec, totals: BatchTotals) -> LossOf:
        entropies: EntropyMode = "differentiable" if loss.entropy_coef else "detached"

        def policy_loss(micro: Padded, layout: Layout) -> tuple[Tensor, Metrics]:
            scored = self._scorer.with_divergence(self._callable, micro, layout, entropies, loss.divergence)
            logprobs, entropy, divergence = scored
            sizes = (totals.tokens, totals.sequences, totals.rollouts)
            value, metrics = compute_loss(logprobs, entropy, micro, loss, *sizes, divergence)
            return value, metrics | self._scorer.metrics

        return policy_loss

    def _per_token(self, batch: TokenBatch, compute: Callable[[Padded, Layout], Tensor]) -> Tensor:
        """[N] the per-token results of `compute` for each micro-batch [B, T], without gradients."""
        out = torch.zeros(batch.num_tokens)
        of_samples = out.split(batch.lengths.tolist())
        with torch.no_grad(), self._cores.computing():
            for part, micro, layout in self._microbatches(batch, self._spec.max_tokens_per_microbatch_infer):
                values = part.padded.flatten(compute(micro, layout).cpu()).split(part.padded.lengths.tolist())
                for i, values_of_sample in zip(part.indices, values, strict=False):
                    of_samples[i].copy_(values_of_sample)
        self._after_inference()
        return out

    def _microbatches(self, batch: TokenBatch, budget: int) -> Iterator[tuple[RankMicrobatch, Padded, Layout]]:
        """This rank's micro-batches, and on its device their values and how they go through the model."""
        for part in rank_microbatches(batch, self._scorer.plan(batch, budget), self._ranks.all_max):
            micro, layout = moved([part.padded, self._scorer.layout(part.padded)], self._device)
            yield part, micro, layout

    def _optimise(self, batch: TokenBatch, loss_of: LossOf, rate_scale: RateScale = unscaled) -> dict[str, float]:
        """Takes one optimiser step. `loss_of`: a micro-batch's share of the loss, and its metrics."""
        return self._take_step(list(self._gradients(batch, loss_of)), rate_scale)

    def _gradients(self, batch: TokenBatch, loss_of: LossOf) -> Iterator[Metrics]:
        """Adds the gradients of the batch; the metrics of each micro-batch."""
        with self._cores.computing():
            for part, micro, layout in self._microbatches(batch, self._training.max_tokens_per_microbatch):
                value, metrics = loss_of(micro, layout)
                self._backward(value, part.last)
                yield metrics

    @property
    def _training(self) -> Optimisation:
        if self._spec.optimisation is None:
            raise RuntimeError(f"this model is frozen ({self.frozen_name}) and cannot be trained")
        return self._spec.optimisation

    def _take_step(self, parts: Sequence[Metrics], rate_scale: RateScale = unscaled) -> dict[str, float]:
        """The optimiser step on the gradients, and the metrics of its micro-batches with its own."""
        assert self._optimizer is not None
        metrics = reduce_metrics(parts, self._ranks.reduce_over_data)
        lr = self._training.schedule.at(self._state.optimizer_step) * rate_scale(metrics)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        with self._cores.computing():
            norm = self._step()
        return metrics | self._state.count(self.metrics_of, norm, lr)

    def export_weights(self, bucket_bytes: int, borrow: bool = False, place: Put | None = None) -> Iterator[Bucket]:
        """Exports weights in the type that layers compute in, tied weights once; adapters alone in float32."""
        named = self._full_weights(self._adapted_base is not None, None if self._adapters else self._compute_dtype)
        if self._adapters and self._adapted_base is not None:
            named = with_base(self._adapters.alone(named), self._adapted_base)
        else:
            whole, to = self._adapters.merged(named) if self._adapters else named, self._compute_dtype
            parts = (part for each in whole for part in published(self._model_type, *each))
            named = ((name, part.to(to if part.is_floating_point() else part.dtype)) for name, part in parts)
        yield from make_buckets(named, bucket_bytes, self._ranks.rank, self._ranks.size, host_copies(self._device), borrow, place)

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        whole = Fused(weights, self._model_type, self._shapes)
        if bad := [name for name, shape in self._shapes.items() if whole.shape(name) != shape]:
            raise ValueError(f"the weights are of another model: '{bad[0]}' is missing or of another shape")
        self._set_weights(whole)

    def snapshot(self) -> Snapshot:
        trained, (rank, ranks) = self._optimizer is not None, (self._ranks.rank, self._ranks.size)
        moments = self._full_moments() if trained else ()
        state = self._state if trained else None
        divided = Share(rank, ranks) if self._adapters is None else self._adapters.share(rank, ranks)
        share = divided if files.divisible(self._hollow) else AllOnFirst(rank, ranks)
        return Snapshot.take(FilesOf(rank, ranks), share, self._device, self._full_weights(), moments, state)

    def write(self, snapshot: Snapshot, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        weights = dict(snapshot.weights)
        if self._adapters:
            if snapshot.files_of.first:
                self._adapters.save(directory, weights, Path(self._spec.model_path))
            weights = dict(self._adapters.merged(iter(weights.items())))
        self._write_model(directory / files.MODEL, weights, snapshot.files_of)
        snapshot.write_training(directory, published_moments(self._model_type, snapshot.moments))

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        model_folder.check_model_folder(directory / files.MODEL)
        trained = self._optimizer is not None
        state = files.TrainerState.read(directory / files.TRAINER) if trained else self._state
        source, expected = self._saved_weights(directory)
        if bad := [name for name, shape in expected.items() if source.shape(name) != shape]:
            raise ValueError(f"checkpoint '{directory}' is of another model: '{bad[0]}' is missing or of another shape")
        saved = TensorFiles(*(files.optimizer_files(directory) if trained and state.optimizer_step else ()))
        moments = Fused(saved, self._model_type, self._shapes, MOMENTS)
        wanted = {f"{name}.{moment}" for name in self._trained_names() for moment in MOMENTS} if len(saved) else set()
        if lost := sorted(name for name in wanted if name not in moments):
            raise ValueError(f"checkpoint '{directory}' has no '{lost[0]}': other weights were trained (lora_target)")
        self._set_weights(source)
        if trained:
            self._set_moments(moments, state.optimizer_step)
            files.restore_rng(files.rng_path(directory, self._ranks.rank), self._device)
        self._state = state

    def offload(self) -> None:
        if self._device.type != "cpu":
            self._free_device()
            torch.cuda.empty_cache()

    def reload(self) -> None:
        if self._device.type != "cpu":
            self._fill_device()

    # Shared by the divided forms

    def _named_tensors(self, trained_only: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Parameters and persistent buffers under the names of `state_dict()`, divided as they are, tied ones once."""
        seen: set[int] = set()
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen and (tensor.requires_grad or not trained_only):
                seen.add(id(tensor))
                yield name, tensor

    def _trained_names(self) -> list[str]:
        return [name for name, _ in self._named_tensors(trained_only=True)]

    def _saved_weights(self, directory: Path) -> tuple[Fused, dict[str, torch.Size]]:
        """Returns a checkpoint's tensors, and the names and shapes that this model takes from it."""
        if self._adapters:
            trained = {name: self._shapes[name] for name in self._trained_names()}
            return Fused(self._adapters.load(directory, trained), self._model_type, trained), trained
        saved = Fused(TensorFiles.of_model(directory / files.MODEL), self._model_type, self._shapes)
        if not all(name in saved for name in self._shapes):  # transformers, or a value head, has other names in files
            whole = self._load_model(directory / files.MODEL, torch.float32).state_dict()
            saved = Fused(whole, self._model_type, self._shapes)
        return saved, self._shapes

    def _write_model(self, path: Path, weights: dict[str, Tensor], files_of: FilesOf) -> None:
        files.write_model(path, self._hollow, self._tokenizer, weights, files_of)
        copy_processor(Path(self._spec.model_path), path)

    @property
    def _model_type(self) -> str:
        return str(self._hollow.config.model_type)
