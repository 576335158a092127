"""Training on Megatron-core. What it says about missing Transformer Engine and Apex is known: this back end uses neither."""

import warnings

warnings.filterwarnings("ignore", module=r"megatron\.core")
warnings.filterwarnings("ignore", message=r"`torch\.distributed\.\w+` is deprecated", category=FutureWarning)
