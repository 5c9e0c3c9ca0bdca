"""A model is tried before it is trusted: networks that it does not hold, and a p(x|z) that is no function of x and z."""

import copy
import functools
import gc
import types

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import bsvi
from bsvi import VAE, evaluate, objective
from bsvi.checks.trial import _done, check_model
from bsvi.nets import MLPDecoder, MLPEncoder
from tests.oracles import BernoulliDecoder

X = torch.rand(7, 20, generator=torch.Generator().manual_seed(0)).round()
NET = nn.Linear(4, 20)
FAST = {"k": 2, "iwae": (), "elbo_draws": 1}


def decode(net, x, z):
    return -(x - net(z)).square().sum(-1)


def with_a_global(x, z):
    return decode(NET, x, z)


def through_another_function(x, z):
    return with_a_global(x, z)


class Holder:
    """Not a module, but it holds some."""

    def __init__(self):
        self.net, self.judge = nn.Linear(4, 20), nn.Linear(20, 1)

    def log_lik(self, x, z):
        return self._decode(x, z)

    def _decode(self, x, z):
        return decode(self.net, x, z)

    __call__ = log_lik

    def closing(self):
        return lambda x, z: decode(self.net, x, z)


class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = [nn.Linear(4, 20)]

    def forward(self, x, z):
        return decode(self.nets[0], x, z)


def closure():
    net = nn.Linear(4, 20)
    return lambda x, z: decode(net, x, z)


def default(x, z, net=NET):
    return decode(net, x, z)


def keyword(x, z, *, net=NET):
    return decode(net, x, z)


class Learned:
    """A plain class around a parameter."""

    def __init__(self):
        self.scale = nn.Parameter(torch.ones(4))

    def __call__(self):
        return Independent(Normal(torch.zeros(4), self.scale), 1)


HIDDEN = {
    "closure": lambda: {"decoder": closure()},
    "default": lambda: {"decoder": default},
    "keyword": lambda: {"decoder": keyword},
    "partial": lambda: {"decoder": functools.partial(decode, nn.Linear(4, 20))},
    "global": lambda: {"decoder": with_a_global},
    "function": lambda: {"decoder": through_another_function},
    "bound method": lambda: {"decoder": Holder().log_lik},
    "callable": lambda: {"decoder": Holder()},
    "closing over self": lambda: {"decoder": Holder().closing()},
    "method of a module": lambda: {"decoder": MLPDecoder(4, (4, 5), 8).log_lik},
    "list": lambda: {"decoder": InAList()},
    "compiled": lambda: {"decoder": torch.compile(closure(), backend="eager")},
    "encoder": lambda: {"encoder": functools.partial(lambda net, x: net(x), nn.Linear(20, 8))},
    "prior": lambda: {"prior": Learned()},
    "prior's parameter": lambda: {"prior": Independent(Normal(torch.zeros(4), nn.Parameter(torch.ones(4))), 1)},
    "family": lambda: {"posterior": functools.partial(lambda net, v: bsvi.DiagonalGaussian(net(v)), nn.Linear(8, 8))},
}


@pytest.mark.parametrize("name", list(HIDDEN))
def test_a_network_that_the_model_does_not_hold_is_refused(name):
    model = VAE(**{"encoder": nn.Linear(20, 8), "decoder": BernoulliDecoder()} | HIDDEN[name]())
    with pytest.raises(ValueError, match="uses a network that the model does not hold") as error:
        objective("bsvi", k=2)(model, X)
    assert "torch.nn.Module" in str(error.value) and "requires_grad_(False)" in str(error.value)
    assert "\n" not in str(error.value) and "judge" not in str(error.value)
    with pytest.raises(ValueError, match="does not hold"):
        evaluate(model, X, **FAST)


class Registered(VAE):
    """The same closure, of a network that the model holds."""

    def __init__(self):
        net = nn.Linear(4, 20)
        super().__init__(nn.Linear(20, 8), lambda x, z: decode(net, x, z))
        self.net = net


class Scaled(VAE):
    def log_lik(self, x, z):
        return 0.5 * self.decoder(x, z)


def test_what_is_held_or_frozen_or_has_no_parameters_is_fine():
    frozen = nn.Linear(4, 20).requires_grad_(False)
    by_hand = torch.ones(4, requires_grad=True)  # no parameter of any module: whoever made it looks after it
    encoder, inner = nn.Linear(20, 8), BernoulliDecoder()
    for model in (
        Registered(),
        Scaled(encoder, inner),
        VAE(encoder, lambda x, z: decode(frozen, x, z)),
        VAE(encoder, lambda x, z: -(x[:, :4] - by_hand * z).square().sum(-1)),
        VAE(encoder, lambda x, z: -(x[:, :4] - z).square().sum(-1)),
        VAE(encoder, functools.partial(lambda x, z, scale: -(scale * z).square().sum(-1), scale=2.0)),
        VAE(encoder, inner, prior=Independent(Normal(torch.zeros(4), torch.ones(4)), 1)),
    ):
        objective("bsvi", k=2)(model, X).loss.backward()


class Around(nn.Module):
    """ln p(x|z) behind a layer, as a sequence of one where the layer wants one."""

    def __init__(self, layer, sequence=False):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.inner, self.sequence = layer, BernoulliDecoder(), sequence

    def forward(self, x, z):
        z = z[:, None].expand(-1, 3, -1) if self.sequence else z
        z = self.layer(z, z, z) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(z)
        z = z[0] if isinstance(z, tuple) else z
        return self.inner(x, z[:, 0] if self.sequence else z)


class NoDecoder(nn.Module):
    """A Model whose networks have other names."""

    def __init__(self, likelihood):
        super().__init__()
        self.recognition, self.generator = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8)), likelihood

    def encode(self, x):
        return self.recognition(x)

    def posterior(self, lambda_):
        return bsvi.DiagonalGaussian(lambda_)

    def log_prior(self, z):
        return Normal(0.0, 1.0).log_prob(z).sum(-1)

    def log_lik(self, x, z):
        return self.generator(x, z)


class Functional(nn.Module):
    def forward(self, z):
        return nn.functional.dropout(z, 0.1)  # training is True unless it is told


LAYERS = {
    "batch norm": lambda: (nn.BatchNorm1d(4), False),
    "dropout": lambda: (nn.Dropout(0.1), False),
    "attention": lambda: (nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True), True),
    "recurrent": lambda: (nn.GRU(4, 4, num_layers=2, dropout=0.1, batch_first=True), True),
    "rrelu": lambda: (nn.RReLU(), False),
    "spectral norm": lambda: (nn.utils.spectral_norm(nn.Linear(4, 4)), False),
}
MESSAGE = "depends on the other examples|not the same twice|batch statistics|is active"


@pytest.mark.parametrize("kind", [lambda part: VAE(nn.Linear(20, 8), part), NoDecoder], ids=["vae", "own"])
@pytest.mark.parametrize("name", list(LAYERS))
def test_a_decoder_that_is_no_function_of_x_and_z_is_refused_until_it_is_in_evaluation_mode(name, kind):
    model = kind(Around(*LAYERS[name]()))
    before = {key: value.clone() for key, value in model.state_dict().items() if "generator" in key or "decoder" in key}
    with pytest.raises(ValueError, match=MESSAGE) as error:
        objective("vae")(model, X)
    assert "\n" not in str(error.value) and ";" in str(error.value)
    part = "generator" if isinstance(model, NoDecoder) else "decoder"
    assert before.keys() == {key for key in model.state_dict() if key.startswith(part)}
    getattr(model, part).eval()
    objective("bsvi", k=2)(model, X).loss.backward()  # the encoder keeps its BatchNorm, in training mode
    evaluate(model.train(), X, **FAST)


def test_dropout_that_no_eval_reaches_is_found_in_evaluation_too():
    model = VAE(nn.Linear(20, 8), Around(Functional()))
    with pytest.raises(ValueError, match="not the same twice"):
        evaluate(model, X, **FAST)
    plain = types.SimpleNamespace(
        encode=model.encode, posterior=model.posterior, log_prior=model.log_prior, log_lik=model.log_lik
    )
    with pytest.raises(ValueError, match="not the same twice"):
        evaluate(plain, X, **FAST)


def test_the_reason_is_named():
    with pytest.raises(ValueError, match=r"look at MultiheadAttention \(decoder\.layer\)"):
        objective("vae")(VAE(nn.Linear(20, 8), Around(*LAYERS["attention"]())), X)
    with pytest.raises(ValueError, match=r"depends on the other examples .*BatchNorm1d \(generator\.layer\)"):
        objective("vae")(NoDecoder(Around(nn.BatchNorm1d(4))), X)


class Noting(BernoulliDecoder):
    """A decoder that notes how many rows each call has."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def forward(self, x, z):
        self.calls.append(len(x))
        return super().forward(x, z)


def test_the_try_is_made_once_for_a_model_and_mode_and_kind_of_input():
    model, x = VAE(nn.Linear(20, 8), Noting()), X.repeat(3, 1)
    calls = model.decoder.calls

    def fresh():
        seen = calls[:]
        calls.clear()
        return seen

    objective("bsvi", k=2)(model, x)
    assert fresh() == [21, 21, 21, 8, 8]
    for name in ("bsvi", "vae", "bsvi"):
        objective(name, k=1)(model, x)
    assert fresh() == [21, 21, 21, 21, 21]
    model.eval()
    objective("vae")(model, x)
    objective("vae")(model, x)
    assert fresh() == [21, 8, 8, 21]
    evaluate(model.train(), x, k=1, iwae=(), elbo_draws=1)  # evaluation mode, which is known by now
    assert fresh() == [21, 21, 21]
    objective("vae")(model, x.double().float()[:1])
    model.steps = 10**6  # a number of the user's own changes nothing
    objective("vae")(model, x)
    model.decoder = model.decoder  # nor does the same part again, but another part does
    objective("vae")(model, x)
    assert fresh() == [1, 1, 1, 21, 21]  # one example alone cannot show whether it depends on others
    model.log_lik = lambda x, z: 2 * model.decoder(x, z)
    objective("vae")(model, x)
    assert fresh() == [21, 8, 8]


def test_the_try_changes_no_number_no_random_state_and_no_buffer(monkeypatch):
    """The same steps with and without it, with an encoder that has BatchNorm and dropout in training mode."""
    torch.manual_seed(0)
    model = VAE(nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)), BernoulliDecoder())
    twin, results = copy.deepcopy(model), []
    for each in (model, twin):
        torch.manual_seed(5)
        for name in ("bsvi-sir", "iwae"):
            estimate = objective(name, k=2)(each, X)
            estimate.loss.backward()
        results.append([estimate.bound, torch.rand(3), *each.buffers(), *(p.grad for p in each.parameters())])
        monkeypatch.setattr(bsvi.checks.trial, "_try_twice", lambda *_: None)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_model_is_forgotten_with_its_last_reference():
    model = VAE(nn.Linear(20, 8), BernoulliDecoder())
    objective("vae")(model, X)
    key = id(model)
    assert key in _done
    del model
    gc.collect()
    assert key not in _done


def test_bsvis_own_networks_are_known_and_not_tried():
    own = VAE(MLPEncoder(4, (4, 5), 8), MLPDecoder(4, (4, 5), 8))
    calls = []
    own.decoder.compile_with(lambda log_lik: lambda x, z: calls.append(len(x)) or log_lik(x, z))
    objective("bsvi", k=2)(own, X.view(-1, 1, 4, 5))
    assert calls == [7, 7, 7]


def test_a_compiled_decoder_is_not_compiled_again_for_the_try():
    compiled = []

    def backend(graph, inputs):
        compiled.append(1)
        return graph.forward

    torch._dynamo.reset()
    model = VAE(nn.Linear(20, 8), torch.compile(BernoulliDecoder(), backend=backend))
    with torch.no_grad():
        objective("vae")(model, X)
    assert len(compiled) == 1


def test_a_decoder_for_whole_batches_only_is_let_through():
    def decoder(x, z):
        if len(x) != 12:
            raise RuntimeError("made for 12")
        return -z.square().sum(-1)

    objective("vae")(VAE(nn.Linear(20, 8), decoder), X.repeat(2, 1)[:12])
    check_model(VAE(nn.Linear(20, 8), decoder))
