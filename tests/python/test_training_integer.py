"""Training on codes: z is the converted model's, and gradients are those of the float chain."""

from __future__ import annotations

import threading

import pytest
import torch
from fused_group import (
    CONV,
    DIFFERENTIABLE,
    LINEAR,
    NONE,
    RELU6,
    TRANSPOSED,
    Group,
    Quantizer,
    copies,
    error,
    on_grid,
)

from horizon_plugin import _C

SCALE, ZERO = 0.03, 128


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Small tensors: a second thread only waits, which is slow on a busy machine."""
    torch.set_num_threads(1)


Tensors = dict[str, "torch.Tensor | None"]


def on_codes(group: Group, seed: int = 0) -> Tensors:
    t = group.tensors(seed)
    t["input"] = on_grid(t["input"].float(), SCALE, ZERO).to(group.dtype)
    t["input_scale"] = torch.tensor(SCALE)
    t["input_zero_point"] = torch.tensor(ZERO, dtype=torch.int32)
    return t


def chain(group: Group, t: Tensors) -> torch.Tensor:
    """The group in double, on quantized weights; the gradient passes to the weight as it is."""
    double = {k: v if k == "num_batches_tracked" or v is None else v.double() for k, v in t.items()}
    weight = torch.ops.horizon.fake_quantize_weight(t["weight"], group.base, group.groups)
    return group.chain({**double, "weight": weight.double()})


# 16 channels and 64 positions are the fewest that are computed on codes; below is float.
GROUPS = [
    Group(channels=(16, 24), image=(8, 8), batch=1),
    Group(channels=(17, 7), image=(9, 11), channels_last=True, bias=True),
    Group(channels=(16, 3), image=(8, 9), add=True, act=RELU6, channels_last=True),
    Group(
        channels=(32, 16), kernel=(1, 1), padding=(0, 0), stride=(2, 2), image=(16, 15), act=NONE
    ),
    Group(
        channels=(16, 8), padding=(0, 1, 2, 1), dilation=(1, 2), channels_last=True, image=(9, 9)
    ),
    Group(channels=(16, 8), bn=False, bias=True, image=(9, 9), train=False),
    Group(channels=(18, 6), train=False, image=(9, 9), channels_last=True),
    Group(base=TRANSPOSED, channels=(16, 6), stride=(2, 2), output_padding=(1, 0), bias=True),
    Group(base=TRANSPOSED, channels=(20, 17), channels_last=True, image=(8, 8), add=True),
    Group(base=LINEAR, channels=(33, 5), batch=70, bias=True),
    Group(base=LINEAR, channels=(16, 1), batch=64, bn=False, act=NONE, bias=True),
    Group(channels=(15, 8), image=(9, 9)),
    Group(channels=(16, 8), image=(7, 9), batch=1),
    Group(channels=(32, 32), groups=32, image=(9, 9), channels_last=True),
]


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: f"{g}-{g.channels[0]}x{g.batch}")
def test_outputs_statistics_and_gradients_are_those_of_the_chain_in_double(group: Group) -> None:
    t = on_codes(group)
    ours, theirs = copies(t), copies(t)
    y, _, _ = group.fused(ours, quantize_weight=True)
    expected = chain(group, theirs)
    assert error(y.detach(), expected.detach()) < 2e-6
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(upstream)
    expected.backward(upstream.double())
    for name in DIFFERENTIABLE:
        if theirs[name] is None or (name == "bias" and group.bn and group.train):
            continue  # the bias has no effect there
        assert error(ours[name].grad, theirs[name].grad) < 1e-5, name


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("base", (CONV, TRANSPOSED, LINEAR))
@pytest.mark.parametrize("channels_last", (False, True))
def test_z_is_that_of_the_integer_op_to_the_bit(base: int, channels_last: bool, bias: bool) -> None:
    group = Group(
        base=base, channels=(48, 20), image=(8, 8), batch=64, bias=bias, bn=False, act=NONE,
        channels_last=channels_last,
    )  # fmt: skip
    t = on_codes(group)
    z, _, _ = group.fused(copies(t), quantize_weight=True)
    integer, _, _ = group.fused(copies(t, False), quantize_weight=True, integer=True)
    floats, _, _ = group.fused(
        copies({**t, "input_scale": None, "input_zero_point": None}), quantize_weight=True
    )
    if _C.cpu_capability() in ("avx512_vnni", "avx512_amx"):
        assert torch.equal(z, integer)
    assert error(z.detach(), floats.detach()) < 1e-6
    assert error(z.detach(), integer) < 1e-6


def wide(**changes: object) -> Group:
    """A group that is computed on codes."""
    return Group(channels=(16, 8), image=(9, 9)).but(**changes)


@pytest.mark.parametrize("value", (float("nan"), float("inf"), -float("inf")))
@pytest.mark.parametrize("name", ("weight", "bias"))
def test_parameters_that_are_not_finite_give_what_the_float_convolution_gives(
    name: str, value: float
) -> None:
    group = wide(bn=False, act=NONE, bias=True)
    t = on_codes(group)
    t[name].flatten()[0] = value
    y, _, _ = group.fused(copies(t), quantize_weight=True)
    without_grid = {**t, "input_scale": None, "input_zero_point": None}
    expected, _, _ = group.fused(copies(without_grid), quantize_weight=True)
    assert torch.equal(y.isfinite(), expected.isfinite())
    assert not y[:, 0].isfinite().any()  # 0 is the channel that the value belongs to
    assert y[:, 1:].isfinite().all()


def test_an_input_with_nan_is_refused_by_the_observer_and_changes_nothing() -> None:
    group = wide()
    t = on_codes(group)
    t["input"][1, 2, 3, 4] = float("nan")
    ours, quantizer = copies(t), Quantizer()
    before = copies(ours, False)
    with pytest.raises(ValueError, match="'output' must be finite, got nan"):
        group.fused(ours, quantizer, quantize_weight=True)
    assert torch.equal(ours["running_mean"], before["running_mean"])
    assert int(ours["num_batches_tracked"]) == int(before["num_batches_tracked"])


def test_scales_whose_product_leaves_float32_do_not_fail() -> None:
    group = wide(bn=False, act=NONE)
    t = on_codes(group)
    t["input"], t["input_scale"] = t["input"] / SCALE * 1e30, torch.tensor(1e30)
    t["weight"] = t["weight"] * 1e12
    y, _, _ = group.fused(copies(t), quantize_weight=True)
    assert y.isinf().any()


def test_a_weight_written_through_data_is_met_at_the_next_forward() -> None:
    group = wide(bn=False)
    t = copies(on_codes(group))
    group.fused(t, quantize_weight=True)
    t["weight"].data.mul_(-1.5).add_(0.01)
    y, _, _ = group.fused(t, quantize_weight=True)
    fresh = {**t, "weight": t["weight"].detach().clone()}
    assert torch.equal(y, group.fused(fresh, quantize_weight=True)[0])


def gradients(group: Group, seed: int, repeats: int) -> list[torch.Tensor]:
    """Of the last of several steps, in each of which scratch memory is used again."""
    t = copies(on_codes(group, seed))
    for _ in range(repeats):
        for name in DIFFERENTIABLE:
            if t[name] is not None:
                t[name].grad = None
        y, _, _ = group.fused(t, quantize_weight=True)
        y.square().sum().backward()
    return [t[name].grad for name in ("input", "weight", "bn_weight", "bn_bias")]


def test_two_threads_get_the_gradients_of_serial_runs() -> None:
    groups = [wide(channels_last=True), wide(channels=(32, 24), image=(12, 10))]
    expected = [gradients(group, seed, 20) for seed, group in enumerate(groups)]
    results: dict[int, list[torch.Tensor]] = {}

    def work(seed: int) -> None:
        results[seed] = gradients(groups[seed], seed, 20)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(2):
        for ours, theirs in zip(results[seed], expected[seed], strict=True):
            assert torch.equal(ours, theirs)


def test_gradients_do_not_lie_in_memory_that_the_next_layer_uses() -> None:
    group = wide(channels_last=True)
    t = copies(on_codes(group))
    y, _, _ = group.fused(t, quantize_weight=True)
    y.square().sum().backward()
    kept = {name: t[name].grad.clone() for name in ("input", "weight")}
    gradients(group.but(batch=5), 7, 2)
    for name, grad in kept.items():
        assert torch.equal(t[name].grad, grad), name


def test_a_skip_without_batch_norm_keeps_its_gradient() -> None:
    group = wide(bn=False, add=True)
    t = copies(on_codes(group))
    y, _, _ = group.fused(t, quantize_weight=True)
    y.sum().backward()
    kept = t["skip"].grad.clone()
    gradients(wide(batch=5), 7, 2)
    assert torch.equal(t["skip"].grad, kept)
    assert torch.equal(kept, (y > 0).float())  # where relu passes


@pytest.mark.parametrize("channels_last", (False, True))
def test_a_step_saves_codes_and_not_the_floats_that_they_stand_for(channels_last: bool) -> None:
    group = wide(channels_last=channels_last)
    t = copies(on_codes(group))
    saved: list[torch.Tensor] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.append(x) or x,
        lambda x: x,  # type: ignore[func-returns-value]
    )
    with hooks:
        y, _, _ = group.fused(t, Quantizer(), quantize_weight=True)
    sizes = [(x.dtype, x.numel()) for x in saved if x is not t["weight"]]
    outputs, inputs = 3 * 8 * 81, 3 * 16 * 81
    floats = sum(n for dtype, n in sizes if dtype == torch.float32)
    bytes_ = sum(n for dtype, n in sizes if dtype == torch.uint8)
    # z; scale, gamma, mean and 1/std per channel; the weight if it was packed as another object.
    assert floats <= outputs + 1 + 3 * 8 + t["weight"].numel()
    # Codes, and one bit an output: rows of 9 * 9 pixels fill 11 bytes in NCHW.
    assert inputs + outputs // 8 <= bytes_ <= inputs + 3 * 8 * 11 + 8
    y.sum().backward()


def test_a_forward_in_inference_mode_between_steps_changes_nothing() -> None:
    group = wide()
    expected = gradients(group, 3, 1)
    with torch.inference_mode():
        group.fused(copies(on_codes(group), False), quantize_weight=True)
    for ours, theirs in zip(gradients(group, 3, 1), expected, strict=True):
        assert torch.equal(ours, theirs)
