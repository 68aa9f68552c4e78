"""`torch.export` of prepared and converted models: dynamic batch, saved and loaded, to the bit."""

from __future__ import annotations

import warnings

import pytest
import torch
from residual import IMAGE, trained_residual
from test_exact_networks import flat
from test_onnx_networks import trained
from torch import Tensor, nn

from horizon_plugin.quantization import convert

STAGES = {"prepared": lambda m: m, "converted": convert}


def export(model: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), torch.no_grad():
        # torch's own tree specs warn about themselves when they are copied.
        warnings.filterwarnings("ignore", r".*(treespec|LeafSpec)", FutureWarning)
        return torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def reload(program: torch.export.ExportedProgram, path) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*(treespec|LeafSpec)", FutureWarning)
        torch.export.save(program, path)
        return torch.export.load(path)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["unet", "mobilenet_v3"])
def test_an_exported_network_gives_the_same_bits_for_any_batch(name, stage, tmp_path):
    model = STAGES[stage](trained(name, "horizon"))
    shape = model.input_shape[1:]
    program = export(model, torch.randn(2, *shape))
    loaded = reload(program, tmp_path / "net.pt2")
    for batch in (1, 3):
        x = torch.randn(batch, *shape)
        with torch.no_grad():
            expected = flat(model(x))
            for made in (program, loaded):
                results = flat(made.module()(x))
                assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_export_changes_no_model_and_warns_of_nothing(stage):
    model = STAGES[stage](trained_residual())
    with torch.no_grad():
        before = model(IMAGE)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        export(model, IMAGE)
        assert torch.equal(model(IMAGE), before)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("stage", STAGES)
def test_core_decompositions_keep_the_bits(stage):
    model = STAGES[stage](trained_residual())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*(treespec|LeafSpec)", FutureWarning)
        program = export(model, IMAGE).run_decompositions()
        x = torch.randn(5, *IMAGE.shape[1:])
        assert torch.equal(program.module()(x), model(x))
