"""What `fuse_modules` does to a model: slots, names, aliases, hooks, settings, identity."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from fuse_models import PATTERNS, names_of, pair, pattern_id, randomize, slot_of
from torch import nn

from horizon_plugin.nn import intrinsic
from horizon_plugin.qat_mode import QATMode, get_qat_mode, set_qat_mode
from horizon_plugin.quantization import (
    FloatFunctional,
    FusionError,
    fuse_modules,
)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = randomize(nn.BatchNorm2d(4))
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


NAMES = ["conv", "bn", "act"]


@pytest.fixture(autouse=True)
def _auto_mode():
    yield
    set_qat_mode(QATMode.Auto)


# --- names ----------------------------------------------------------------------------------------


def conv_bn_relu(channels: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(channels, 4, 1), randomize(nn.BatchNorm2d(4)), nn.ReLU()]


def test_subscripts_work_as_strings_and_ints():
    x = torch.randn(2, 3, 4, 4)
    for names in (["0", "1", "2"], [0, 1, 2], ("0", 1, "2")):
        plain = nn.Sequential(*conv_bn_relu())
        fused = fuse_modules(plain, names)
        assert type(fused[0]) is intrinsic.ConvBNReLU2d
        assert torch.equal(fused(x), plain(x))


def test_module_lists_nested_paths_and_crossing_lists_work():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.ModuleList([nn.Identity(), nn.Sequential(*conv_bn_relu()[:2])])
            self.heads = nn.ModuleDict({"a": nn.Sequential(*conv_bn_relu(4))})
            self.skip_add, self.relu = FloatFunctional(), nn.ReLU()

        def forward(self, x):
            y = self.relu(self.skip_add.add(x[:, :1], self.conv[1](x)))
            return self.heads["a"](y)

    plain = Net()
    lists = [
        ["conv.1.0", "conv.1.1", "skip_add", "relu"],
        ["heads.a.0", "heads.a.1", "heads.a.2"],
    ]
    fused = fuse_modules(plain, lists)
    assert type(fused.skip_add) is intrinsic.ConvBNAddReLU2d
    assert type(fused.heads["a"][0]) is intrinsic.ConvBNReLU2d
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(fused(x), plain(x))


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
def test_the_fused_module_takes_the_first_slot_or_the_adds_and_keeps_the_order(pattern):
    chain = pair(pattern)[0]
    order = [name for name, _ in chain.named_children()]
    fused = fuse_modules(chain, names_of(pattern), inplace=True)
    assert fused is chain
    assert [name for name, _ in fused.named_children()] == order
    kinds = [type(m).__name__ for m in fused.children() if type(m).__module__.endswith("intrinsic")]
    assert kinds == [pattern.class_name]
    assert type(getattr(fused, slot_of(pattern))).__name__ == pattern.class_name


# --- identity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
def test_live_groups_keep_parameter_and_buffer_objects(pattern):
    chain = pair(pattern)[0]
    before = {id(t) for t in [*chain.parameters(), *chain.buffers()]}
    bn = getattr(chain, "bn", None)
    fuse_modules(chain, names_of(pattern), inplace=True)
    assert {id(t) for t in [*chain.parameters(), *chain.buffers()]} == before
    group = getattr(chain, slot_of(pattern))
    assert group.bn is bn


def test_an_optimizer_built_before_still_trains_the_model():
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fuse_modules(model, NAMES, inplace=True)
    before = {name: p.clone() for name, p in model.named_parameters()}
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    assert all(
        not torch.equal(p, before[n]) for n, p in model.named_parameters() if n != "conv.bias"
    )


@pytest.mark.parametrize("training", [True, False])
def test_inplace_false_leaves_the_original_untouched(training):
    model = Encoder().train(training)
    hook = model.conv.register_forward_pre_hook(lambda m, i: None)
    x = torch.randn(2, 3, 5, 5)
    modules = list(model.modules())
    values = {k: v.clone() for k, v in model.state_dict().items()}
    fused = fuse_modules(model, NAMES)
    assert fused is not model and type(fused.conv) is not nn.Conv2d
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert [m.training for m in modules] == [training] * len(modules)
    assert len(model.conv._forward_pre_hooks) == 1
    fused(x)
    assert all(torch.equal(v, values[k]) for k, v in model.state_dict().items())
    hook.remove()


def test_state_keys_are_weight_bias_and_one_set_of_the_batch_norms():
    fused = fuse_modules(Encoder(), NAMES)
    tails = ["weight", "bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    keys = [f"conv.{tail}" for tail in [*tails, "bn.num_batches_tracked"]]
    assert list(fused.state_dict()) == keys
    fresh = fuse_modules(Encoder(), NAMES)
    fresh.load_state_dict(fused.state_dict(), strict=True)
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(fresh.eval()(x), fused.eval()(x))


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["live", "folded"])
def test_every_class_copies_and_pickles(pattern, training):
    chain, _, x, skip = pair(pattern)
    fused = fuse_modules(chain.train(training), names_of(pattern)).eval()
    expected = fused(x, skip)
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert torch.equal(other(x, skip), expected)
        assert type(getattr(other, slot_of(pattern))) is type(getattr(fused, slot_of(pattern)))


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["live", "folded"])
def test_every_class_traces_scripts_and_exports(pattern, training):
    class Straight(nn.Module):
        def __init__(self, chain):
            super().__init__()
            self.has_bn, self.has_add = chain.has_bn, chain.has_add
            for name, module in chain.named_children():
                setattr(self, name, module)
            for name in ("bn", "act", "add"):
                if not hasattr(self, name):
                    setattr(self, name, FloatFunctional() if name == "add" else nn.Identity())

        def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
            z = self.base(x)
            if self.has_bn:
                z = self.bn(z)
            if self.has_add:
                z = self.add.add(z, skip)
            return self.act(z)

    chain, _, x, skip = pair(pattern)
    fused = fuse_modules(Straight(chain).train(training), names_of(pattern)).eval()
    expected = fused(x, skip)
    for model in (
        torch.jit.trace(fused, (x, skip)),
        torch.jit.script(fused),
        torch.fx.symbolic_trace(fused),
        torch.export.export(fused, (x, skip)).module(),
    ):
        assert torch.equal(model(x, skip), expected)


# --- aliases ----------------------------------------------------------------------------------


def test_one_module_under_two_names_is_still_one_and_the_fused_one():
    model = nn.ModuleDict({"a": Encoder(), "b": nn.Sequential()})
    model["b"].append(model["a"].conv)
    model["b"].append(model["a"].bn)
    model["b"].append(model["a"].act)
    fuse_modules(model, ["a.conv", "b.1", "a.act"], inplace=True)
    assert type(model["a"].conv) is intrinsic.ConvBNReLU2d
    assert model["b"][0] is model["a"].conv
    assert model["b"][1] is model["a"].bn
    assert type(model["a"].act) is nn.Identity
    assert type(model["b"][2]) is nn.Identity


def test_a_shared_block_is_fused_once_for_both_holders():
    block = Encoder()
    model = nn.ModuleList([block, block])
    fused = fuse_modules(model, ["0.conv", "0.bn", "0.act"])
    assert fused[0] is fused[1]
    assert type(fused[1].conv) is intrinsic.ConvBNReLU2d
    with pytest.warns(UserWarning, match="fused already"):
        fuse_modules(fused, ["1.conv", "1.bn", "1.act"])


def test_a_shared_relu_serves_two_groups():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(1, 1, 1), relu, nn.Conv2d(1, 1, 1), relu)
    x = torch.randn(2, 1, 4, 4)
    fused = fuse_modules(model, [[0, 1], [2, 3]])
    assert [type(m).__name__ for m in fused] == ["ConvReLU2d", "Identity"] * 2
    assert torch.equal(fused(x), model(x))


# --- again ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_the_same_list_again_is_a_warning_and_no_change(pattern, training):
    fused = fuse_modules(pair(pattern)[0].train(training), names_of(pattern))
    fused = pickle.loads(pickle.dumps(copy.deepcopy(fused)))
    before = list(fused.named_modules())
    with pytest.warns(UserWarning, match="is fused already: this list changes nothing"):
        assert fuse_modules(fused, names_of(pattern), inplace=True) is fused
    assert list(fused.named_modules()) == before


def test_a_consumed_name_is_refused_with_the_list_that_took_it():
    model = fuse_modules(Encoder(), ["conv", "bn"])
    for names in (["conv", "act"], ["conv", "bn", "act"], ["bn", "conv"], ["act", "bn"]):
        with pytest.raises(
            FusionError, match=r"consumed by an earlier call, as part of \['conv', 'b"
        ):
            fuse_modules(model, names)


def test_the_same_list_twice_in_a_call_is_fused_once():
    with pytest.warns(UserWarning, match="fused already"):
        fused = fuse_modules(Encoder(), [NAMES, NAMES])
    assert type(fused.conv) is intrinsic.ConvBNReLU2d


def test_a_warning_turned_into_an_error_changes_nothing():
    model = Encoder()
    with pytest.raises(UserWarning, match="fused already"):
        fuse_modules(model, [NAMES, NAMES], inplace=True)
    assert type(model.conv) is nn.Conv2d


# --- hooks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["live", "folded"])
def test_hooks_of_the_ends_move_and_fire_once_and_their_handles_still_remove_them(training):
    model = nn.ModuleList([Encoder()]).train(training)
    plain = copy.deepcopy(model)[0]
    calls = []
    first, last = model[0].conv, model[0].act
    handles = [
        first.register_forward_pre_hook(lambda m, i: calls.append(("pre", i[0].shape))),
        first.register_forward_pre_hook(
            lambda m, a, k: calls.append(("kwargs", a[0].shape)), with_kwargs=True
        ),
        last.register_forward_hook(lambda m, i, o: calls.append(("post", o.shape))),
        last.register_forward_hook(lambda m, i, o: o + 1),
    ]
    fused = fuse_modules(model, ["0.conv", "0.bn", "0.act"], inplace=True)[0]
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(fused(x), plain(x) + 1)
    shape = torch.Size([2, 4, 3, 3])
    assert calls == [("pre", x.shape), ("kwargs", x.shape), ("post", shape)]
    for handle in handles:
        handle.remove()
    fused(x)
    assert len(calls) == 3


def test_a_hook_on_a_live_batch_norm_at_the_end_fires_once():
    model, calls = Encoder(), []
    model.bn.register_forward_hook(lambda m, i, o: calls.append(o))
    fuse_modules(model, ["conv", "bn"], inplace=True)
    y = model.conv(torch.randn(2, 3, 5, 5))
    assert len(calls) == 1 and calls[0] is y


@pytest.mark.parametrize("method", ["add", "add_relu"])
def test_hooks_around_a_fused_add_fire_once_with_the_groups_input_and_output(method):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.add, self.act = nn.Conv2d(3, 3, 1), FloatFunctional(), nn.ReLU6()

        def forward(self, x):
            return self.act(getattr(self.add, method)(x, self.conv(x)))

    model, calls = Block(), []
    plain = copy.deepcopy(model)
    model.conv.register_forward_pre_hook(lambda m, i: calls.append(i[0]))
    model.act.register_forward_hook(lambda m, i, o: calls.append(o))
    fuse_modules(model, ["conv", "add", "act"], inplace=True)
    x = torch.randn(2, 3, 5, 5)
    y = model(x)
    assert torch.equal(y, plain(x))
    assert [id(t) for t in calls] == [id(x), id(y)]


INNER_HOOKS = {
    "conv.register_forward_hook": r"'conv' \(forward hook\)",
    "bn.register_forward_pre_hook": r"'bn' \(forward pre-hook\)",
    "bn.register_forward_hook": r"'bn' \(forward hook\)",
    "act.register_forward_pre_hook": r"'act' \(forward pre-hook\)",
    "conv.register_full_backward_hook": r"'conv' \(backward or state-dict hook\)",
    "act.register_full_backward_pre_hook": r"'act' \(backward or state-dict hook\)",
    "bn.register_load_state_dict_post_hook": r"'bn' \(backward or state-dict hook\)",
    "conv.register_state_dict_pre_hook": r"'conv' \(backward or state-dict hook\)",
}


@pytest.mark.parametrize("where", INNER_HOOKS)
def test_hooks_on_inner_members_are_refused_or_dropped_with_a_warning(where):
    model = Encoder()
    name, register = where.split(".")
    getattr(getattr(model, name), register)(lambda *args: pytest.fail("a dropped hook was called"))
    with pytest.raises(FusionError, match=INNER_HOOKS[where] + ".*allow_inner_hooks=True"):
        fuse_modules(model, NAMES, inplace=True)
    assert type(model.conv) is nn.Conv2d
    with pytest.warns(UserWarning, match=INNER_HOOKS[where] + "; they are dropped"):
        fuse_modules(model, NAMES, inplace=True, allow_inner_hooks=True)
    model(torch.randn(2, 3, 5, 5)).sum().backward()


# --- qconfig ----------------------------------------------------------------------------------


class Setting:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Setting) and self.value == other.value

    __hash__ = None


def test_the_fused_module_takes_the_qconfig_that_its_members_agree_on():
    model = Encoder()
    assert "qconfig" not in fuse_modules(model, NAMES).conv.__dict__
    model.conv.qconfig = Setting(1)
    assert fuse_modules(model, NAMES).conv.qconfig == Setting(1)
    model.bn.qconfig = model.act.qconfig = Setting(1)
    assert fuse_modules(model, NAMES).conv.qconfig == Setting(1)
    for name in NAMES:
        getattr(model, name).qconfig = None
    assert fuse_modules(model, NAMES).conv.qconfig is None


def test_a_member_other_than_the_first_can_bring_the_qconfig():
    model = Encoder()
    model.act.qconfig = Setting(2)
    assert fuse_modules(model, NAMES).conv.qconfig == Setting(2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"conv": None}, r"conv: None \(left float\), bn: inherited, act: inherited"),
        (
            {"conv": None, "act": Setting(1)},
            r"conv: None \(left float\), bn: inherited, act: setti",
        ),
        ({"conv": Setting(1), "bn": Setting(2)}, "conv: setting 1, bn: setting 2, act: inherited"),
    ],
)
def test_members_that_disagree_on_their_qconfig_are_listed(settings, text):
    model = Encoder()
    for name, value in settings.items():
        getattr(model, name).qconfig = value
    with pytest.raises(FusionError, match="must agree on their qconfig, got " + text):
        fuse_modules(model, NAMES)


def test_a_member_left_float_agrees_with_a_parent_left_float():
    model = nn.ModuleDict({"enc": Encoder()})
    model["enc"].qconfig = None
    model["enc"].conv.qconfig = None
    assert fuse_modules(model, [f"enc.{n}" for n in NAMES])["enc"].conv.qconfig is None


def test_a_model_with_a_qconfig_already_set_is_copied_and_fused():
    model = Encoder()
    model.qconfig = Setting(3)
    fused = fuse_modules(model, NAMES, inplace=False)
    assert fused.qconfig == Setting(3) and type(model.conv) is nn.Conv2d


# --- modes ------------------------------------------------------------------------------------


def test_the_global_mode_is_set_read_and_overridden():
    assert get_qat_mode() is QATMode.Auto
    assert [str(m) for m in QATMode] == ["auto", "fuse_bn", "with_bn", "with_bn_reverse_fold"]
    set_qat_mode(QATMode.FuseBN)
    assert get_qat_mode() == "fuse_bn"
    assert type(fuse_modules(Encoder(), NAMES).conv) is intrinsic.ConvReLU2d
    live = fuse_modules(Encoder().eval(), NAMES, mode=QATMode.WithBN)
    assert type(live.conv) is intrinsic.ConvBNReLU2d
    assert get_qat_mode() is QATMode.FuseBN
    set_qat_mode("with_bn")
    assert type(fuse_modules(Encoder().eval(), NAMES).conv) is intrinsic.ConvBNReLU2d
    with pytest.raises(ValueError, match=r"set_qat_mode: 'mode' must be one of 'auto'.*got 'bn'"):
        set_qat_mode("bn")
    assert get_qat_mode() is QATMode.WithBN


def test_fused_classes_check_their_batch_norm():
    with pytest.raises(ValueError, match="ConvBN2d: 'bn' must be a batch norm, got None"):
        intrinsic.ConvBN2d(nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match="ConvReLU2d: 'bn' must be None, got BatchNorm2d"):
        intrinsic.ConvReLU2d(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))


# --- size -----------------------------------------------------------------------------------


def test_a_model_of_10_000_modules_is_fused():
    layers = [m for _ in range(3333) for m in (nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU())]
    model = nn.Sequential(*layers)
    lists = [[i, i + 1, i + 2] for i in range(0, len(layers), 3)]
    fuse_modules(model, lists, inplace=True)
    assert {type(m) for m in model} == {intrinsic.ConvBNReLU2d, nn.Identity}
