"""Fuse, prepare, train, convert."""

from horizon_plugin._carry import carry
from horizon_plugin.quantization._bn import freeze_bn_stats, unfreeze_bn_stats
from horizon_plugin.quantization.fake_quantize import (
    FakeQuantize,
    FakeQuantState,
    WeightFakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    set_fake_quantize,
)
from horizon_plugin.quantization.float_functional import FloatFunctional
from horizon_plugin.quantization.qconfig import (
    QConfig,
    get_default_calib_qconfig,
    get_default_qat_out_qconfig,
    get_default_qat_qconfig,
)
from horizon_plugin.quantization.stubs import DeQuantStub, QuantStub

# The order matters: what follows needs the modules above.
from horizon_plugin.quantization.fuse_modules import (  # isort: skip
    FusionError,
    fuse_known_modules,
    fuse_modules,
)
from horizon_plugin.quantization._fuse import check_unfused_operations, fuse  # isort: skip
from horizon_plugin.quantization._fusion_report import fusion_report  # isort: skip
from horizon_plugin.quantization._fuse_fx import fuse_fx  # isort: skip
from horizon_plugin.quantization._convert import convert  # isort: skip
from horizon_plugin.quantization._load import load_float_state_dict  # isort: skip
from horizon_plugin.quantization._prepare import prepare_qat  # isort: skip
from horizon_plugin.quantization._report import report  # isort: skip

__all__ = [
    "DeQuantStub",
    "FakeQuantState",
    "FakeQuantize",
    "FloatFunctional",
    "FusionError",
    "QConfig",
    "QuantStub",
    "WeightFakeQuantize",
    "carry",
    "check_unfused_operations",
    "convert",
    "disable_fake_quant",
    "disable_observer",
    "enable_fake_quant",
    "enable_observer",
    "freeze_bn_stats",
    "fuse",
    "fuse_fx",
    "fuse_known_modules",
    "fuse_modules",
    "fusion_report",
    "get_default_calib_qconfig",
    "get_default_qat_out_qconfig",
    "get_default_qat_qconfig",
    "load_float_state_dict",
    "prepare_qat",
    "report",
    "set_fake_quantize",
    "unfreeze_bn_stats",
]
