"""Import-time stand-in for SGLang's kernel package, of which no CPU build is published.

SGLang 0.5.23 imports these names when it starts with `SGLANG_USE_CPU_ENGINE=1`. They belong to speculative decoding and to the
AMX paths, which the torch_native attention back end does not take; a call is therefore an error, never a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def _absent(name: str) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build: this feature of SGLang needs a GPU")

    return kernel


assign_req_to_token_pool_cpu = _absent("assign_req_to_token_pool_cpu")
copy_all_layer_kv_cache_cpu = _absent("copy_all_layer_kv_cache_cpu")
assign_draft_cache_locs_contiguous_cpu = _absent("assign_draft_cache_locs_contiguous_cpu")
assign_extend_cache_locs_cpu = _absent("assign_extend_cache_locs_cpu")
fill_accept_out_cache_loc_cpu = _absent("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _absent("fill_bonus_tokens_cpu")
build_tree_kernel_efficient_cpu = _absent("build_tree_kernel_efficient_cpu")
verify_tree_greedy_cpu = _absent("verify_tree_greedy_cpu")
