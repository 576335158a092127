"""The Megatron-core training back end: tensor, pipeline, sequence and data parallelism behind `TrainStrategy`.

Invariant, as in every back end: an optimiser step is a function of the whole batch. Losses are normalised by the batch's totals
and gradients summed: Megatron would divide by the number of tokens (`calculate_per_token_loss`), but it gets 0 as that number.
Data-parallel ranks need not run equally many micro-batches; the ranks that are given the same samples plan alike.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from transformers import AutoConfig

from roll.core.algorithms.loss import LossSpec, Metrics, compute_loss, reduce_metrics
from roll.core.configs.backend_arguments import MegatronConfig
from roll.core.data.token_batch import Padded, TokenBatch
from roll.core.weights.bucket import Bucket, Put
from roll.core.workers.train_interface import BatchTotals, RankContext
from roll.core.workers.train_spec import TrainSpec, resolve_dtype
from roll.strategies.model_folder import check_model_folder, load_tokenizer
from roll.strategies.train import checkpoint_files as files
from roll.strategies.train.checkpoint_files import Share, Snapshot
from roll.strategies.train.logprobs import EntropyMode
from roll.strategies.train.megatron import cpu_shim
from roll.strategies.train.megatron.context import ContextShare, OfRows, PipelineSchedule, Predictors
from roll.strategies.train.megatron.convert import WeightMap
from roll.strategies.train.megatron.model import MakeStage, PolicyModel, build_stage, own_mixtures, transformer_config
from roll.strategies.train.megatron.optimizer import MasterState, data_parallel, distributed_adamw
from roll.strategies.train.megatron.parallel import ModelParallel
from roll.strategies.train.megatron.stage_weights import Read, StageWeights
from roll.strategies.train.megatron.supported import ParallelLayout
from roll.strategies.train.optimizer import MOMENTS, RateScale, scale_to_norm, unscaled
from roll.strategies.train.process import prepare_process
from roll.strategies.train.storage_offload import StorageOffload
from roll.strategies.train.tensor_files import FilesOf, TensorFiles, write_tensors
from roll.transports.buckets import host_copies, make_buckets


class MegatronStrategy:
    """A `TrainStrategy` (see the interface for its methods).

    All ranks of one data-parallel rank are given the same samples. Master weights and moments are float32, layers compute in
    `dtype`, gradients are summed in float32. Weight decay acts on matrices only.

    Raises:
        FileNotFoundError: `model_path` lacks the model's or the tokenizer's files.
        ValueError: a model or layout that is not supported.
    """

    metrics_of = "actor_train"
    stage_of: MakeStage = PolicyModel

    def __init__(self, context: RankContext, spec: TrainSpec) -> None:
        if spec.model.attn_implementation != "sdpa":
            raise ValueError(f"attn_implementation '{spec.model.attn_implementation}': the Megatron back end supports sdpa only")
        self._spec, self._options, self._path = spec, spec.options(MegatronConfig), Path(spec.model_path)
        check_model_folder(self._path)
        self._device = torch.device(context.device)
        if self._device.type == "cpu":
            cpu_shim.install()
        self._cores = prepare_process(context, self._device)
        self._tokenizer = load_tokenizer(self._path)
        self._hf_config = AutoConfig.from_pretrained(self._path, local_files_only=True, trust_remote_code=False)
        self._compute_dtype = resolve_dtype(spec.dtype, self._device)
        layout = ParallelLayout.of(self._options)
        config = self._transformer_config(layout, context.deterministic)
        self._parallel = ModelParallel(context, self._device, layout, spec.collective_timeout_s)
        self._stage = build_stage(config, self._hf_config, self.stage_of).to(self._device)
        self._stage.fast = self._options.compiles(self._device.type != "cpu")
        self._stage.fp32_head = spec.model.head_dtype is not None
        recomputes = spec.trained and config.recompute_granularity is not None
        self._stage.requires_grad_(spec.trained).train(recomputes)  # recomputes in training mode only

        self._state = files.TrainerState()
        self._optimizer: MegatronOptimizer | None = None
        self._wrapped: DistributedDataParallel | None = None
        self._masters: MasterState | None = None
        self._make_optimizer(config)
        tied = self._stage.share_embeddings_and_output_weights
        names = WeightMap(self._hf_config, self._parallel.place, self._stage.decoder.layers[0].layer_number - 1, tied)
        self._weights = StageWeights(names, self._stage, self._parallel)
        self._set_weights(self._open_weights(self._path))
        self._share = ContextShare(self._parallel.context_group, layout.tensor if config.sequence_parallel else 1)
        recomputed = recomputes and config.recompute_granularity == "full"
        mixtures = own_mixtures(config, self._hf_config)
        self._microbatches = PipelineSchedule(self._wrapped or self._stage, self._parallel, self._share, mixtures, recomputed)
        self._offloaded = StorageOffload()

    def _transformer_config(self, layout: ParallelLayout, deterministic: bool) -> TransformerConfig:
        options = self._options
        granularity = options.recompute_granularity or ("full" if self._spec.recomputes_activations else None)
        full = granularity == "full"
        return transformer_config(
            self._hf_config,
            self._compute_dtype,
            layout,
            sequence_parallel=options.sequence_parallel and layout.tensor > 1,
            recompute_granularity=granularity,
            recompute_method=(options.recompute_method or "uniform") if full else None,
            recompute_num_layers=(options.recompute_num_layers or 1) if full else None,
            # Between stages: the shapes of the tensors, then the tensors; gloo has no batches of them.
            variable_seq_lengths=layout.pipeline > 1,
            batch_p2p_comm=self._device.type == "cuda",
            deallocate_pipeline_outputs=True,
            finalize_model_grads_func=finalize_model_grads,
            deterministic_mode=deterministic,
        )

    def _make_optimizer(self, config: TransformerConfig) -> None:
        """The optimiser; None for a frozen model."""
        training, options = self._spec.optimisation, self._options
        if training is None:
            return
        self._wrapped = data_parallel(self._stage, config, options.use_distributed_optimizer, options.overlap_grad_reduce)
        if self._device.type == "cpu":
            cpu_shim.mark_parameters(self._stage)
        self._optimizer = distributed_adamw(self._wrapped, training.arguments)
        self._masters = MasterState(self._optimizer, self._parallel)

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return self._per_token(batch, lambda micro, at, said: self._place(micro, at, said[:, 0]))

    def train_step(self, batch: TokenBatch, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        mode: EntropyMode = "differentiable" if loss.entropy_coef else "detached"

        def loss_of(micro: Padded, at: Predictors, said: Tensor) -> tuple[Tensor, Metrics]:
            logprobs, entropy = (self._place(micro, at, of_row) for of_row in said.unbind(1))
            entropy = entropy if loss.entropy_coef else entropy.detach()
            value, metrics = compute_loss(logprobs, entropy, micro, loss, totals.tokens, totals.sequences, totals.rollouts)
            return value, metrics | self._microbatches.metrics

        return self._optimise(batch, loss_of, mode, loss.rate_scale)

    def _per_token(self, batch: TokenBatch, compute: Callable[[Padded, Predictors, Tensor], Tensor]) -> Tensor:
        """[N] the per-token results of `compute` on the last stage's output for each micro-batch [B, T], without gradients."""

        def score(micro: Padded, at: Predictors, said: Tensor) -> tuple[Tensor, Tensor]:
            values = compute(micro, at, said)
            return values, micro.flatten(values)

        out = torch.zeros(batch.num_tokens, device=self._device)
        offsets = batch.offsets.tolist()
        with torch.no_grad(), self._cores.computing():
            for micro, values in self._microbatches.run(batch, self._spec.max_tokens_per_microbatch_infer, score, train=False):
                for i, sample in zip(micro.indices, values.split(micro.padded.lengths.tolist()), strict=False):
                    out[offsets[i] : offsets[i + 1]] = sample
        return self._parallel.from_last_stage(out).cpu()

    def _optimise(
        self, batch: TokenBatch, loss_of: OfRows[Metrics], entropy: EntropyMode = "none", rate_scale: RateScale = unscaled
    ) -> dict[str, float]:
        """Takes one optimiser step. `loss_of`: a micro-batch's share of the loss, and its metrics."""
        training = self._spec.optimisation
        if self._optimizer is None or self._wrapped is None or training is None:
            raise RuntimeError("this model is frozen (megatron_infer) and cannot be trained")
        self._wrapped.zero_grad_buffer()
        self._optimizer.zero_grad()
        ran = self._microbatches.run(batch, training.max_tokens_per_microbatch, loss_of, train=True, entropy=entropy)
        with self._cores.computing():
            parts = [metrics for _, metrics in ran]
        of_last = reduce_metrics(parts, self._parallel.reduce_over_data) if self._parallel.last_stage else None
        metrics = self._parallel.object_from_last_stage(of_last)
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        masters = [p for group in self._optimizer.param_groups for p in group["params"]]
        scale_to_norm([p.grad for p in masters if p.grad is not None], norm, training.max_grad_norm)
        lr = training.schedule.at(self._state.optimizer_step) * rate_scale(metrics)
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step_with_ready_grads()
        return metrics | self._state.count(self.metrics_of, norm, lr)

    def export_weights(self, bucket_bytes: int, borrow: bool = False, place: Put | None = None) -> Iterator[Bucket]:
        """Exports weights in the type that layers compute in, tied weights once; the ranks of a stage share its buckets."""
        parallel, named = self._parallel, self._weights.gather(nn.Parameter.detach, self._compute_dtype)
        copies = host_copies(self._device)
        yield from make_buckets(named, bucket_bytes, parallel.rank_in_stage, parallel.stage_ranks, copies, borrow, place)

    def snapshot(self) -> Snapshot:
        parallel, masters = self._parallel, self._masters
        weights = self._weights.gather(masters.weight if masters else nn.Parameter.detach, torch.float32)
        state = self._state if masters else None
        files_of = FilesOf(parallel.rank, parallel.layout.pipeline * parallel.stage_ranks)
        share = Share(parallel.rank_in_stage, parallel.stage_ranks)
        return Snapshot.take(files_of, share, self._device, weights, self._full_moments(), state)

    def write(self, snapshot: Snapshot, directory: Path) -> None:
        folder = directory / files.MODEL
        folder.mkdir(parents=True, exist_ok=True)
        if snapshot.files_of.first:
            self._save_description(folder)
        self._write_weights(folder, snapshot.weights, snapshot.files_of)
        snapshot.write_training(directory, snapshot.moments)

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        check_model_folder(directory / files.MODEL)
        masters = self._masters
        state = files.TrainerState.read(directory / files.TRAINER) if masters is not None else self._state
        weights = self._open_weights(directory / files.MODEL)
        kinds = MOMENTS if masters is not None and state.optimizer_step else ()
        moments = TensorFiles(*(files.optimizer_files(directory) if kinds else []))
        for moment in kinds:
            self._check(directory, partial(moments.meta, suffix=f".{moment}"))
        self._set_weights(weights)
        if masters is not None:
            masters.clear_moments()
            for moment in kinds:
                for parameter, value in self._weights.scatter(partial(moments.read, suffix=f".{moment}")):
                    masters.set_moment(moment, parameter, value, state.optimizer_step)
            files.restore_rng(files.rng_path(directory, self._parallel.rank), self._device)
        self._state = state

    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        self._check(Path(self._spec.model_path), lambda name: torch.empty_like(weights[name], device="meta"))
        self._set_weights(weights.__getitem__)

    def offload(self) -> None:
        if self._device.type == "cpu":
            return
        kept = list(self._stage.parameters()) + (self._masters.tensors() if self._masters else [])
        buffers = self._wrapped.buffers + self._wrapped.expert_parallel_buffers if self._wrapped else []
        scratch = [buffer.grad_data for buffer in buffers]
        self._offloaded.offload(kept, scratch)
        torch.cuda.empty_cache()

    def reload(self) -> None:
        self._offloaded.reload()

    def close(self) -> None:
        """Leaves the process groups; the last call."""
        self._parallel.close()

    def _place(self, micro: Padded, at: Predictors, of_row: Tensor) -> Tensor:
        """[B, T] the rows [R] at the tokens that they predict, 0 elsewhere."""
        return self._share.gather(of_row.new_zeros(micro.tokens.shape).index_put((at.rows, at.columns + 1), of_row))

    def _open_weights(self, folder: Path) -> Read:
        source = TensorFiles.of_model(folder)
        self._check(folder, source.meta)
        return source.read

    def _check(self, source: Path, meta: Callable[[str], Tensor]) -> None:
        try:
            self._weights.check(meta)
        except ValueError as error:
            raise ValueError(f"'{source}' is of another model: {error}") from None

    @torch.no_grad()
    def _set_weights(self, read: Read) -> None:
        for parameter, value in self._weights.scatter(read):
            if self._masters is None:
                parameter.copy_(value)
            else:
                self._masters.set_weight(parameter, value)

    def _full_moments(self) -> Iterator[tuple[str, Tensor]]:
        """A collective: `<parameter>.<moment>`, whole, one at a time; nothing before the first step."""
        if self._masters is not None and self._state.optimizer_step:
            for moment in MOMENTS:
                for name, tensor in self._weights.gather(partial(self._masters.moment, moment), torch.float32):
                    yield f"{name}.{moment}", tensor

    def _write_weights(self, folder: Path, weights: dict[str, Tensor], files_of: FilesOf) -> None:
        write_tensors(folder, weights.items(), files_of)

    def _save_description(self, folder: Path) -> None:
        """Writes all files of a Hugging Face folder but its weights."""
        self._hf_config.dtype = torch.float32
        self._hf_config.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)
        generation = self._path / "generation_config.json"
        if generation.is_file():
            shutil.copy(generation, folder)
