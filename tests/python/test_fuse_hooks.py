"""Hooks of a group's ends fire once on the fused module, in order; settings stay."""

from __future__ import annotations

import copy

import pytest
import torch
from fuse_models import BY_NAME, Chain, make_base, make_input, names_of, snapshot
from torch import Tensor, nn

from horizon_plugin.nn import intrinsic
from horizon_plugin.quantization import (
    DeQuantStub,
    FusionError,
    QuantStub,
    convert,
    fuse_known_modules,
    fuse_modules,
    get_default_qat_qconfig,
    prepare_qat,
)

PATTERNS = {
    name: BY_NAME[name]
    for name in (
        "ConvBNReLU2d",
        "ConvBNAddReLU62d",
        "ConvTransposeBNReLU62d",
        "ConvTransposeBNAddReLU2d",
        "LinearBNReLU",
        "LinearBNAddReLU6",
    )
}
MODES = {
    "live": (True, "auto"),
    "folded": (False, "auto"),
    "folded in train": (True, "fuse_bn"),
    "kept": (False, "with_bn"),
    "reverse": (True, "with_bn_reverse_fold"),
}


def chain_of(name: str, training: bool = True) -> tuple[Chain, Tensor, Tensor]:
    pattern = PATTERNS[name]
    chain = Chain(make_base(pattern), pattern).train(training)
    x = make_input(pattern)
    with torch.no_grad():
        return chain, x, torch.randn_like(copy.deepcopy(chain).base(x))


def first_and_last(chain: Chain, name: str) -> tuple[nn.Module, nn.Module]:
    names = names_of(PATTERNS[name])
    return getattr(chain, names[0]), getattr(chain, names[-1])


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_end_hook_fires_once_in_its_order_and_its_handle_removes_it(name, mode):
    training, qat_mode = MODES[mode]
    chain, x, skip = chain_of(name, training)
    calls: list[str] = []
    first, last = first_and_last(chain, name)

    def pre(label):
        return lambda module, args: calls.append(label)

    def post(label):
        return lambda module, args, output: calls.append(label)

    handles = [
        first.register_forward_pre_hook(pre("pre 2")),
        first.register_forward_pre_hook(lambda m, a, k: calls.append("pre 3"), with_kwargs=True),
        first.register_forward_pre_hook(pre("pre 1"), prepend=True),
        last.register_forward_hook(post("post 2")),
        last.register_forward_hook(lambda m, a, k, y: calls.append("post 3"), with_kwargs=True),
        last.register_forward_hook(post("post 4"), always_call=True),
        last.register_forward_hook(post("post 1"), prepend=True),
    ]
    chain(x, skip)
    expected, calls[:] = list(calls), []
    assert expected == ["pre 1", "pre 2", "pre 3", "post 1", "post 2", "post 3", "post 4"]
    fuse_modules(chain, names_of(PATTERNS[name]), inplace=True, mode=qat_mode)
    chain(x, skip)
    assert calls == expected
    for handle in handles:
        handle.remove()
    chain(x, skip)
    assert calls == expected


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
def test_hooks_that_change_input_and_output_do_so_in_the_fused_module(name, mode):
    training, qat_mode = MODES[mode]
    chain, x, skip = chain_of(name, training)
    first, last = first_and_last(chain, name)
    first.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    last.register_forward_hook(lambda module, args, output: output - 3)
    plain = copy.deepcopy(chain)
    if "folded" in mode:
        plain.eval()
    fused = fuse_modules(chain, names_of(PATTERNS[name]), mode=qat_mode)
    torch.testing.assert_close(fused(x, skip), plain(x, skip), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PATTERNS)
def test_an_always_called_hook_of_the_last_member_is_called_though_the_call_fails(name):
    chain, _, _ = chain_of(name)
    calls = []
    _, last = first_and_last(chain, name)
    last.register_forward_hook(lambda *args: calls.append("always"), always_call=True)
    last.register_forward_hook(lambda *args: calls.append("else"))
    fused = fuse_modules(chain, names_of(PATTERNS[name]))
    target = fused.act if PATTERNS[name].variant.has_add else fused.base
    with pytest.raises((RuntimeError, TypeError)):
        target(None, None, None)
    assert calls == ["always"]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_copy_leaves_the_hooks_of_the_original_and_takes_its_own(name, training):
    chain, x, skip = chain_of(name, training)
    calls: list[int] = []
    first, last = first_and_last(chain, name)
    handle = first.register_forward_pre_hook(lambda module, args: calls.append(id(module)))
    last.register_forward_hook(lambda module, args, output: calls.append(id(module)))
    fused = fuse_modules(chain, names_of(PATTERNS[name]))
    chain(x, skip)
    assert calls == [id(first), id(last)]
    handle.remove()
    calls.clear()
    fused(x, skip)
    assert len(calls) == 2 and id(first) not in calls


class Stubbed(nn.Module):
    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.quant, self.quant_skip, self.dequant = QuantStub(), QuantStub(), DeQuantStub()
        self.chain = chain

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.dequant(self.chain(self.quant(x), self.quant_skip(skip)))


@pytest.mark.parametrize("name", PATTERNS)
def test_end_hooks_survive_prepare_and_convert_and_see_the_groups_input_and_output(name):
    chain, x, skip = chain_of(name)
    seen: list[tuple[str, torch.Size]] = []
    first, last = first_and_last(chain, name)
    first.register_forward_pre_hook(lambda module, args: seen.append(("pre", args[0].shape)))
    last.register_forward_hook(lambda module, args, y: seen.append(("post", y.shape)))
    expected = [("pre", x.shape), ("post", skip.shape)]
    model = Stubbed(chain)
    fuse_modules(chain, names_of(PATTERNS[name]), inplace=True)
    model.qconfig = get_default_qat_qconfig()
    model = prepare_qat(model, inplace=True)
    for to_stage in (nn.Module.train, nn.Module.eval, convert):
        stage = to_stage(model)
        seen.clear()
        stage(x, skip)
        assert seen == expected


STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("kind", STATE_HOOKS)
@pytest.mark.parametrize("owner", ["base", "bn", "act"])
def test_state_dict_hooks_are_refused_and_dropped_if_allowed(name, owner, kind):
    chain, _, _ = chain_of(name)
    register = getattr(getattr(chain, owner), f"register_{kind}_hook")
    register(lambda *args: pytest.fail("called"))
    names = names_of(PATTERNS[name])
    text = rf"'{owner}' \(backward or state-dict hook\)"
    with pytest.raises(FusionError, match=text):
        fuse_modules(chain, names, inplace=True)
    with pytest.warns(UserWarning, match=text + "; they are dropped"):
        fuse_modules(chain, names, inplace=True, allow_inner_hooks=True)
    chain.load_state_dict(chain.state_dict())


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("position", ["first", "inner", "last"])
def test_backward_hooks_are_refused_wherever_they_are_and_dropped_if_allowed(name, position):
    chain, x, skip = chain_of(name)
    names = names_of(PATTERNS[name])
    owner = {"first": names[0], "inner": names[1], "last": names[-1]}[position]
    getattr(chain, owner).register_full_backward_hook(lambda *args: pytest.fail("called"))
    text = rf"'{owner}' \(backward or state-dict hook\)"
    with pytest.raises(FusionError, match=text):
        fuse_modules(chain, names)
    with pytest.warns(UserWarning, match=text + "; they are dropped"):
        fused = fuse_modules(chain, names, allow_inner_hooks=True)
    fused(x, skip).sum().backward()


@pytest.mark.parametrize("name", PATTERNS)
def test_inner_hooks_are_refused_through_a_fuser_of_the_users_as_well(name):
    chain, _, _ = chain_of(name)
    chain.bn.register_forward_pre_hook(lambda *args: None)

    def fuser(modules, mapping):
        return fuse_known_modules(modules, mapping)

    with pytest.raises(FusionError, match=r"'1' \(forward pre-hook\)"):
        fuse_modules(chain, names_of(PATTERNS[name]), fuser_func=fuser)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
def test_settings_that_agree_go_to_the_fused_module(name, mode):
    training, qat_mode = MODES[mode]
    names = names_of(PATTERNS[name])
    slot = "add" if PATTERNS[name].variant.has_add else "base"
    for setting in (get_default_qat_qconfig(), None):
        for owners in (names, names[:1], names[1:2], names[-1:]):
            chain, _, _ = chain_of(name, training)
            for owner in owners:
                getattr(chain, owner).qconfig = setting
            if setting is None and owners is not names:
                with pytest.raises(FusionError, match="must agree on their qconfig"):
                    fuse_modules(chain, names, mode=qat_mode)
                continue
            fused = fuse_modules(chain, names, mode=qat_mode)
            assert getattr(fused, slot).qconfig == setting
            assert isinstance(getattr(fused, slot), tuple(intrinsic.FAMILY.values()))
            others = set(names) - {slot}
            assert not any("qconfig" in getattr(fused, n).__dict__ for n in others)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("mode", MODES)
def test_planning_reads_and_applying_writes_only_the_slots(name, mode):
    training, qat_mode = MODES[mode]
    chain, _, _ = chain_of(name, training)
    members = {n: getattr(chain, n) for n in names_of(PATTERNS[name])}
    before = {n: snapshot(m) for n, m in members.items()}
    root = {k: v for k, v in chain.__dict__.items() if k != "_modules"}
    fuse_modules(chain, list(members), inplace=True, mode=qat_mode)
    assert {k: v for k, v in chain.__dict__.items() if k != "_modules"} == root
    assert list(chain._modules) == list(members)
    for n, module in members.items():
        after = snapshot(module)
        assert len(after) == len(before[n])
        changed = [a[1] for a, b in zip(after, before[n], strict=True) if a[2] is not b[2]]
        assert changed == []
