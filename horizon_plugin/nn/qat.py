"""The prepared stage: modules that `prepare_qat` puts into a model, parameters shared.

`ConvBNAddReLU62d` and its family as in `horizon_plugin.nn.intrinsic`, the bare `Conv2d`,
`ConvTranspose2d` and `Linear` included, and the single layers.
"""

from __future__ import annotations

from horizon_plugin.nn import _family, _prepared
from horizon_plugin.nn._island import PreparedIsland
from horizon_plugin.nn._tables import PREPARED
from horizon_plugin.nn._unary import (
    PreparedAdaptiveAvgPool2d,
    PreparedAvgPool2d,
    PreparedBatchNorm1d,
    PreparedBatchNorm2d,
    PreparedReLU6,
    PreparedUpsample,
)
from horizon_plugin.quantization.float_functional import PreparedFloatFunctional
from horizon_plugin.quantization.stubs import PreparedDeQuantStub, PreparedQuantStub

FAMILY = _family.make_family(
    _prepared.BODIES, __name__, "Prepared for QAT: `{name}` with fake-quantized weight and output."
)
globals().update({cls.__name__: cls for cls in (*FAMILY.values(), *PREPARED.values())})

__all__ = [
    *sorted(cls.__name__ for cls in (*FAMILY.values(), *PREPARED.values())),
    "PreparedAdaptiveAvgPool2d",
    "PreparedAvgPool2d",
    "PreparedBatchNorm1d",
    "PreparedBatchNorm2d",
    "PreparedDeQuantStub",
    "PreparedFloatFunctional",
    "PreparedIsland",
    "PreparedQuantStub",
    "PreparedReLU6",
    "PreparedUpsample",
]
