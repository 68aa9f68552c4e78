"""Ranges, states, frozen statistics, NaN, checkpointing, calls outside the root."""

from __future__ import annotations

import copy

import pytest
import torch
from plain import Plain, X, fused, ranges, with_qconfig
from torch import Tensor, nn

import horizon_plugin as horizon
from horizon_plugin.quantization import (
    FakeQuantState,
    QuantStub,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    freeze_bn_stats,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
    set_fake_quantize,
    unfreeze_bn_stats,
)


def test_ranges_move_in_training_only():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    after_one = ranges(model)
    model(3 * X)
    assert ranges(model) != after_one
    after_two = ranges(model)
    model.eval()(10 * X)
    assert ranges(model) == after_two


def test_the_first_batch_sets_the_range_and_later_ones_move_it_by_one_hundredth():
    model = prepare_qat(fused(), inplace=True)
    quantizer = model.quant.activation_post_process
    model(X)
    first = quantizer.max_val.item()
    assert first == X.max().item()
    model(3 * X)
    expected = first + 0.01 * (3 * X.max().item() - first)  # r + c (x - r)
    assert quantizer.max_val.item() == pytest.approx(expected, rel=1e-6)
    peak = max(-quantizer.min_val.item(), quantizer.max_val.item())
    assert quantizer.scale.item() == pytest.approx(peak / 127.5, rel=1e-6)


def test_states_switch_observers_and_fake_quant():
    model = prepare_qat(fused(), inplace=True)
    float_output = model.apply(disable_fake_quant).apply(disable_observer).eval()(X)
    assert ranges(model)["quant.activation_post_process.observed"] == 0
    reference = fused()
    reference.load_state_dict(
        {k: v for k, v in model.state_dict().items() if "post_process" not in k}
    )
    torch.testing.assert_close(float_output, reference.eval()(X), rtol=1e-5, atol=1e-6)

    set_fake_quantize(model, FakeQuantState.CALIBRATION)
    output = model(X)
    assert ranges(model)["quant.activation_post_process.observed"] == 1
    assert torch.equal(output, float_output)

    set_fake_quantize(model, FakeQuantState.VALIDATION)
    frozen = ranges(model)
    model.train()(X)
    assert ranges(model) == frozen
    assert not torch.equal(model.eval()(X), float_output)

    set_fake_quantize(model, FakeQuantState.QAT)
    model.train()(X)
    assert ranges(model) != frozen
    model.apply(disable_observer)
    frozen = ranges(model)
    model(X)
    assert ranges(model) == frozen
    model.apply(enable_observer).apply(enable_fake_quant)
    with pytest.raises(TypeError, match="'state' must be a FakeQuantState, got 'qat'"):
        set_fake_quantize(model, "qat")


def test_a_frozen_batch_norm_stays_frozen_through_train_calls():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    freeze_bn_stats(model)
    mean = model.conv.bn.running_mean.clone()
    model.train()(X + 1)
    assert torch.equal(model.conv.bn.running_mean, mean)
    unfreeze_bn_stats(model)
    model.train()(X + 1)
    assert not torch.equal(model.conv.bn.running_mean, mean)


def test_a_submodule_called_directly_after_training_says_carry():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    with pytest.raises(RuntimeError, match=r"conv: 'input' was quantized at an earlier call"):
        model.conv(X)
    with horizon.quantization.carry():
        model.conv(model.quant(X))


def test_activation_checkpointing_gives_the_same_gradients_and_ranges():
    class Checkpointed(Plain):
        checkpoint = False

        def forward(self, x: Tensor) -> Tensor:
            x = self.quant(x)
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(
                    self.conv, x, use_reentrant=False, context_fn=horizon.quantization.carry
                )
            else:
                x = self.conv(x)
            return self.dequant(self.fc(self.pool(x).flatten(1)))

    net = Checkpointed().train()
    fuse_modules(net, ["conv", "bn", "relu"], inplace=True)
    model = prepare_qat(with_qconfig(net), inplace=True)
    other = copy.deepcopy(model)
    other.checkpoint = True
    for m in (model, other):
        m(X).square().sum().backward()
    assert ranges(model) == ranges(other)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


def test_a_batch_with_nan_raises_with_the_layer_and_leaves_the_ranges():
    model = prepare_qat(fused(), inplace=True)
    model(X)
    before = ranges(model)
    bad = X.clone()
    bad[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"quant: observe: 'x' must be finite, got nan"):
        model(bad)
    assert ranges(model) == before


def test_nan_policy_skip_warns_and_leaves_the_ranges():
    net = fused()
    net.qconfig = get_default_qat_qconfig(activation_qkwargs={"nan_policy": "skip"})
    net.quant.qconfig = net.qconfig
    stub = nn.Sequential(QuantStub(), nn.Identity())
    stub.qconfig = net.qconfig
    model = prepare_qat(stub, inplace=True).train()
    model(X)
    before = ranges(model)
    bad = X.clone()
    bad[0, 0, 0, 0] = float("inf")
    with pytest.warns(UserWarning, match="0: a batch with nan or inf was skipped"):
        model(bad)
    model(bad)  # said once
    assert ranges(model) == before
