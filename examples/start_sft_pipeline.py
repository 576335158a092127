"""python examples/start_sft_pipeline.py [--config_path DIR] [--config_name NAME] [--local] [key=value ...]"""

import sys

import roll

if __name__ == "__main__":
    sys.exit(roll.run_command(["train", "sft", *sys.argv[1:]]))
