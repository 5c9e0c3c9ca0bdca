"""The benchmark's own arithmetic: order of rounds, ratios within a round, a void run, counted operations."""

import json

import pytest
import torch

from bsvi.bench import __main__ as command
from bsvi.bench import rounds
from bsvi.bench.decoder import DecoderBench, run
from bsvi.bench.port import PlainPixelCNN
from bsvi.bench.rounds import Case, Rounds, run_interleaved
from bsvi.bench.steps import STEPS, count_flops
from bsvi.nets import PixelCNN, ResNetEncoder

TINY = {"batch": 3, "image": (8, 8), "latent": 2, "channels": 4, "kernels": (5, 3), "encoder": (4, 4, 4), "rounds": 2}


def test_every_other_round_runs_in_reversed_order():
    order = []
    cases = [Case(name, "a", lambda name=name: order.append(name)) for name in "abc"]
    done = run_interleaved(cases, 3)
    assert "".join(order) == "abccbaabc"
    assert len(done.sgemm) == 3 and all(len(seconds) == 3 for seconds in done.seconds.values())


def test_ratios_are_taken_within_a_round():
    done = Rounds("wall", {"a": [1.0, 2.0, 10.0], "b": [0.5, 1.0, 8.0]}, {"a": [0] * 3, "b": [0] * 3}, [1.0] * 3)
    summary = done.summary(Case("b", "a", lambda: None))
    assert summary["ratio"] == 0.5 and summary["ratio_range"] == [0.5, 0.8] and summary["n"] == 3


def test_a_busy_machine_makes_the_run_void_and_cpu_time_is_taken_instead(monkeypatch):
    rates = iter([100.0, 50.0, 99.0, 98.0])
    monkeypatch.setattr(rounds, "measure_sgemm_rate", lambda tick: next(rates))
    result = run(DecoderBench(**TINY, variants=("port", "eager"), methods=("vae",)))
    assert result["void"] and result["clock"] == "wall"
    assert (
        not result["fallback"]["void"] and result["fallback"]["clock"] == "cpu" and result["fallback"]["threads"] == 1
    )


def test_a_run_has_a_row_per_method_and_variant_and_goes_into_json():
    result = run(DecoderBench(**TINY, variants=("port+allocator", "direct", "eager"), clock="cpu"))
    rows = {(row["method"], row["variant"]): row for row in result["rows"]}
    assert set(rows) == {(m, v) for m in STEPS for v in ("port", "port+allocator", "direct", "eager")}
    assert all(row["ratio"] > 0 and row["flops"] > 0 for row in rows.values())
    assert rows["vae", "port"]["ratio"] == 1.0
    json.dumps(result)


def test_steps_call_the_decoder_as_often_as_the_paper_counts():
    decoder = PixelCNN(2, (8, 8), channels=4, kernels=(3,))
    encoder = ResNetEncoder(2, (8, 8), (4, 4, 4))
    x = torch.zeros(3, 1, 8, 8)
    for method, calls in (("vae", 1), ("svi-10", 11), ("bsvi-9-sir", 11)):
        counted = []
        decoder.compile_with(lambda log_lik, counted=counted: lambda x, z: counted.append(1) or log_lik(x, z))
        STEPS[method](encoder, decoder, x)
        assert len(counted) == calls
        for module in (encoder, decoder):
            assert all(parameter.grad is not None for parameter in module.parameters())


def test_weight_gradients_of_grouped_convolutions_are_counted_once():
    x = torch.empty(50, 1, 28, 28, device="meta")
    encoder = ResNetEncoder(32, channels=(4, 4, 4)).to("meta")
    sizes = (32, (28, 28), 32, (9, 9))
    own = count_flops(STEPS["vae"], encoder, PixelCNN(*sizes[:2], *sizes[2:]).to("meta"), x)
    port = count_flops(STEPS["vae"], encoder, PlainPixelCNN(*sizes).to("meta"), x)
    assert 0.3 < own / port < 0.7


def test_a_wrong_option_is_one_line_and_exit_code_2(capsys):
    assert command.main(["decoder", "--variants", "fast"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bsvi bench: unknown fast; variants are port") and err.count("\n") == 1


@pytest.mark.parametrize("flag", ["--methods", "--variants"])
def test_memory_of_an_unknown_method_or_variant_is_one_line(capsys, flag):
    assert command.main(["memory", flag, "nonsense"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bsvi bench: unknown nonsense; variants are port") and err.count("\n") == 1


@pytest.mark.slow
def test_every_benchmark_prints_a_table_and_writes_json(tmp_path, capsys):
    for arguments in (["sampling"], ["sizes"], ["memory", "--batch", "2"]):
        path = tmp_path / f"{arguments[0]}.json"
        assert command.main([*arguments, "--json", str(path)]) == 0
        assert json.loads(path.read_text()) and capsys.readouterr().out
