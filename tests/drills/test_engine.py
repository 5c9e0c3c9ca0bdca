"""An engine is added from outside by a row: a sweep then runs on it, and its runs know the same rows."""

from bsvi.tables.streams import STREAMS
from tests.drills.conftest import TINY, printed


def test_a_sweep_runs_on_an_engine_of_a_stranger_with_a_method_of_a_stranger(plugin, bsvi_command, tmp_path):
    plugin(printed("A method") + printed("An engine"))
    words = "sweep digits --methods bsvi-sir-2 --on in-turn --k 2 --iwae 2 --examples 5"
    assert "1 of 1 runs are complete" in bsvi_command(words, TINY)
    assert (tmp_path / "runs/digits/bsvi-sir-2-seed0/scores.json").exists()


def test_a_flag_of_another_engine_is_refused_on_one_of_a_stranger(plugin, bsvi_command):
    plugin(printed("An engine"))
    said = bsvi_command("sweep digits --on in-turn --gpus-per-run 1", code=1)
    assert "--gpus-per-run goes with --on ray or --on slurm" in said


def test_no_two_purposes_share_a_stream_of_noise():
    assert len({*STREAMS.values()}) == len(STREAMS)
