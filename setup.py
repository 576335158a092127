"""Package metadata. What each stack needs stands in `requirements/`, one file a stack."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


def requirements(name: str) -> list[str]:
    lines = (HERE / "requirements" / f"{name}.txt").read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip() and not line.startswith("-")]


EXTRAS = ("ray", "math", "agentic", "vllm", "deepspeed", "megatron", "lora", "dev")

setup(
    name="roll",
    version="0.1.0",
    description="Asynchronous reinforcement learning for language models: one small system from a laptop's CPU to a cluster",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["roll", "roll.*"]),
    package_data={"roll.strategies.cpu_shims": ["sglang/*.py"]},  # put on the path of SGLang's processes, not imported here
    entry_points={"console_scripts": ["roll = roll.cli.main:main"]},
    install_requires=requirements("base"),
    extras_require={name: requirements(name) for name in EXTRAS},
)
