"""A run folder of ``bsvi.train(run=...)`` with a user's own model: the commands cannot build it, and say what can."""

import safetensors.torch
import torch

import bsvi
from bsvi import cli
from bsvi.training.loop import Training


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 3)

    def forward(self, x, z):
        return -(x - self.inner(z)).square().sum(-1)


def model():
    torch.manual_seed(0)
    return bsvi.VAE(torch.nn.Linear(3, 4), Decoder())


def test_the_commands_say_in_one_line_how_to_do_it_from_python(tmp_path, capsys):
    for config in (None, {"note": "mine"}, {"config": "mine", "data": "mine"}):
        run = tmp_path / str(config)[:6]
        settings = Training(steps=2)
        objective = bsvi.objective("bsvi-pi" if config else "bsvi", k=2)
        bsvi.train(model(), objective, [torch.ones(5, 3)], settings=settings, run=run, config=config)
        for verb in ("evaluate", "gap", "sample"):
            assert cli.main([verb, str(run)]) == 1
            said = capsys.readouterr().err
            assert said.count("\n") == 1 and "bsvi.evaluate(model, batches)" in said and "Traceback" not in said
        again = model()
        again.load_state_dict(eval(said.split("load_state_dict(")[1].split("), then")[0], {"safetensors": safetensors}))
    assert bsvi.evaluate(again, torch.ones(4, 3), k=3).log_likelihood.per_example.shape == (4,)
