"""Other ways to run the same float model in int8, for comparison in the same run.

Each function returns a call that takes the images, or raises `Missing` with the reason.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[Tensor], Any]


class Missing(RuntimeError):
    """What this machine lacks for a baseline."""


def _require(*packages: str) -> None:
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent:
        raise Missing(f"not installed: {', '.join(absent)}")


def torch_ao(model: nn.Module, x: Tensor) -> Run:
    """torch.ao's FX quantization with its x86 engine, traced and frozen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

        torch.backends.quantized.engine = "x86"
        prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (x,))
        with torch.no_grad():
            prepared(x)
            converted = convert_fx(prepared)
            traced = torch.jit.freeze(torch.jit.trace(converted, x))
    return traced


def onnxruntime_u8s8(model: nn.Module, x: Tensor) -> Run:
    """onnxruntime, unsigned activations, signed weights per channel, QDQ format."""
    _require("onnx", "onnxruntime")
    import onnxruntime
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)

    class Images(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": x.contiguous().numpy()}]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported, ready, int8 = (str(Path(folder) / f"{n}.onnx") for n in ("a", "b", "c"))
        axes = {"x": {0: "n"}}
        torch.onnx.export(
            model, (x.contiguous(),), exported, dynamo=False, input_names=["x"], dynamic_axes=axes
        )
        quant_pre_process(exported, ready, skip_symbolic_shape=True)
        quantize_static(
            ready,
            int8,
            Images(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(int8, options, ["CPUExecutionProvider"])
    return lambda images: session.run(None, {"x": images.numpy()})


def pt2e_inductor(model: nn.Module, x: Tensor) -> Run:
    """torchao's PT2E quantization, compiled by inductor with freezing."""
    _require("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.config as inductor
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
        with torch.no_grad():
            exported = torch.export.export(model, (x,)).module()
            prepared = prepare_pt2e(exported, quantizer)
            prepared(x)
            converted = convert_pt2e(prepared)
            inductor.freezing = True
            compiled = torch.compile(converted)
            compiled(x)
    return compiled


#: name -> function, and whether it takes images in channels_last.
BASELINES: dict[str, tuple[Callable[[nn.Module, Tensor], Run], bool]] = {
    "torch.ao traced": (torch_ao, True),
    "onnxruntime u8s8": (onnxruntime_u8s8, False),
    "PT2E + inductor": (pt2e_inductor, True),
}
