"""Float fused modules, named base + bn + add + act: ``ConvBNAddReLU62d``.

`fuse_modules` makes them; each is built from the modules it fuses, ``ConvBNReLU2d(conv, bn)``, and
keeps their parameter objects.
"""

from __future__ import annotations

from horizon_plugin.nn import _family
from horizon_plugin.nn._float import BODIES, FloatAddBody, FloatBody

_DOC = """The float fused module {name}.

    Args:
        base: the convolution or linear layer, whose parameters are taken over.
        bn: the batch norm, kept as the child ``bn``; only for classes with BN in their name.
    """

FAMILY = _family.make_family(BODIES, __name__, _DOC)
globals().update({cls.__name__: cls for cls in FAMILY.values()})

__all__ = ["FAMILY", "FloatAddBody", "FloatBody", *(cls.__name__ for cls in FAMILY.values())]
