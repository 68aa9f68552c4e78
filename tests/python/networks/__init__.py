"""The networks that tests run: well-known designs, narrow, with FloatFunctional adds.

Each class has `groups()`, the lists of names that are right to fuse, decided by hand: all that can
be fused without changing what the network computes. And `group_count`, and `input_shape`.
"""

from __future__ import annotations

from torch import nn

from networks.densenet import DenseNet
from networks.detector import Detector
from networks.mobilenet_v2 import MobileNetV2
from networks.mobilenet_v3 import MobileNetV3
from networks.quantizable import QuantizableNet
from networks.resnet import ResNet18, ResNet50
from networks.shufflenet_v2 import ShuffleNetV2
from networks.unet import UNet

__all__ = ["ALL_NETWORKS", "NETWORKS", "randomize"]


def randomize(model: nn.Module) -> nn.Module:
    """Batch norms as after training, so that axis errors show; weights of a sensible size."""
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return model


# Those that every stage, down to the integer one, runs in many settings.
NETWORKS = {"resnet18": ResNet18, "mobilenet_v2": MobileNetV2, "unet": UNet}

ALL_NETWORKS = {
    **NETWORKS,
    "resnet50": ResNet50,
    "mobilenet_v3": MobileNetV3,
    "detector": Detector,
    "densenet": DenseNet,
    "shufflenet_v2": ShuffleNetV2,
    "quantizable": QuantizableNet,
}
