"""Python runs this file in every process of a vLLM engine on a CPU whose model sees: the engine puts its folder on their path."""

import absent_torchvision

absent_torchvision.stand_in()
