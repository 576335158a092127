"""What tests of several rooms need, and what takes seconds to make."""

import subprocess
import sys
from pathlib import Path

import pytest

EMBEDDED = Path(__file__).parents[1] / "examples" / "embedded"


@pytest.fixture(scope="session")
def embedded_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that make_embedded.py makes, with a model that was taught for a moment only: its answers are any symbols."""
    made = tmp_path_factory.mktemp("embedded") / "cache"
    program = (
        "import sys; from pathlib import Path; from make_embedded import Settings, make\n"
        "make(Path(sys.argv[1]), settings=Settings(learn_steps=3, misprint_steps=1, batch_size=8))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(made)], cwd=EMBEDDED, check=True, timeout=200)
    return made
