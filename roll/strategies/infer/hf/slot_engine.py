"""The synchronous core of `hf_infer`: continuous batching over the slots of a `SlotModel`.

One `step` is one forward: either new requests are prefilled (and get their first token), or every running request gets its
next token. Between two steps requests join and leave and weights change, never within one, so every token is sampled from
logits of exactly one policy version, with which it is stamped. An engine belongs to one thread.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor, nn

from roll.core.data.sample import FinishReason
from roll.core.distributed.waiting_line import WaitingLine
from roll.core.weights.adapter import AdapterSource
from roll.core.weights.bucket import WeightManifest
from roll.core.workers.infer_interface import ASLEEP, EngineStats, GenerateRequest, GenerateResult, WeightUpdateMode
from roll.core.workers.response_text import Tokenizer
from roll.plan.memory import PREFILL_TOKENS
from roll.platform.process_setup import warn_if_not_deterministic
from roll.strategies.infer.hf.decode_graphs import Capture
from roll.strategies.infer.hf.kept_rows import KeptRows
from roll.strategies.infer.hf.philox import uniforms
from roll.strategies.infer.hf.sampling import BatchSampling, sample
from roll.strategies.infer.hf.shadow_weights import ShadowWeights
from roll.strategies.infer.hf.slot_cache import Span
from roll.strategies.infer.hf.slot_model import SlotModel
from roll.strategies.infer.hf.slot_row import WHOLE, ContextKey, Row, split
from roll.strategies.infer.request_queue import BusyTime, RequestBounds
from roll.strategies.vision.sight import Sight


class SlotEngine:
    """Takes the model over: its parameters' memory is exchanged by `activate`.

    `deterministic`: every forward is made for one request alone, and a resumed request replays its earlier tokens one by one,
    so a seeded result is, bitwise, a function of weights, prompt and seed. Slower by about the number of running requests.

    `capture`: makes graphs of decode steps, unless the engine is deterministic. `block`: the KV cache is in blocks of so many
    tokens where the model can read them, `cache_tokens` in all (None: room for every row at full length); requests wait for
    blocks, and a row that finds none leaves and is computed again. Without blocks fewer requests run at once. `fp32_head`: logits
    of narrower weights are float32."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer | None,
        *,
        max_running_requests: int,
        max_length: int,
        seed: int,
        deterministic: bool = False,
        version: int = 0,
        adapters: AdapterSource | None = None,
        sight: Sight | None = None,
        capture: Capture | None = None,
        block: int = 0,
        cache_tokens: int | None = None,
        fp32_head: bool = False,
    ) -> None:
        if max_running_requests < 1 or max_length < 2:
            raise ValueError(f"{max_running_requests=} must be at least 1 and {max_length=} at least 2")
        if deterministic:
            warn_if_not_deterministic()
        capture = None if deterministic else capture
        self.shadow = ShadowWeights(model, adapters, in_place=capture is not None)
        self._model = SlotModel(model, max_running_requests, max_length, sight, capture, block, cache_tokens, fp32_head)
        self.slots, self.deterministic = self._model.slots, deterministic
        self._bounds = RequestBounds(self._model.vocab_size, max_length, tokenizer is not None, sight is not None)
        self._tokenizer, self._seeds = tokenizer, random.Random(seed)
        """Seeds are for requests that bring none."""
        self._rows: list[Row] = []
        """The running requests; row `i` owns slot `i`."""
        self._interrupted: deque[Row] = deque()
        """Were running when weights changed, or blocks ran out; prefilled again before new requests."""
        self._queue: WaitingLine[str, Row] = WaitingLine()
        self._prefixes: dict[ContextKey, tuple[Row, Tensor]] = {}
        """Context -> a running row whose slot begins with it, and the logits that follow it, under the present weights."""
        self._kept, self._finished = KeptRows(self.slots), list[GenerateResult]()
        self._sampling: BatchSampling | None = None
        """Parameters of all running rows; None when the rows have changed."""
        self._asleep = self._queue_held = False
        self._stats, self._busy, self._step_ended = EngineStats(version=version), BusyTime(), 0.0

    @property
    def drained(self) -> bool:
        """No request is running."""
        return not self._rows and not self._interrupted

    def hold_queue(self, held: bool) -> None:
        """While it is held, queued requests stay queued, so that the engine drains."""
        self._queue_held = held

    @property
    def idle(self) -> bool:
        """Nothing to do until the next call."""
        can_run = bool(self._rows or self._interrupted or self._queue) and not self._asleep
        return not can_run and not self._finished

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request. `ValueError` if it can never be run or its id is in use."""
        joining = Row.of(request, self._bounds.tokens_left(request), self._tokenizer, self._seeds.getrandbits(64))
        others = {row.request_id for row in (*self._rows, *self._interrupted)} | {done.request_id for done in self._finished}
        if request.request_id in others or request.request_id in self._queue:
            raise ValueError(f"request {request.request_id!r} is running or queued already")
        if request.sampling.with_routes and self._model.record_routes():
            self._begin_anew()  # nobody has recorded the routes of what is cached
        if joining.limit <= 0:
            self._finished.append(joining.result("length", self._tokenizer))
        else:
            self._queue.add(request.request_id, request.priority, joining)

    @torch.inference_mode()
    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Ends the named requests (None: all), running, interrupted or queued. Ids that have ended already are ignored."""
        named = None if request_ids is None else set(request_ids)
        slots = [i for i, row in enumerate(self._rows) if named is None or row.request_id in named]
        self._remove(slots, ["abort"] * len(slots))
        interrupted = [row for row in self._interrupted if named is None or row.request_id in named]
        for row in interrupted:
            self._interrupted.remove(row)
        queued = [self._queue.remove(name) for name in self._queue.names if named is None or name in named]
        self._finished += [row.result("abort", self._tokenizer) for row in (*interrupted, *queued) if row is not None]
        self._busy.count(not self.drained)

    def activate(self, manifest: WeightManifest, mode: WeightUpdateMode) -> float:
        """Swaps in the received weights; returns the pause in seconds: from the end of the last token step (from now, if no
        request is running) to the end of the swap. The wait for the token step under way, at most one step, is not pause:
        tokens are made in it."""
        if mode not in get_args(WeightUpdateMode):
            raise ValueError(f"unknown weight update mode {mode!r}")
        if self._asleep:
            raise ValueError(ASLEEP)
        if mode == "drain" and not self.drained:
            raise ValueError(f"{len(self._rows) + len(self._interrupted)} requests are running: drain them first")
        began = self._step_ended if self._rows else time.perf_counter()
        self.shadow.flip(manifest)
        self._model.weights_changed()
        self._begin_anew()
        if mode == "interrupt":
            for slot in range(len(self._rows)):
                self._take_routes(slot)
            self._interrupted.extendleft(reversed(self._rows))
            self._rows, self._sampling = [], None
        self._stats.version = manifest.version
        return time.perf_counter() - began

    def sleep(self) -> None:
        """Frees the KV cache and unused shadow weights; requests that come now wait for `wake`."""
        if running := len(self._rows) + len(self._interrupted):
            raise ValueError(f"cannot sleep with {running} requests running: abort them first")
        self._asleep = True
        self._begin_anew()
        self._model.free()
        self.shadow.free()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        self._asleep = False

    def stats(self) -> EngineStats:
        running = len(self._rows) + len(self._interrupted)
        return replace(
            self._stats,
            running=running,
            queued=len(self._queue),
            free_slots=self.slots - running,
            busy_s=self._busy.seconds,
            cache_use=self._model.cache.use(len(self._rows)),
        )

    @torch.inference_mode()
    def step(self) -> list[GenerateResult]:
        """Samples one token for every row that is due, and returns all results that are ready (aborted ones too)."""
        if not self._asleep:
            if joining := self._next_rows():
                self._busy.count(True)
                self._prefill(joining)
            elif self._rows:
                self._decode()
            self._step_ended = time.perf_counter()
            self._busy.count(not self.drained)
        finished, self._finished = self._finished, []
        return finished

    def _next_rows(self) -> list[Row]:
        """Interrupted rows, then queued ones by (priority, arrival), as many as slots, blocks and prefill budget allow."""
        joining, fresh = list[Row](), set[ContextKey]()
        width, room = 0, self._model.cache.room(len(self._rows)) if self._interrupted or self._queue else 0
        while len(self._rows) + len(joining) < self.slots:
            row = self._interrupted[0] if self._interrupted else None if self._queue_held else self._queue.first()
            if row is None:
                break
            key = row.context
            new = key not in self._prefixes and key not in fresh
            # Who begins like another needs a block of its own for what follows.
            room -= self._model.cache.needs(len(key[0]) + 1 if new else 1)
            if room < 0:
                break
            if new:
                width = max(width, len(key[0]))
                if fresh and width * (len(fresh) + 1) > PREFILL_TOKENS:
                    break
                fresh.add(key)
            if self._interrupted:
                self._interrupted.popleft()
            else:
                self._queue.remove(row.request_id)
            row.joined_as = key
            joining.append(row)
        return joining

    def _prefill(self, joining: list[Row]) -> None:
        """Gives the rows slots, fills these and samples one token each. Equal contexts are computed once and copied; of a context
        that begins as what a free slot holds only the rest is computed."""
        fresh: dict[ContextKey, Row] = {}
        copies: list[Row] = []
        for row in joining:
            if row.joined_as in self._prefixes or fresh.setdefault(row.context, row) is not row:
                copies.append(row)
        begun = {key: self._kept.beginning(key[0]) for key in fresh}
        starts = {key: 0 if each is None else each.tokens for key, each in begun.items()}
        fresh = {key: fresh[key] for key in sorted(fresh, key=lambda key: len(key[0]) - starts[key])}
        first = len(self._rows)
        self._rows += [*fresh.values(), *copies]
        found = [each for each in begun.values() if each is not None]
        self._model.cache.take(first, [begun[key] for key in fresh], self._kept.give_up(range(first, len(self._rows)), found))
        enough = self._own([(i, starts[key], len(key[0])) for i, key in enumerate(fresh, first)])
        assert enough, "rows join only where there is room for all of them"
        self._stats.prefill_tokens += sum(len(key[0]) - starts[key] for key in fresh)
        if self.deterministic:
            computed = [self._model.replay(i, *split(key)) for i, key in enumerate(fresh, first)]
        else:
            computed = self._model.compute(first, [(key[0], starts[key]) for key in fresh])
        for (key, row), logits in zip(fresh.items(), computed, strict=True):
            self._prefixes[key] = (row, logits)
        following = []
        for slot, row in enumerate(self._rows[first:], first):
            context = row.context
            row.cached, row.mixed = len(context[0]), False
            source, logits = self._prefixes[context]
            if source is not row:
                self._model.cache.copy(self._rows.index(source), slot, row.cached)
                self._prefixes[context] = (row, logits)  # the newest lives longest
            following.append(logits)
        self._sampling = None
        self._sample(first, torch.stack(following))

    def _begin_anew(self) -> None:
        """From now on no row begins with what is cached."""
        self._prefixes.clear()
        self._kept.clear()
        for row in self._rows:
            row.mixed = True

    def _own(self, spans: list[Span]) -> bool:
        """Returns True if there is memory for the next tokens; ended rows give theirs up, the oldest first."""
        cache = self._model.cache
        while True:
            cache.keep_only(len(self._rows), self._kept.slots)
            if cache.own(spans):
                return True
            if not self._kept.drop_oldest():
                return False

    def _decode(self) -> None:
        while not self._own([(i, row.cached, row.cached + 1) for i, row in enumerate(self._rows)]):
            row = self._leave(len(self._rows) - 1)
            row.preempted = True
            self._interrupted.appendleft(row)
        newest = [row.tokens[-1] for row in self._rows]
        positions = [row.cached for row in self._rows]
        if self.deterministic:
            pairs = zip(newest, positions, strict=True)
            logits = torch.cat([self._model.forward_tokens(i, [token], [at]) for i, (token, at) in enumerate(pairs)])
        else:
            logits = self._model.forward_tokens(0, newest, positions)
        for row in self._rows:
            row.cached += 1
        self._sample(0, logits)

    def _sample(self, first: int, logits: Tensor) -> None:
        """Samples the next token of the rows from `first` on, given logits [n, vocabulary]; those that end with it leave."""
        rows = self._rows[first:]
        drawn = uniforms([row.seed for row in rows], [row.position for row in rows])
        numbers = torch.from_numpy(drawn).to(self._model.device)
        if self.deterministic:
            alone = [sample(logits[i : i + 1], self._parameters([row]), numbers[i : i + 1]) for i, row in enumerate(rows)]
            tokens, logprobs = (torch.cat(parts) for parts in zip(*((each.tokens, each.logprobs) for each in alone), strict=True))
            kept = {i: each.kept[0] for i, each in enumerate(alone) if each.kept}
        elif first:
            tokens, logprobs, kept = sample(logits, self._parameters(rows), numbers)
        else:
            self._sampling = self._sampling or self._parameters(rows)
            tokens, logprobs, kept = sample(logits, self._sampling, numbers)
        values = logprobs.tolist()
        version = self._stats.version
        if not math.isfinite(sum(values)):
            raise FloatingPointError(f"the logits are not finite under the weights of version {version}")
        ended: list[int] = []
        reasons: list[FinishReason] = []
        for i, (row, token, logprob) in enumerate(zip(rows, tokens.tolist(), values, strict=True), first):
            if reason := row.append(token, logprob, version, kept.get(i - first, WHOLE)):
                ended.append(i)
                reasons.append(reason)
        self._stats.generated_tokens += len(rows)
        self._remove(ended, reasons)

    def _parameters(self, rows: list[Row]) -> BatchSampling:
        return BatchSampling.of([row.request.sampling for row in rows], self._model.vocab_size, self._model.device)

    def _remove(self, slots: list[int], reasons: Sequence[FinishReason]) -> None:
        """Ends the rows in these slots (ascending)."""
        for slot, reason in zip(reversed(slots), reversed(reasons), strict=True):
            self._finished.append(self._leave(slot).result(reason, self._tokenizer))

    def _leave(self, slot: int) -> Row:
        """Takes the row out. The last row moves into the hole, so rows stay compact, and this one to where the last one was."""
        self._take_routes(slot)
        row, last = self._rows[slot], self._rows.pop()
        if last is not row:
            self._model.cache.swap(slot, len(self._rows), (row.cached, last.cached))
            self._rows[slot] = last
        if not (row.mixed or self.deterministic):
            self._kept.keep(len(self._rows), row.context[0][: row.cached])
        if row.joined_as in self._prefixes and self._prefixes[row.joined_as][0] is row:
            del self._prefixes[row.joined_as]
        self._sampling = None
        return row

    def _take_routes(self, slot: int) -> None:
        """Before a row leaves its slot: what it was computed with first is kept, whatever computes it again."""
        row = self._rows[slot]
        if row.request.sampling.with_routes and row.first_unrouted < row.cached:
            more = self._model.routes(slot, row.first_unrouted, row.cached)
            row.routes = more if row.routes is None else row.routes + more
