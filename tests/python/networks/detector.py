"""A one-stage detector in the manner of FCOS: a pyramid, and heads shared by its five levels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


def conv_bn_relu(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class Pyramid(nn.Module):
    """Feature maps at strides 4, 8, 16, 32 and 64 from the backbone's first three."""

    def __init__(self, inputs: tuple[int, int, int], width: int) -> None:
        super().__init__()
        self.lateral3, self.lateral4, self.lateral5 = (nn.Conv2d(c, width, 1) for c in inputs)
        self.add3, self.add4 = FloatFunctional(), FloatFunctional()
        self.output3, self.output4, self.output5 = (
            nn.Conv2d(width, width, 3, padding=1) for _ in range(3)
        )
        self.p6 = nn.Conv2d(width, width, 3, 2, 1)
        self.relu = nn.ReLU()
        self.p7 = nn.Conv2d(width, width, 3, 2, 1)

    def forward(self, c3: Tensor, c4: Tensor, c5: Tensor) -> list[Tensor]:
        top = self.lateral5(c5)
        middle = self.add4.add(self.lateral4(c4), F.interpolate(top, scale_factor=2.0))
        bottom = self.add3.add(F.interpolate(middle, scale_factor=2.0), self.lateral3(c3))
        p5 = self.output5(top)
        p6 = self.p6(p5)
        p7 = self.p7(self.relu(p6))
        return [self.output3(bottom), self.output4(middle), p5, p6, p7]


class Head(nn.Module):
    """Two towers, one with batch norms, and what they predict."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.cls_tower = nn.Sequential(conv_bn_relu(width, width), conv_bn_relu(width, width))
        self.box_tower = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU6(),
        )
        self.logits = nn.Conv2d(width, classes, 3, padding=1)
        self.boxes = nn.Conv2d(width, 4, 3, padding=1)
        self.box_relu = nn.ReLU()
        self.centerness = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.box_tower(x)
        return self.logits(self.cls_tower(x)), self.box_relu(self.boxes(y)), self.centerness(y)


class Detector(nn.Module):
    """Returns class logits, boxes and centerness, each a list over the levels."""

    input_shape = (2, 3, 64, 64)
    group_count = 11  # 4 in the backbone, 2 laterals, 2 in each tower, the boxes

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.quant = QuantStub()
        self.stem = conv_bn_relu(3, 8, 2)
        self.stage3, self.stage4 = conv_bn_relu(8, 8, 2), conv_bn_relu(8, 12, 2)
        self.stage5 = conv_bn_relu(12, 16, 2)
        self.pyramid = Pyramid((8, 12, 16), width)
        self.head = Head(width, classes)
        self.dequant = DeQuantStub()

    def forward(self, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        c3 = self.stage3(self.stem(self.quant(x)))
        c4 = self.stage4(c3)
        logits, boxes, centerness = [], [], []
        for level in self.pyramid(c3, c4, self.stage5(c4)):
            a, b, c = self.head(level)
            logits.append(self.dequant(a))
            boxes.append(self.dequant(b))
            centerness.append(self.dequant(c))
        return logits, boxes, centerness

    def groups(self) -> list[list[str]]:
        """The heads' members are always called together, once per level, and therefore fuse.

        lateral5 feeds two layers. p6 is a level itself, before the relu behind it.
        """
        found = [[f"{name}.{i}" for i in range(3)] for name in ("stem", "stage3", "stage4")]
        found.append([f"stage5.{i}" for i in range(3)])
        found += [[f"pyramid.lateral{i}", f"pyramid.add{i}"] for i in (3, 4)]
        found += [[f"head.cls_tower.{k}.{i}" for i in range(3)] for k in range(2)]
        found += [[f"head.box_tower.{i}", f"head.box_tower.{i + 1}"] for i in (0, 2)]
        return [*found, ["head.boxes", "head.box_relu"]]
