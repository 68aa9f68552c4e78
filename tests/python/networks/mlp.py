"""A perceptron of batch-normed layers with a residual add."""

from __future__ import annotations

from torch import Tensor, nn

from horizon_plugin.quantization import DeQuantStub, FloatFunctional, QuantStub


class MLP(nn.Module):
    """Features normalized on entry, three layers, dropout between them."""

    input_shape = (8, 12)
    group_count = 3

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.norm = nn.BatchNorm1d(12)
        self.fc1, self.bn1, self.relu1 = nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU()
        self.dropout = nn.Dropout(0.2)
        self.fc2, self.bn2, self.relu2 = nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU6()
        self.add = FloatFunctional()
        self.fc3, self.relu3 = nn.Linear(32, 16), nn.ReLU()
        self.fc4 = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.fc1(self.norm(self.quant(x)))))
        y = self.bn2(self.fc2(self.dropout(x)))
        x = self.relu2(self.add.add(y, x))
        return self.dequant(self.fc4(self.relu3(self.fc3(x))))

    def groups(self) -> list[list[str]]:
        return [["fc1", "bn1", "relu1"], ["fc2", "bn2", "add", "relu2"], ["fc3", "relu3"]]
