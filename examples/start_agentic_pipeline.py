"""python examples/start_agentic_pipeline.py [--config_path DIR] [--config_name NAME] [--local] [key=value ...]"""

import sys

from roll.cli.train import main

if __name__ == "__main__":
    sys.exit(main(["agentic", *sys.argv[1:]], prog=f"python {sys.argv[0]}"))
