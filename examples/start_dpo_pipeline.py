"""python examples/start_dpo_pipeline.py [--config_path DIR] [--config_name NAME] [--local] [key=value ...]"""

import sys

import roll

if __name__ == "__main__":
    sys.exit(roll.run_command(["train", "dpo", *sys.argv[1:]]))
