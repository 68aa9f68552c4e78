"""The first convolution of a network is delimited like every other one.

A partition marks where a compiler for int8 hardware may fuse and quantize: groups of operators,
each between pairs of `cast_hint` and `stop_fusion`. TVM's `relay.quantize.partition()` opens a
group at a convolution's *output* and closes it at its consumers. Nothing closes the *input* of a
convolution whose producer is no group: of the first one above all, but as well of every one behind
a concat, an average pool, a pad or a leaky relu. Here, the data of every convolution has a pair.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn

import horizon_plugin as horizon

NET = nn.Sequential(
    nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
    nn.ReLU(),
    nn.MaxPool2d(3, stride=2, padding=1),
    nn.Conv2d(64, 128, 3, padding=1, bias=False),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.AdaptiveAvgPool2d(1),
)


def main() -> None:
    x = torch.randn(1, 3, 224, 224)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        script = torch.jit.trace(NET.eval(), x)
    plain = horizon.jit.partition(script, skip_conv_layers=[0, 1])
    made = horizon.jit.partition(script)

    print("The graph:\n")
    print(horizon.jit.dump(plain))
    print("Partitioned: %0 and %1 are the pair in front of the first convolution, which the input")
    print("of the network gets as any other value would; %4 and %8 are closed where groups end.\n")
    print(horizon.jit.dump(made))
    print(horizon.jit.report(made))

    print("\nskip_conv_layers=[0] leaves the first convolution float, as TVM does:\n")
    print(horizon.jit.dump(horizon.jit.partition(script, skip_conv_layers=[0])))

    print("The annotations are identities:", end=" ")
    print("equal to the bit" if torch.equal(made(x), script(x)) else "NOT EQUAL")
    for group in horizon.jit.groups(made):
        kinds = ", ".join(node.kind().split("::")[1] for node in group.nodes)
        print(f"group {group.index}: {kinds}")


if __name__ == "__main__":
    main()
