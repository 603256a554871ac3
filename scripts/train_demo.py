"""Trains the demo's pair from scratch and writes it into sglang_dspark/demo/trained: `python scripts/train_demo.py`.

About half an hour on one core of a server CPU with AMX, several hours on one without. Started again, it goes on where
it was; `--work` names the folder that keeps everything (default: build/train-demo). Tables and pictures of the result:
scripts/measure_acceptance.py. The numbers of the recipe: sglang_dspark/train/demo_recipe.py.
"""

import argparse
from pathlib import Path

import torch

from sglang_dspark.cli.train import progress_bar
from sglang_dspark.train.demo_recipe import make_pair
from sglang_dspark.train.loop import METRICS_NAME
from sglang_dspark.train.metrics import read_metrics
from sglang_dspark.train.picture import draw_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/train-demo"), help="keeps states and features")
    parser.add_argument(
        "--threads", type=int, default=1, help="more than 1 changes the last bits (default: %(default)s)"
    )
    parser.add_argument("--picture", type=Path, help="also draw the draft's run into this file (needs matplotlib)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make_pair(arguments.work, say=lambda text: print(text, flush=True), progress=progress_bar)
    if arguments.picture:
        draw_run(read_metrics(arguments.work / "draft_run" / METRICS_NAME), arguments.picture)


if __name__ == "__main__":
    main()
