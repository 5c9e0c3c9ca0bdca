import os
import platform
import subprocess
import sys

import pytest
import torch

from bsvi.nets import MLPDecoder, PixelCNN
from bsvi.parameters import find_trainable, freeze
from bsvi.system import runtime
from bsvi.system.runtime import CompiledByShape, Runtime, compile_decoder, is_heavy, start


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_runtime_does_not_import_torch():
    assert run("import sys, bsvi.system.runtime; print('torch' in sys.modules)") == "False"


def test_threads_are_set_once_and_device_is_chosen():
    code = "from bsvi.system.runtime import *; s = start(Runtime(threads=1, device='auto')); print(s.threads, s.device.type)"
    threads, device = run(code).split()
    assert threads == "1" and device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_wrong_choices_are_one_line():
    with pytest.raises(ValueError, match="threads must be 0"):
        start(Runtime(threads=-1))
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda, got 'tpu'"):
        runtime.choose_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_missing_gpu_is_one_line():
    with pytest.raises(ValueError, match="sees no GPU; use --device auto or cpu"):
        start(Runtime(device="cuda"))


def test_without_a_compiler_one_line_says_so_and_nothing_is_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    started = start(Runtime(compile="on"))
    assert started.compile == "off"
    assert started.notes == (
        "running without compilation: no C++ compiler (no-such-compiler) was found; install one, or name it in CXX",
    )
    assert not compile_decoder(PixelCNN(2, (8, 8)), started.compile)


def test_auto_compiles_large_decoders_and_leaves_small_ones_alone():
    assert not compile_decoder(PixelCNN(2, (8, 8), channels=6, kernels=(3, 3)), "auto")
    assert compile_decoder(PixelCNN(2, (8, 8), channels=8, kernels=(3, 3)), "auto")  # in C++, within seconds
    assert not compile_decoder(MLPDecoder(2, (8, 8)), "auto")
    assert compile_decoder(PixelCNN(), "auto")
    assert compile_decoder(PixelCNN(2, channels=8, kernels=(5, 3, 3)), "auto")
    assert not compile_decoder(PixelCNN(), "off")


FAULTS = """
import torch, bsvi.system.runtime as r
if {keep}: assert r.keep_freed_memory()
def step(): return (torch.ones(12_000_000) + 1).sum().item()  # 48 MB: over the most that glibc keeps of itself
def faults():
    before = r.count_page_faults()
    step()
    return r.count_page_faults() - before
print(min(faults() for _ in range(10)))  # the least: the first few steps may still grow the heap
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc")
def test_kept_memory_is_not_faulted_in_again():
    assert int(run(FAULTS.format(keep=False))) > 1000
    assert int(run(FAULTS.format(keep=True))) < 100


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr(runtime.ctypes, "CDLL", lambda name: object())
    assert runtime.keep_freed_memory() is False


def test_frozen_parameters_get_no_gradient_and_come_back_as_they_were():
    decoder = PixelCNN(2, (8, 8), channels=4, kernels=(3,))
    decoder.head.bias.requires_grad_(False)
    z = torch.randn(3, 2, requires_grad=True)
    with freeze(find_trainable(decoder)):
        value = decoder(torch.zeros(3, 1, 8, 8), z)
    value.sum().backward()
    assert z.grad is not None and all(p.grad is None for p in decoder.parameters())
    assert not decoder.head.bias.requires_grad
    assert all(p.requires_grad for name, p in decoder.named_parameters() if name != "head.bias")


def counted(monkeypatch):
    calls = []

    def compiler(function, **options):
        assert options == {"fullgraph": True, "dynamic": False, "backend": "inductor"}
        return lambda *tensors: calls.append(tensors[0].shape) or function(*tensors)

    monkeypatch.setattr(torch, "compile", compiler)
    return calls


def test_only_the_first_few_shapes_are_compiled(monkeypatch):
    calls = counted(monkeypatch)
    module = torch.nn.Linear(1, 1)
    doubled = CompiledByShape(lambda x: 2 * x, module, print)
    for size in range(1, 12):
        assert torch.equal(doubled(torch.ones(size)), 2 * torch.ones(size))
    assert len(calls) == CompiledByShape.limit
    doubled(torch.ones(1))
    assert len(calls) == CompiledByShape.limit + 1


def test_a_failing_compiler_falls_back_to_the_eager_path_with_one_line(monkeypatch):
    def broken(function, **options):
        def fail(*tensors):
            raise OSError("ld: cannot find -lgomp")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    said = []
    doubled = CompiledByShape(lambda x: 2 * x, torch.nn.Linear(1, 1), said.append)
    assert [doubled(torch.ones(1)).item(), doubled(torch.ones(1)).item()] == [2.0, 2.0]
    assert said == ["running without compilation: it failed with OSError"]


COMPILED = """
import torch
from bsvi.nets import PixelCNN
from bsvi.parameters import freeze
from bsvi.system.runtime import CompiledByShape, compile_decoder

CompiledByShape.backend = "{backend}"
torch.set_num_threads(1)
torch.manual_seed(0)
decoder = PixelCNN(2, (6, 6), channels={channels}, kernels={kernels})
x, z = (torch.rand(3, 1, 6, 6) < 0.5).float(), torch.randn(3, 2, requires_grad=True)
wanted = [z, *decoder.parameters()]
eager = decoder(x, z)
eager_grads = torch.autograd.grad(eager.sum(), wanted)
said = []
assert compile_decoder(decoder, "on", said.append)
value = decoder(x, z)
total = value.sum()
(first,) = torch.autograd.grad(total, [z], retain_graph=True)  # bsvi keeps its graphs: lambda's gradient, then theta's
assert torch.allclose(first, eager_grads[0], atol=1e-5)
grads = torch.autograd.grad(total, wanted)
assert said == [] and len(decoder._compiled.kinds) == 1
assert torch.allclose(value, eager, atol=1e-5)
assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(grads, eager_grads, strict=True))
with freeze(list(decoder.parameters())):
    (grad,) = torch.autograd.grad(decoder(x, z).sum(), [z])
assert said == [] and len(decoder._compiled.kinds) == 2
assert torch.allclose(grad, eager_grads[0], atol=1e-5)
print("equal")
"""
# in a process of its own: the shape checks that pytest puts around every function are not to be compiled
needs_compiler = pytest.mark.skipif(runtime.find_compiler_problem() is not None, reason="no C++ compiler")


def test_the_whole_decoder_and_its_gradients_are_captured_as_full_graphs():
    # everything but the C++ compiler, which takes a minute: the slow tests have that too
    assert run(COMPILED.format(backend="aot_eager", channels=16, kernels=(9, 5, 3))) == "equal"


@needs_compiler
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("channels", "kernels"), [(4, (3,)), pytest.param(16, (9, 7, 5, 3), marks=pytest.mark.slow)])
def test_a_compiled_decoder_has_the_eager_values_and_gradients(channels, kernels):
    assert run(COMPILED.format(backend="inductor", channels=channels, kernels=kernels)) == "equal"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_cores_that_the_process_may_use_are_counted():
    one = min(os.sched_getaffinity(0))
    script = (
        f"import os; os.sched_setaffinity(0, {{{one}}}); from bsvi.system import runtime; print(runtime.count_cores())"
    )
    assert run(script) == "1" and runtime.count_cores() == len(os.sched_getaffinity(0))


def test_only_a_pixelcnn_of_some_size_is_heavy():
    assert is_heavy(PixelCNN())
    assert not is_heavy(MLPDecoder(2, (8, 8)))
