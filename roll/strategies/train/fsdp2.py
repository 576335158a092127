"""The embedded training back end: a transformers causal LM, AdamW, and FSDP2 when there are several ranks.

Invariant: an optimiser step is a function of the whole batch. How it is cut into micro-batches and ranks changes the sums' order
of addition, nothing else: every loss is normalised by the batch's totals, gradients are summed, and ranks run equally many
micro-batches (the missing ones without a token) so that their collectives match.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from roll.algorithms.loss import LossSpec, Metrics, compute_loss, reduce_metrics
from roll.data.microbatch import plan_microbatches
from roll.data.token_batch import PER_SAMPLE, Padded, TokenBatch
from roll.strategies.train import checkpoint_files as files
from roll.strategies.train.interface import BatchTotals, RankContext
from roll.strategies.train.logprobs import EntropyMode, predictor_columns, token_logprobs
from roll.strategies.train.lr_schedule import LRSchedulerType, lr_scale, warmup_length
from roll.strategies.train.sharding import Ranks, local, reshard
from roll.weights.bucket import Bucket, make_buckets

DTypeName = Literal["auto", "fp32", "bf16", "fp16"]
MOMENTS = ("exp_avg", "exp_avg_sq")


class FSDP2Strategy:
    """A `TrainStrategy` (see the interface for its methods). `trainable=False` is a frozen model without an optimiser.

    Trained master weights and moments are float32; layers compute in `dtype` (by FSDP2's mixed precision, by autocast on one
    rank). Dropout is off: the ratio of two log-probs must come from the weights alone. Weight decay acts on matrices only.

    Raises:
        FileNotFoundError: `model_path` lacks the model's or the tokenizer's files.
        ValueError: a schedule without its total, or training in fp16.
    """

    def __init__(
        self,
        context: RankContext,
        model_path: str,
        *,
        dtype: DTypeName = "auto",
        attn_implementation: str = "sdpa",
        trainable: bool = True,
        learning_rate: float = 1e-6,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        lr_scheduler_type: LRSchedulerType = "constant",
        warmup_steps: int = 0,
        warmup_ratio: float = 0.0,
        total_optimizer_steps: int | None = None,
        max_grad_norm: float = 1.0,
        max_tokens_per_microbatch: int = 16384,
        max_tokens_per_microbatch_infer: int = 16384,
        reshard_after_forward: bool = True,
        gradient_checkpointing: bool = False,
        collective_timeout_s: float = 600.0,
    ) -> None:
        if trainable and dtype == "fp16":
            raise ValueError("fp16 gradients underflow; train in bf16 or fp32")
        self._path = Path(model_path)
        files.check_model_folder(self._path)
        self._learning_rate = learning_rate
        self._total, self._schedule = total_optimizer_steps, lr_scheduler_type
        self._warmup = warmup_length(total_optimizer_steps, warmup_steps, warmup_ratio)
        lr_scale(0, self._total, self._schedule, self._warmup)
        self._max_grad_norm = max_grad_norm
        self._train_budget, self._infer_budget = max_tokens_per_microbatch, max_tokens_per_microbatch_infer

        self._device = torch.device(context.device)
        _prepare_process(context, self._device)
        self._compute_dtype = _resolve_dtype(dtype, self._device)
        self._attention = attn_implementation
        self._ranks = Ranks(context, self._device, collective_timeout_s)
        self._tokenizer = files.load_tokenizer(self._path)
        self._model = files.load_model(self._path, torch.float32 if trainable else self._compute_dtype, attn_implementation)
        self._model.requires_grad_(trainable).eval()
        mixed = trainable and self._compute_dtype != torch.float32
        self._autocast = mixed and context.world_size == 1
        layer_names = set(self._model._no_split_modules or ())
        self._ranks.shard(self._model, layer_names, self._compute_dtype if mixed else None, reshard_after_forward)
        if trainable and gradient_checkpointing:
            self._model.gradient_checkpointing_enable({"use_reentrant": False})
            for module in self._model.modules():
                # Checkpointing layers act in training mode only; what is inside them stays without dropout.
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True

        self._state = files.TrainerState()
        self._optimizer: torch.optim.AdamW | None = None
        if trainable:
            parameters = list(self._model.parameters())
            matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
            groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
            filled = [group for group in groups if group["params"]]
            self._optimizer = torch.optim.AdamW(filled, lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True)

    def log_probs(self, batch: TokenBatch) -> Tensor:
        out = torch.zeros(batch.num_tokens)
        offsets = batch.offsets.tolist()
        with torch.no_grad():
            for indices, micro in self._microbatches(batch, self._infer_budget):
                logprobs, _ = self._forward(micro, "none")
                values = micro.flatten(logprobs).cpu().split(micro.lengths.tolist())
                for i, sample in zip(indices, values, strict=False):
                    out[offsets[i] : offsets[i + 1]] = sample
        reshard(self._model)
        return out

    def train_step(self, batch: TokenBatch, loss: LossSpec, totals: BatchTotals) -> dict[str, float]:
        """Besides the loss's metrics: `actor_train/grad_norm` (before clipping), `actor_train/lr` and
        `actor_train/skipped_steps`, the number so far of steps not taken, nor counted by the schedule, because the gradient was
        not finite."""
        optimizer = self._trainable_optimizer()
        parts: list[Metrics] = []
        for _, micro in self._microbatches(batch, self._train_budget):
            logprobs, entropy = self._forward(micro, "differentiable" if loss.entropy_coef else "detached")
            value, metrics = compute_loss(logprobs, entropy, micro, loss, totals.tokens, totals.sequences)
            value.backward()
            parts.append(metrics)
        norm = self._clip_gradients()
        lr = self._learning_rate * lr_scale(self._state.optimizer_step, self._total, self._schedule, self._warmup)
        if math.isfinite(norm):
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            self._state.optimizer_step += 1
        else:
            self._state.skipped_steps += 1
        optimizer.zero_grad(set_to_none=True)
        return reduce_metrics(parts, self._ranks.all_reduce) | {
            "actor_train/grad_norm": norm,
            "actor_train/lr": lr,
            "actor_train/skipped_steps": float(self._state.skipped_steps),
        }

    def export_weights(self, bucket_bytes: int) -> Iterator[Bucket]:
        """In the type the layers compute in; tied weights once."""
        full = ((name, self._export_dtype(self._ranks.full(tensor))) for name, tensor in self._named_tensors())
        if self._ranks.rank == 0:
            yield from make_buckets(full, bucket_bytes)
        else:
            for _ in full:
                pass

    def save(self, directory: Path) -> None:
        """Writes the files that `checkpoint_files` lists. A collective; any number of ranks can load them."""
        directory.mkdir(parents=True, exist_ok=True)
        lead = self._ranks.rank == 0
        weights = self._gathered(self._named_tensors())
        if lead:
            self._model.save_pretrained(directory / files.MODEL, state_dict=weights)
            self._tokenizer.save_pretrained(directory / files.MODEL)
        if self._optimizer is not None:
            moments = self._gathered(self._named_moments(self._optimizer))
            if lead:
                save_file(moments, directory / files.OPTIMIZER)
                self._state.write(directory / files.TRAINER)
            save_file(files.rng_state(self._device), files.rng_path(directory, self._ranks.rank))

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        files.check_model_folder(directory / files.MODEL)
        state = files.TrainerState.read(directory / files.TRAINER) if self._optimizer is not None else self._state
        source = files.load_model(directory / files.MODEL, torch.float32, self._attention).state_dict()
        if bad := [name for name, t in self._named_tensors() if name not in source or source[name].shape != t.shape]:
            raise ValueError(f"checkpoint '{directory}' is of another model: '{bad[0]}' is missing or of another shape")
        for name, tensor in self._named_tensors():
            local(tensor).copy_(local(self._ranks.like(source[name], tensor)))
        if self._optimizer is not None:
            self._load_moments(self._optimizer, load_file(directory / files.OPTIMIZER), state.optimizer_step)
            files.restore_rng(files.rng_path(directory, self._ranks.rank), self._device)
        self._state = state

    def offload(self) -> None:
        self._move(torch.device("cpu"))

    def reload(self) -> None:
        self._move(self._device)

    def close(self) -> None:
        """Leaves the process group; the last call."""
        self._ranks.close()

    def _microbatches(self, batch: TokenBatch, budget: int) -> Iterator[tuple[list[int], Padded]]:
        """Sample indices and micro-batch, equally many on every rank; those beyond this rank's own hold no sample."""
        plan = plan_microbatches(batch.lengths.tolist(), budget)
        count = self._ranks.all_max(max(1, len(plan)))
        for indices in plan:
            yield indices, batch.select(indices).padded().to(self._device)
        for _ in range(len(plan), count):
            yield [], _without_samples(batch).to(self._device)

    def _forward(self, micro: Padded, entropy: EntropyMode) -> tuple[Tensor, Tensor | None]:
        columns = predictor_columns(micro.loss_mask)
        precision = torch.autocast(self._device.type, self._compute_dtype) if self._autocast else contextlib.nullcontext()
        with precision:
            # Padding is on the right and attention causal: no token sees it, so the kernel needs no mask.
            logits = self._model(input_ids=micro.tokens, use_cache=False, logits_to_keep=columns).logits
        return token_logprobs(logits, micro.tokens, micro.temperatures, micro.loss_mask, columns, entropy)

    def _clip_gradients(self) -> float:
        """The global norm before clipping, over all ranks."""
        gradients = [local(p.grad) for p in self._model.parameters() if p.grad is not None]
        square = torch.nn.utils.get_total_norm(gradients).square()
        self._ranks.all_reduce(square, "sum")
        norm = float(square.sqrt())
        if math.isfinite(norm) and norm > self._max_grad_norm:
            torch._foreach_mul_(gradients, self._max_grad_norm / norm)
        return norm

    def _trainable_optimizer(self) -> torch.optim.AdamW:
        if self._optimizer is None:
            raise RuntimeError("this model is frozen (fsdp2_infer) and cannot be trained")
        return self._optimizer

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and persistent buffers under the names of `state_dict()`, sharded as they are, tied ones once."""
        seen: set[int] = set()
        for name, tensor in self._model.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor.detach()

    def _named_moments(self, optimizer: torch.optim.AdamW) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            for moment in MOMENTS:
                if moment in optimizer.state[parameter]:
                    yield f"{name}.{moment}", optimizer.state[parameter][moment]

    def _gathered(self, named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Full tensors on rank 0's CPU; nothing elsewhere."""
        result = {}
        for name, tensor in named:
            full = self._ranks.full(tensor)
            if self._ranks.rank == 0:
                result[name] = full.cpu().contiguous()
        return result

    def _load_moments(self, optimizer: torch.optim.AdamW, moments: dict[str, Tensor], step: int) -> None:
        optimizer.state.clear()
        if step == 0:
            return
        for name, parameter in self._model.named_parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=self._device),
                **{moment: self._ranks.like(moments[f"{name}.{moment}"], parameter) for moment in MOMENTS},
            }

    def _export_dtype(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._compute_dtype) if tensor.is_floating_point() else tensor

    def _move(self, device: torch.device) -> None:
        if self._device.type == "cpu":
            return
        nn.Module.to(self._model, device)
        if self._optimizer is not None:
            for state in self._optimizer.state.values():
                state.update({key: value.to(device) for key, value in state.items()})
        torch.cuda.empty_cache()


def _prepare_process(context: RankContext, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(context.threads)
    torch.manual_seed(context.seed + context.rank)
    if context.deterministic:
        # cuBLAS reads it when it is first used; without it deterministic matrix products are refused.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def _resolve_dtype(name: DTypeName, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]


def _without_samples(batch: TokenBatch) -> Padded:
    """A micro-batch of one masked token, with the fields that `batch` has: it adds 0 to the loss, the gradient and all
    metrics."""
    values = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        if value is not None:
            value = value.new_zeros(1 if field.name in PER_SAMPLE else (1, 1))
        values[field.name] = value
    values["lengths"] = batch.lengths.new_ones(1)
    return Padded(attention_mask=torch.ones(1, 1, dtype=torch.bool), **values)
