"""High-precision outputs: a model may end in any layer, in any dtype, at every stage."""

from __future__ import annotations

import pytest
import torch
from stages import assert_all_equal, later_stages, trace, train_steps
from test_exact_scripts import LAYERS, X
from test_exact_stages import PATTERNS, PatternNet, fused_pattern, pattern_input
from torch import nn

from horizon_plugin.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
    prepare_qat,
    report,
)

# An island is float, and a max pool keeps a grid.
ENDS = [name for name in LAYERS if not name.endswith(("island", "max_pool"))]
FUNCTIONALS = [name for name in ENDS if hasattr(LAYERS[name](), "functional")]


def ending_in(name: str, dtype: torch.dtype, backend: str = "") -> nn.Module:
    """A prepared model of that dtype, trained and in eval mode, whose last layer has no grid."""
    layer = LAYERS[name]()
    net = nn.Sequential(QuantStub(), nn.Conv2d(3, 4, 1), layer, DeQuantStub()).train().to(dtype)
    net.qconfig = get_default_qat_qconfig(backend=backend)
    last = layer.functional if name in FUNCTIONALS else layer
    last.qconfig = get_default_qat_out_qconfig(backend=backend)
    model = prepare_qat(net, inplace=True)
    train_steps(model, X.to(dtype))
    return model.eval()


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize("name", [name for name in ENDS if name not in FUNCTIONALS])
def test_a_model_may_end_in_any_layer(name, backend):
    model = ending_in(name, torch.float32, backend)
    assert [row.note for row in report(convert(model)) if row.name == "2"] == ["output fp32"]
    assert_all_equal(later_stages(model, X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ENDS)
def test_what_leaves_in_float_has_the_models_dtype_and_the_prepared_bits(name, dtype):
    model = ending_in(name, dtype)
    x = X.to(dtype)
    with torch.no_grad():
        expected = model(x)
        int8 = convert(model)
        for stage in (int8, trace(model, x), trace(int8, x)):
            assert stage(x).dtype == expected.dtype == dtype
            assert torch.equal(stage(x), expected)


@pytest.mark.parametrize("backend", ["horizon", "x86"])
@pytest.mark.parametrize(("base", "bn", "add", "act"), PATTERNS)
def test_a_model_may_end_in_any_group(base, bn, add, act, backend):
    x = pattern_input(base)
    net = fused_pattern(PatternNet(base, bn, add, act))
    net.qconfig = get_default_qat_qconfig(backend=backend)
    getattr(net, "add" if add else "base").qconfig = get_default_qat_out_qconfig(backend=backend)
    model = prepare_qat(net, inplace=True)
    train_steps(model, x)
    assert_all_equal(later_stages(model.eval(), x))


def test_gradients_of_a_high_precision_batch_norm_reach_gamma_in_eval_mode():
    model = ending_in("batch_norm", torch.float32)
    model.zero_grad()
    model(X).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters())
