"""Random models and calls: fused or refused with one clear error, and never changed half."""

from __future__ import annotations

import random
import warnings

import hypothesis
import pytest
import torch
from fuse_models import is_same, randomize, snapshot
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from horizon_plugin.quantization import FloatFunctional, fuse_modules

ERRORS = (ValueError, TypeError, NotImplementedError)
SETTING = object()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class PaddedConv(nn.Conv2d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (1, 1, 1, 1)))


LEAVES = (
    lambda: nn.Conv2d(2, 2, 1),
    lambda: nn.ConvTranspose2d(2, 2, 1, groups=2),
    lambda: nn.Linear(2, 2, bias=False),
    lambda: randomize(nn.BatchNorm2d(2)),
    lambda: nn.BatchNorm2d(2, affine=False),
    lambda: nn.BatchNorm2d(2, track_running_stats=False),
    lambda: nn.BatchNorm1d(2),
    lambda: nn.SyncBatchNorm(2),
    lambda: nn.BatchNorm2d(3),
    nn.ReLU,
    nn.ReLU6,
    nn.Hardtanh,
    lambda: nn.Hardtanh(0, 6),
    nn.Tanh,
    FloatFunctional,
    lambda: PaddedConv(2, 2, 1),
    lambda: nn.LazyConv2d(2, 1),
    lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 2, 1)),
    lambda: prune.l1_unstructured(nn.Linear(2, 2), "weight", 0.5),
    lambda: nn.DataParallel(nn.Conv2d(2, 2, 1)),
)
GROUPS = (  # what does fuse, so that a random model is not refused alone
    lambda: [nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU()],
    lambda: [nn.ConvTranspose2d(2, 2, 1), nn.BatchNorm2d(2), FloatFunctional(), nn.ReLU6()],
    lambda: [nn.Linear(2, 2), nn.BatchNorm1d(2), FloatFunctional()],
    lambda: [nn.Conv2d(2, 2, 1), nn.Hardtanh(0, 6)],
)
CHANGES = (
    lambda m, rng: m.eval(),
    lambda m, rng: m.train(),
    lambda m, rng: m.register_forward_hook(lambda *args: None),
    lambda m, rng: m.register_forward_pre_hook(lambda *args: None, prepend=True),
    lambda m, rng: m.register_full_backward_hook(lambda *args: None),
    lambda m, rng: m.register_state_dict_pre_hook(lambda *args: None),
    lambda m, rng: setattr(m, "qconfig", rng.choice((None, SETTING))),
    lambda m, rng: setattr(m, "forward", lambda x: x),
    lambda m, rng: m.double(),
)
NAMES = ("0", "conv", "имя", "名", "a b", "\ud800", "é" * 300, "a\nb", "-1", "None", "0x1")
ODD_NAMES = ("", ".", "0.", "..", "x", -1, 3, 10**5000, None, 2.5, True, b"0", ["0"], object())


def random_model(rng: random.Random, depth: int = 2) -> nn.Module:
    model = rng.choice((nn.Module, nn.ModuleDict, nn.Sequential, nn.ModuleList))()
    children: list[nn.Module] = []
    for _ in range(rng.randint(1, 3)):
        if depth > 0 and rng.random() < 0.5:
            children.append(random_model(rng, depth - 1))
        children += rng.choice(GROUPS)() if rng.random() < 0.6 else [rng.choice(LEAVES)()]
    if rng.random() < 0.3:
        children.insert(rng.randrange(len(children)), rng.choice(children))
    names = [str(i) for i in range(len(children))]
    if type(model) is nn.Module:
        names = [rng.choice(NAMES) if rng.random() < 0.3 else name for name in names]
    for name, child in zip(names, children, strict=True):
        model.add_module(name, child)
    return model


def random_lists(rng: random.Random, model: nn.Module) -> list:
    """Neighbours, which often fit; now and then anything."""
    lists: list = []
    for path, holder in model.named_modules():
        children = [name for name, _ in holder.named_children()]
        start = rng.randrange(len(children)) if children else 0
        names = children[start : start + rng.choice((2, 2, 3, 3, 4))]
        if len(names) > 1 and rng.random() < 0.5:
            lists.append([f"{path}.{name}" if path else name for name in names])
    every = [name for name, _ in model.named_modules(remove_duplicate=False)]
    if rng.random() < 0.2 or not lists:
        anything = [*every, *ODD_NAMES]
        lists.append([rng.choice(anything) for _ in range(rng.randint(0, 4))])
    return rng.sample(lists, k=rng.randint(1, min(3, len(lists))))


def attempt(model: nn.Module, lists: object, **options: object) -> bool:
    """Whether the call fused; if it refused, the model must be as before."""
    before = snapshot(model)
    inplace = options.get("inplace", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fused = fuse_modules(model, lists, **options)
        except ERRORS as error:
            assert str(error).startswith("fuse_modules: "), error
            assert len(str(error)) < 20_000 and "\0" not in str(error)
            assert is_same(before, snapshot(model))
            return False
    assert (fused is model) == bool(inplace)
    if not inplace:
        assert is_same(before, snapshot(model))
    return True


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("seed", range(8))
def test_random_models_are_fused_or_refused_whole(seed):
    rng = random.Random(seed)
    fused = 0
    for _ in range(60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = random_model(rng).train(rng.random() < 0.5)
        modules = [m for m in model.modules() if m is not model]
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            rng.choice(CHANGES)(rng.choice(modules), rng)
        fused += attempt(
            model,
            random_lists(rng, model),
            inplace=rng.random() < 0.5,
            mode=rng.choice((None, "auto", "fuse_bn", "with_bn", "with_bn_reverse_fold")),
            allow_inner_hooks=rng.random() < 0.3,
        )
    assert fused >= 3


def chain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU())


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(), max_size=8),
        st.binary(max_size=3),
        st.sampled_from(("0", "1", "2", 0, 1, 2)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(st.text(), inner)
    ),
    max_leaves=8,
)


@hypothesis.given(JUNK)
@hypothesis.settings(max_examples=200)
def test_any_value_in_place_of_the_lists_is_taken_or_refused(value):
    attempt(chain(), value, inplace=True)


@hypothesis.given(JUNK, JUNK)
@hypothesis.settings(max_examples=100)
def test_any_value_of_the_other_arguments_is_taken_or_refused(config, mode):
    attempt(chain(), [0, 1, 2], fuse_custom_config_dict=config, inplace=True)
    attempt(chain(), [0, 1, 2], mode=mode, inplace=True)


def test_random_models_compute_the_same_after_a_random_choice_of_their_groups():
    rng = random.Random(5)
    for round_number in range(40):
        torch.manual_seed(round_number)
        layers: list[nn.Module] = []
        groups: list[list[int]] = []
        for _ in range(rng.randint(1, 5)):
            start = len(layers)
            base = rng.choice((nn.Conv2d, nn.ConvTranspose2d))
            layers.append(base(4, 4, 3, padding=1, groups=rng.choice((1, 2, 4))))
            if rng.random() < 0.7:
                layers.append(randomize(nn.BatchNorm2d(4, affine=rng.random() < 0.8)))
            if rng.random() < 0.7:
                layers.append(rng.choice((nn.ReLU(), nn.ReLU6(), nn.Hardtanh(0.0, 6.0))))
            if len(layers) > start + 1 and rng.random() < 0.8:
                groups.append(list(range(start, len(layers))))
        model = nn.Sequential(*layers).double().eval()
        x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
        expected = model(x)
        if groups:
            torch.testing.assert_close(
                fuse_modules(model, groups)(x), expected, rtol=1e-9, atol=1e-9
            )
