"""The converted stage: modules that `convert` puts into a model, on uint8 codes.

`ConvBNAddReLU62d` and its family as in `horizon_plugin.nn.intrinsic`, the bare `Conv2d`,
`ConvTranspose2d` and `Linear` included, and the single layers.
"""

from __future__ import annotations

from horizon_plugin.nn import _converted, _family
from horizon_plugin.nn._island import ConvertedIsland
from horizon_plugin.nn._passing import (
    ConvertedAdaptiveMaxPool2d,
    ConvertedMaxPool2d,
    ConvertedReLU,
)
from horizon_plugin.nn._tables import CONVERTED
from horizon_plugin.nn._unary import (
    ConvertedAdaptiveAvgPool2d,
    ConvertedAvgPool2d,
    ConvertedBatchNorm1d,
    ConvertedBatchNorm2d,
    ConvertedReLU6,
    ConvertedUpsample,
)
from horizon_plugin.quantization.float_functional import ConvertedFloatFunctional
from horizon_plugin.quantization.stubs import ConvertedDeQuantStub, ConvertedQuantStub

FAMILY = _family.make_family(_converted.BODIES, __name__, "`{name}` as one integer op on codes.")
globals().update({cls.__name__: cls for cls in (*FAMILY.values(), *CONVERTED.values())})

__all__ = [
    *sorted(cls.__name__ for cls in (*FAMILY.values(), *CONVERTED.values())),
    "ConvertedAdaptiveAvgPool2d",
    "ConvertedAdaptiveMaxPool2d",
    "ConvertedAvgPool2d",
    "ConvertedBatchNorm1d",
    "ConvertedBatchNorm2d",
    "ConvertedDeQuantStub",
    "ConvertedFloatFunctional",
    "ConvertedIsland",
    "ConvertedMaxPool2d",
    "ConvertedQuantStub",
    "ConvertedReLU",
    "ConvertedReLU6",
    "ConvertedUpsample",
]
