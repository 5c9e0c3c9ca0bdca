"""``bsvi sample RUN``: images from a trained model: the prior, reconstructions, interpolations, the paper's latent figure."""

from pathlib import Path

from bsvi.commands.trained_run import add_data
from bsvi.system.terminal import Parser

MOST = 100_000  # images of one grid


def main(words: list[str]) -> int:
    parser = Parser(prog="bsvi sample", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--rows", type=int, default=5, help="latents z of the figure, one a row (default 5)")
    parser.add_argument("--columns", type=int, default=20, help="images for each z (default 20, as the paper)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the PNG and npz files (default RUN/samples)")
    add_data(parser)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    arguments = parser.parse_args(words)
    if min(arguments.rows, arguments.columns) < 1:
        parser.error(f"--rows and --columns must be at least 1, got {arguments.rows} and {arguments.columns}")
    if arguments.rows * arguments.columns > MOST:
        parser.error(f"--rows times --columns must be at most {MOST:,}, got {arguments.rows} x {arguments.columns}")
    if not 0 <= arguments.seed < 1 << 63:
        parser.error(f"--seed must be a whole number from 0 to 2**63 - 1, got {arguments.seed}")

    from bsvi.experiments import pictures, trained
    from bsvi.system import runtime

    started = runtime.start(runtime.Runtime(arguments.device, compile="off"))
    run = trained.load_trained(arguments.run, started.device)
    out = arguments.out or run.folder / "samples"
    within = arguments.out or run.folder
    if run.steps:
        print(f"latents of test images: the mean of q after the {run.steps} steps that were trained with the model")
    test = run.data(arguments.data_dir, arguments.data_name).test
    for name, images in pictures.draw_gallery(
        run.inference, test, arguments.rows, arguments.columns, arguments.seed
    ).items():
        print(pictures.write_grid(out / name, images, within))
    return 0
