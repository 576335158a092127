"""Stand-ins for parts of engines that exist for GPUs alone: with them SGLang, and vLLM's models that see, run and are tested on
machines without one. No run on a GPU loads them."""
