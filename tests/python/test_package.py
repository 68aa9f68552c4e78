"""The installed package: its version, its names, its checks at import, and its CMake side."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

import horizon_plugin
from horizon_plugin import _library

ROOT = Path(__file__).parents[2]
REBUILD = "build it again: `pip install --no-build-isolation .`, or `make build` in the project"


def run_python(code: str, *args: str, **environment: str) -> str:
    """Run code in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_version_is_the_one_that_pyproject_states() -> None:
    assert f'version = "{horizon_plugin.__version__}"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_package_is_typed() -> None:
    assert (Path(horizon_plugin.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("torch_version", ["2.13.0", "2.13.0+cpu", "2.13.1"])
def test_a_library_built_for_this_torch_and_python_is_accepted(torch_version: str) -> None:
    _library._check_build({"torch": "2.13", "python": "3.11"}, torch_version, "3.11.7")


def test_a_library_built_for_another_torch_is_refused() -> None:
    with pytest.raises(ImportError) as error:
        _library._check_build({"torch": "2.13", "python": "3.11"}, "2.14.1+cu130", "3.11.7")
    assert str(error.value) == (
        "horizon_plugin was built against torch 2.13, but torch 2.14.1+cu130 is installed; "
        f"install torch 2.13, or {REBUILD}"
    )


def test_a_library_built_for_another_python_is_refused() -> None:
    with pytest.raises(ImportError) as error:
        _library._check_build({"torch": "2.13", "python": "3.11"}, "2.13.0", "3.12.0")
    assert str(error.value) == (
        f"horizon_plugin was built for Python 3.11, but this is Python 3.12; {REBUILD}"
    )


def test_a_missing_library_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "horizon_plugin").mkdir()
    for name in ("__init__.py", "_library.py"):
        shutil.copy(Path(horizon_plugin.__file__).parent / name, tmp_path / "horizon_plugin")
    text = run_python(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "try:\n    import horizon_plugin\nexcept ImportError as error:\n    print(error)",
        str(tmp_path),
    )
    assert text == f"{tmp_path}/horizon_plugin/lib/libhorizon_plugin.so is missing; {REBUILD}"


# --- aliases --------------------------------------------------------------------------------

EVERY_SUBMODULE = """
import importlib, pkgutil, sys
alias = sys.argv[1]
names = importlib.import_module(alias)
import horizon_plugin
assert names is horizon_plugin and sys.modules[alias] is horizon_plugin
tails = [m.name.removeprefix("horizon_plugin") for m in
         pkgutil.walk_packages(horizon_plugin.__path__, "horizon_plugin.")]
for tail in tails:
    by_alias = importlib.import_module(alias + tail)
    real = importlib.import_module("horizon_plugin" + tail)
    assert by_alias is real, tail
    assert sys.modules[alias + tail] is sys.modules["horizon_plugin" + tail], tail
    assert real.__name__ == real.__spec__.name == "horizon_plugin" + tail, tail
print(len(tails))
"""


@pytest.mark.parametrize("alias", ["horizon", "horizon_plugin_pytorch"])
def test_every_submodule_is_one_object_under_each_name(alias: str) -> None:
    assert int(run_python(EVERY_SUBMODULE, alias)) >= 3


def test_classes_and_pickles_agree_under_every_name() -> None:
    code = """
import pickle
from horizon_plugin_pytorch.quantization import QuantStub as A
import horizon.quantization
from horizon.nn import qat
import horizon_plugin.quantization, horizon_plugin.nn.qat
assert A is horizon.quantization.QuantStub is horizon_plugin.quantization.QuantStub
assert qat is horizon_plugin.nn.qat
data = pickle.dumps(A())
assert b"horizon_plugin.quantization" in data
assert isinstance(pickle.loads(data), horizon_plugin.quantization.QuantStub)
"""
    run_python(code)


def test_a_submodule_that_does_not_exist_is_reported_under_the_name_that_was_used() -> None:
    code = """
try:
    import horizon.no_such_module
except ModuleNotFoundError as error:
    print(error)
"""
    assert run_python(code) == "No module named 'horizon.no_such_module'"


def test_an_alias_steps_aside_for_a_package_of_its_name_elsewhere_on_the_path(
    tmp_path: Path,
) -> None:
    (tmp_path / "horizon").mkdir()
    (tmp_path / "horizon" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    (tmp_path / "horizon" / "part.py").write_text("VALUE = 7\n")
    code = """
import importlib.util, pathlib, sys
ours = pathlib.Path(importlib.util.find_spec("horizon").origin).parent.parent
sys.path = [str(ours), *sys.path, sys.argv[1]]
import horizon, horizon.part
import horizon_plugin_pytorch, horizon_plugin
assert horizon_plugin_pytorch is horizon_plugin
print(horizon.OWNER, horizon.part.VALUE, pathlib.Path(horizon.__file__).parent)
"""
    assert run_python(code, str(tmp_path)) == f"somebody else 7 {tmp_path}/horizon"


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("horizon_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # setuptools' own
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("distribution", "top_level", "left"),
    [
        ("horizon", "other", ["horizon_plugin_pytorch"]),
        ("Horizon_Plugin.PyTorch", "other", ["horizon"]),
        ("something-else", "horizon", ["horizon_plugin_pytorch"]),
        ("something-else", "unrelated", ["horizon", "horizon_plugin_pytorch"]),
        ("horizon-plugin", "horizon", ["horizon", "horizon_plugin_pytorch"]),
    ],
)
def test_installation_leaves_out_aliases_that_another_distribution_has(
    distribution: str,
    top_level: str,
    left: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text(f"{top_level}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_setup()._aliases() == left


def test_installation_leaves_out_aliases_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORIZON_NO_ALIASES", "1")
    assert load_setup()._aliases() == []


# --- the CMake package ----------------------------------------------------------------------


class Grid(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero_point = torch.tensor(0.75), torch.tensor(0)
        return torch.ops.horizon.fake_quantize_per_tensor(x, scale, zero_point, -3, 3)


def test_installed_headers_include_only_installed_headers() -> None:
    include = Path(horizon_plugin.cmake_dir).parents[2] / "include" / "horizon"
    headers = list(include.rglob("*.h"))
    assert include / "horizon_plugin.h" in headers
    missing = [
        f"{header.relative_to(include)}: {name}"
        for header in headers
        for name in re.findall(r'#include "(.*)"', header.read_text())
        if not (include / name).exists()
    ]
    assert missing == []


def run_tool(*command: str, succeeds: bool = True) -> str:
    """Run a command of this environment or of PATH and return what it printed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert (done.returncode == 0) == succeeds, done.stdout
    return done.stdout


def configure(build: Path, *options: str, succeeds: bool = True) -> str:
    source = ROOT / "tests" / "python" / "consumer"
    launcher = shutil.which("ccache") or ""
    return run_tool(
        *("cmake", "-S", str(source), "-B", str(build), "-G", "Ninja"),
        f"-DHorizonPlugin_DIR={horizon_plugin.cmake_dir}",
        f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}",
        *options,
        succeeds=succeeds,
    )


def test_a_cpp_program_built_with_the_cmake_package_runs_a_file_that_uses_the_operators(
    tmp_path: Path,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated; this file format is not ours
        torch.jit.save(torch.jit.script(Grid()), str(tmp_path / "grid.pt"))
    # --as-needed is the default of some distributions' linkers: registration must survive it.
    configure(tmp_path / "build", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed")
    run_tool("cmake", "--build", str(tmp_path / "build"))
    printed = run_tool(str(tmp_path / "build" / "consumer"), str(tmp_path / "grid.pt"))
    # -4 … 4 over 0.75: -5.33 and -4 clip to -3; -2.67 rounds to -3, -1.33 to -1; times 0.75.
    assert [float(v) for v in printed.split()] == [
        *(-2.25, -2.25, -2.25, -0.75, 0.0),
        *(0.75, 2.25, 2.25, 2.25),
    ]


def test_the_cmake_package_refuses_another_torch(tmp_path: Path) -> None:
    headers = tmp_path / "torch/include/torch/csrc/api/include/torch"
    headers.mkdir(parents=True)
    (headers / "version.h").write_text(
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n"
        "#define TORCH_VERSION_PATCH 0\n"
    )
    printed = configure(
        tmp_path / "build", f"-DTorch_DIR={tmp_path}/torch/share/cmake/Torch", succeeds=False
    )
    built = ".".join(torch.__version__.split(".")[:2])
    assert (
        f"HorizonPlugin was built against PyTorch {built}, but {tmp_path}/torch has 2.99.0"
        in " ".join(printed.split())
    )
