"""Every way to call a fused add, for every pattern that has one: as the plain chain, exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from fuse_models import ADD_PATTERNS, Chain, names_of, pattern_id, randomize, run
from torch import Tensor, nn

from horizon_plugin.quantization import fuse_modules, get_default_qat_qconfig, prepare_qat

Call = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]

# add, the convolution's operand z, its input x, the other operand
FORMS: dict[str, Call] = {
    "conv first": lambda add, z, x, skip: add(z, skip),
    "conv second": lambda add, z, x, skip: add(skip, z),
    "by keyword": lambda add, z, x, skip: add(y=z, x=skip),
    "z + z": lambda add, z, x, skip: add(z, z) + 0 * skip.sum(),
    "own input first": lambda add, z, x, skip: add(x, z) + 0 * skip.sum(),
    "own input second": lambda add, z, x, skip: add(z, x) + 0 * skip.sum(),
    "narrow skip": lambda add, z, x, skip: add(skip[:1], z),
    "one channel": lambda add, z, x, skip: add(z, skip[:, :1]),
    "wide skip": lambda add, z, x, skip: add(skip[None].expand(2, *skip.shape) * 1.5, z),
    "a number of no dimension": lambda add, z, x, skip: add(z, skip.sum()),
    "computed after": lambda add, z, x, skip: add((skip * 2 + x).tanh(), z),
}
METHODS = ("add", "add_relu")
MODES = {
    "live": (True, "auto"),
    "live in eval": (False, "with_bn"),
    "kept for a reverse fold": (True, "with_bn_reverse_fold"),
    "folded": (False, "auto"),
    "folded in train": (True, "fuse_bn"),
}
FULL = ("live", "folded")  # in which every form is tried


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)  # tensors this small gain nothing from a second


class Form(Chain):
    """A chain of equally many channels in and out, called in one of the forms."""

    form, method = "conv first", "add"

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        z = self.base(x)
        if self.has_bn:
            z = self.bn(z)
        y = FORMS[self.form](getattr(self.add, self.method), z, x, skip)
        return self.act(y) if self.has_act else y


def square_base(pattern) -> nn.Module:
    kind = pattern.kinds[0]
    return nn.Linear(6, 6) if kind == "Linear" else getattr(nn, kind)(6, 6, 3, padding=1)


def chain_of(pattern, form: str, method: str) -> tuple[Form, Tensor, Tensor]:
    chain = Form(square_base(pattern), pattern)
    chain.form, chain.method = form, method
    shape = (5, 6) if pattern.kinds[0] == "Linear" else (2, 6, 4, 5)
    return chain, 2 * torch.randn(shape), torch.randn(shape)


@pytest.mark.parametrize("pattern", ADD_PATTERNS, ids=pattern_id)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_every_form_of_every_add_equals_the_chain(pattern, method, mode):
    training, qat_mode = MODES[mode]
    folds = "folded" in mode and pattern.variant.has_bn
    forms = list(FORMS) if method == "add" and mode in FULL else list(FORMS)[:4]
    for form in forms:
        chain, x, skip = chain_of(pattern, form, method)
        # A fold takes the running statistics, in train mode as well.
        plain = copy.deepcopy(chain).train(training and not folds)
        fused = fuse_modules(chain.train(training), names_of(pattern), mode=qat_mode)
        got, expected = run(fused, x, skip), run(plain, x, skip)
        for name in ("output", "x.grad", "skip.grad") if folds else expected:
            if folds:
                scale = expected[name].abs().max().item()
                torch.testing.assert_close(got[name], expected[name], rtol=0, atol=1e-5 * scale)
            else:
                assert torch.equal(got[name], expected[name]), (form, name)
        assert got["skip.grad"].shape == skip.shape


@pytest.mark.parametrize("pattern", [p for p in ADD_PATTERNS if p.variant.has_bn], ids=pattern_id)
def test_a_frozen_batch_norm_before_an_add_stays_frozen_in_every_form(pattern):
    for form in FORMS:
        chain, x, skip = chain_of(pattern, form, "add")
        chain.bn.eval()
        plain = copy.deepcopy(chain)
        fused = fuse_modules(chain, names_of(pattern)).train()
        got, expected = run(fused, x, skip), run(plain, x, skip)
        for name in expected:
            assert torch.equal(got[name], expected[name]), (form, name)


def test_a_skip_that_does_not_broadcast_is_refused_as_by_torch():
    chain, x, skip = chain_of(ADD_PATTERNS[0], "conv first", "add")
    fused = fuse_modules(chain, names_of(ADD_PATTERNS[0]))
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        fused(x, skip[:, :, :2])
    assert torch.equal(fused(x, skip), chain(x, skip))


@pytest.mark.parametrize("pattern", ADD_PATTERNS, ids=pattern_id)
def test_an_optimizer_built_before_the_fusion_trains_the_prepared_model(pattern):
    chain, x, skip = chain_of(pattern, "conv second", "add")
    if pattern.variant.has_bn:
        randomize(chain.bn)
    before = dict(chain.named_parameters())
    optimizer = torch.optim.SGD(chain.parameters(), lr=0.5)
    fuse_modules(chain, names_of(pattern), inplace=True)
    chain.add.qconfig = get_default_qat_qconfig()
    model = prepare_qat(chain, inplace=True)
    parameters = dict(model.named_parameters())
    assert {id(p) for p in parameters.values()} == {id(p) for p in before.values()}
    assert parameters["add.weight"] is before["base.weight"]
    if pattern.variant.has_bn:
        assert parameters["add.bn.weight"] is before["bn.weight"]
    values = {name: p.detach().clone() for name, p in parameters.items()}
    model(x, skip).square().sum().backward()
    optimizer.step()
    moved = [name for name, p in parameters.items() if not torch.equal(p, values[name])]
    # The bias before a live batch norm has a gradient of rounding only.
    assert set(parameters) - set(moved) <= {"add.bias"}
