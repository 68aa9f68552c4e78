"""A model as the C++ planner of `fuse_modules` sees it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from horizon_plugin.nn import _family
from horizon_plugin.nn._layer import Layer
from horizon_plugin.nn._pending import AFTER_NORM, FusedGroup
from horizon_plugin.quantization._collector import paused_collection

GROUP = "_fusion_group"
POSITION = "_fusion_position"

_NO_QCONFIG = object()

_KINDS: dict[type, str] = {
    nn.Conv2d: "Conv2d",
    nn.ConvTranspose2d: "ConvTranspose2d",
    nn.Linear: "Linear",
    nn.BatchNorm1d: "BatchNorm1d",
    nn.BatchNorm2d: "BatchNorm2d",
    nn.SyncBatchNorm: "SyncBatchNorm",
    nn.ReLU: "ReLU",
    nn.ReLU6: "ReLU6",
}
_CHANNELS = {
    "Conv2d": "out_channels",
    "ConvTranspose2d": "out_channels",
    "Linear": "out_features",
    "BatchNorm1d": "num_features",
    "BatchNorm2d": "num_features",
    "SyncBatchNorm": "num_features",
}
_OTHER = "Other"
# Where a node's tuple has them.
_PARENT, _CHILD_NAMES, _CHILDREN = 11, -2, -1

_WRAPPERS = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "OptimizedModule": "_orig_mod",
}

OTHER_HOOKS = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _known_kinds() -> dict[type, str]:
    """Exact classes and their kinds; FloatFunctionals only once the user's model brought them."""
    kinds = dict(_KINDS)
    for name in (
        "horizon_plugin.quantization.float_functional",
        "torch.ao.nn.quantized.modules.functional_modules",
    ):
        module = sys.modules.get(name)
        if module is not None:
            kinds[module.FloatFunctional] = "FloatFunctional"
    return kinds


class _ClassInfo(NamedTuple):
    name: str
    kind: str
    derived_from: str
    type_id: int
    inner: str


def inner_of(cls: type) -> str:
    """The attribute by which a wrapper such as DataParallel holds its module; else empty."""
    for base in cls.__mro__:
        if base.__name__ in _WRAPPERS and base.__module__.startswith("torch."):
            return _WRAPPERS[base.__name__]
    return ""


def to_text(name: str) -> str:
    """`name` as UTF-8 can hold it; the planner gets all names in this form."""
    return name if name.isascii() else name.encode(errors="backslashreplace").decode()


def _functional_obstacle(module: Any) -> str:
    for method in ("add", "add_relu"):
        if method in module.__dict__:
            return (
                f"must compute what its class does, but its {method} was replaced on the instance: "
                "undo that first"
            )
    # torch's own class runs its result through a child.
    child = module._modules.get("activation_post_process")
    if child is not None and type(child) is not nn.Identity:
        return (
            f"must not be quantized yet, but its result goes through a {type(child).__name__}: "
            "call fuse_modules before torch's own prepare"
        )
    if child is not None and (child._forward_hooks or child._forward_pre_hooks):
        return "must have no hooks on its activation_post_process: remove them first"
    return ""


def _is_relu6(module: Any) -> bool:
    return module.min_val == 0 and module.max_val == 6


def _obstacle(module: nn.Module, kind: str) -> str:
    """Why a module of a known class cannot be a member, and what to do; else empty."""
    if isinstance(module, Layer):
        return "is prepared already: call fuse_modules before prepare_qat"
    if kind == _OTHER:
        return ""
    if "parametrizations" in module._modules:
        return (
            "must hold plain parameters, but some are parametrized: call "
            "torch.nn.utils.parametrize.remove_parametrizations on it first"
        )
    if "forward" in module.__dict__:
        return (
            "must compute what its class does, but its forward was replaced on the instance: "
            "undo that first"
        )
    if kind == "FloatFunctional":
        return _functional_obstacle(module)
    if kind not in _CHANNELS:
        return ""
    for name in ("weight", "bias"):
        if name in module._parameters:
            continue
        if f"{name}_g" in module._parameters:
            remedy = "it is weight-normed: call torch.nn.utils.remove_weight_norm on it first"
        elif f"{name}_mask" in module._buffers:
            remedy = f"it is pruned: call torch.nn.utils.prune.remove(module, '{name}') first"
        elif f"{name}_orig" in module._parameters:
            remedy = "it is spectral-normed: call torch.nn.utils.remove_spectral_norm on it first"
        else:
            remedy = f"it has none: assign torch.nn.Parameter(module.{name}.detach()) first"
        return f"must hold '{name}' as a plain parameter, but {remedy}"
    return ""


def _has_other_hooks(attributes: dict[str, Any]) -> bool:
    for hooks in OTHER_HOOKS:
        for hook in (attributes.get(hooks) or {}).values():
            # parametrizations.weight_norm leaves one behind when it is removed; nobody misses it.
            function = getattr(hook, "hook", hook)
            if getattr(function, "__module__", "") != "torch.nn.utils.parametrizations":
                return True
    return False


_BASE_KINDS = {
    _family.BASE_CONV2D: ("Conv2d", "BatchNorm2d"),
    _family.BASE_CONV_TRANSPOSE2D: ("ConvTranspose2d", "BatchNorm2d"),
    _family.BASE_LINEAR: ("Linear", "BatchNorm1d"),
}


def _fused_kinds(module: nn.Module, group: FusedGroup) -> list[str]:
    """What a fused module of ours consists of, with a folded batch norm; else nothing."""
    variant = getattr(module, "variant", None)
    if not isinstance(variant, _family.Variant):
        return []
    base, norm = _BASE_KINDS[variant.base]
    kinds = [base]
    if variant.has_bn or group.stage == AFTER_NORM:
        kinds.append(norm)
    if variant.has_add:
        kinds.append("FloatFunctional")
    if variant.activation != _family.ACTIVATION_NONE:
        kinds.append("ReLU6" if variant.activation == _family.ACTIVATION_RELU6 else "ReLU")
    return kinds


class ModuleTree:
    """Flattens modules into the nodes of `_C.plan_fusion`; reads only.

    Attributes:
        nodes: what the planner takes; the order of the fields is that of csrc/bindings/fuse.cpp.
        modules: the module of each node.
        slots: for each node, the places that hold its module: (parent, name).
        groups: the groups that earlier calls fused.
    """

    def __init__(self) -> None:
        self.nodes: list[tuple[Any, ...]] = []
        self.modules: list[nn.Module] = []
        self.slots: list[list[tuple[nn.Module, str]]] = []
        self.groups: list[FusedGroup] = []
        self._kinds = _known_kinds()
        self._classes: dict[type, _ClassInfo] = {}
        self._qconfigs: list[Any] = [None]
        self._group_ids: dict[int, int] = {}

    @classmethod
    @paused_collection()
    def of_model(cls, model: nn.Module) -> ModuleTree:
        """All modules of `model`, each once, wherever else it stands."""
        tree = cls()
        parents = [-1]
        modules = tree.modules
        modules.append(model)
        tree.slots.append([])
        index = {id(model): 0}
        position = 0
        while position < len(modules):
            module = modules[position]
            names: list[str] = []
            children: list[int] = []
            for name, child in module._modules.items():
                if child is None:
                    continue
                # A stateless activation is one node for every place: sharing the object shares
                # nothing, and each place belongs to a group of its own.
                node = None if tree._is_stateless(child) else index.get(id(child))
                if node is None:
                    node = index[id(child)] = len(modules)
                    modules.append(child)
                    parents.append(position)
                    tree.slots.append([])
                tree.slots[node].append((module, name))
                names.append(to_text(name))
                children.append(node)
            tree.nodes.append(tree._node(module, parents[position], names, children))
            position += 1
        return tree

    @classmethod
    def of_list(cls, modules: Sequence[nn.Module]) -> ModuleTree:
        """The modules of a list, named by their subscripts."""
        tree = cls()
        root = nn.Module()
        tree.modules = [root, *modules]
        tree.slots = [[] for _ in tree.modules]
        names = [str(i) for i in range(len(modules))]
        ids = {id(m): i + 1 for i, m in reversed(list(enumerate(modules)))}
        tree.nodes.append(tree._node(root, -1, names, [ids[id(m)] for m in modules]))
        tree.nodes.extend(tree._node(m, 0, [], []) for m in modules)
        return tree

    def _is_stateless(self, module: nn.Module) -> bool:
        return type(module) in (nn.ReLU, nn.ReLU6, nn.Hardtanh)

    def _script_node(
        self, module: nn.Module, parent: int, names: list[str], children: list[int]
    ) -> tuple[Any, ...]:
        info = self._class_info(type(module))
        obstacle = (
            "is a TorchScript module, which can no longer be changed: call fuse_modules before "
            "torch.jit.script or torch.jit.trace"
        )
        settings = (info.type_id, module.training, False, -1, False, False, False, -1, parent)
        return (info.name, _OTHER, _OTHER, *settings, -1, -1, obstacle, "", [], names, children)

    def places_of(self, node: int, base: int) -> list[tuple[nn.Module, str]]:
        """Where a member of a group is replaced: all its places; an activation's own, and those
        beside another place of the group's base."""
        module = self.modules[node]
        places = list(self.slots[node])
        if self._is_stateless(module) and len(self.slots[base]) > 1:
            known = {id(parent) for parent, _ in self.slots[node]}
            for parent, _ in self.slots[base]:
                if id(parent) not in known:
                    children = parent._modules.items()
                    places += [(parent, name) for name, child in children if child is module]
        return places

    def other_place(self, members: Sequence[int]) -> tuple[int, nn.Module, str] | None:
        """A place of a member outside its group: the member's position, parent and name there."""
        base = members[0]
        if not self.slots[base]:
            return None
        lasting = [(i, n) for i, n in enumerate(members) if not self._is_stateless(self.modules[n])]
        fewest = min(len(self.slots[node]) for _, node in lasting)
        for position, node in lasting:
            if len(self.slots[node]) > fewest:
                return (position, *self.slots[node][-1])
        for node in members:
            if fewest > 1 and len(self.places_of(node, base)) < fewest:
                return (0, *self.slots[base][-1])
        return None

    def paths(self) -> list[str]:
        """The dotted path of each node, through the first place that holds its module."""
        paths = [""] * len(self.nodes)
        for number, fields in enumerate(self.nodes):
            for name, child in zip(fields[-2], fields[-1], strict=True):
                if self.nodes[child][_PARENT] == number and not paths[child]:
                    paths[child] = f"{paths[number]}.{name}" if paths[number] else name
        return paths

    def children_of(self, node: int) -> list[int]:
        """The nodes of a module's children."""
        return self.nodes[node][-1]

    def path_of(self, node: int) -> str:
        """The first name of a module, from the root on."""
        parts: list[str] = []
        while node > 0:
            parent = self.nodes[node][_PARENT]
            position = self.nodes[parent][_CHILDREN].index(node)
            parts.append(self.nodes[parent][_CHILD_NAMES][position])
            node = parent
        return ".".join(reversed(parts))

    def qconfig(self, number: int) -> Any:
        """The setting that the planner knows by `number`."""
        return self._qconfigs[number]

    def type_id(self, cls: type) -> int:
        """The number of an exact class."""
        return self._class_info(cls).type_id

    def _class_info(self, cls: type) -> _ClassInfo:
        info = self._classes.get(cls)
        if info is None:
            kind = self._kinds.get(cls, _OTHER)
            derived = _OTHER
            if kind == _OTHER:
                known = (self._kinds[base] for base in cls.__mro__ if base in self._kinds)
                derived = next(known, _OTHER)
            info = _ClassInfo(cls.__name__, kind, derived, len(self._classes), inner_of(cls))
            self._classes[cls] = info
        return info

    def _qconfig_id(self, module: nn.Module) -> int:
        qconfig = module.__dict__.get("qconfig", _NO_QCONFIG)
        if qconfig is _NO_QCONFIG:
            return -1
        for number, known in enumerate(self._qconfigs):
            if known is qconfig:
                return number
        for number, known in enumerate(self._qconfigs):
            if number > 0 and known == qconfig:
                return number
        self._qconfigs.append(qconfig)
        return len(self._qconfigs) - 1

    def _group_id(self, group: FusedGroup) -> int:
        number = self._group_ids.get(id(group))
        if number is None:
            number = self._group_ids[id(group)] = len(self.groups)
            self.groups.append(group)
        return number

    def _node(
        self, module: nn.Module, parent: int, names: list[str], children: list[int]
    ) -> tuple[Any, ...]:
        cls = type(module)
        if isinstance(module, torch.jit.ScriptModule):
            return self._script_node(module, parent, names, children)
        if "parametrizations" in module._modules:
            cls = cls.__mro__[1]
        info = self._class_info(cls)
        attributes = module.__dict__
        name, kind, derived = info.name, info.kind, info.derived_from
        if cls is nn.Hardtanh or kind == "ReLU6":
            exact = _is_relu6(module)
            kind = "ReLU6" if exact else _OTHER
            if not exact:
                name = f"{name}({module.min_val}, {module.max_val})"
        buffers = module._buffers
        group = attributes.get(GROUP)
        return (
            name,
            kind,
            derived,
            info.type_id,
            module.training,
            buffers.get("running_mean") is not None and buffers.get("running_var") is not None,
            attributes.get(_CHANNELS[kind], -1) if kind in _CHANNELS else -1,
            bool(attributes["_forward_pre_hooks"]),
            bool(attributes["_forward_hooks"]),
            _has_other_hooks(attributes),
            self._qconfig_id(module),
            parent,
            -1 if group is None else self._group_id(group),
            attributes.get(POSITION, -1),
            _obstacle(module, kind),
            info.inner,
            [] if group is None else _fused_kinds(module, group),
            names,
            children,
        )
