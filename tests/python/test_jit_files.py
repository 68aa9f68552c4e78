"""Files carry the version that wrote them, and say what is missing."""

from __future__ import annotations

import json
import re
import zipfile

import pytest
import torch
from jit_networks import traced
from torch import nn

import horizon_plugin
from horizon_plugin import jit
from horizon_plugin.jit._objects import quiet

X = torch.randn(1, 3, 8, 8)


def partitioned() -> torch.jit.ScriptModule:
    return jit.partition(traced(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), X))


def test_a_file_says_which_versions_wrote_it(tmp_path):
    jit.save(partitioned(), tmp_path / "net.pt")
    extra = {"horizon_plugin.json": ""}
    with quiet():
        torch.jit.load(str(tmp_path / "net.pt"), _extra_files=extra)
    facts = json.loads(extra["horizon_plugin.json"])
    assert facts["horizon_plugin"] == horizon_plugin.__version__
    assert facts["torch"] == torch.__version__
    assert facts["format"] == 1


@pytest.mark.parametrize("writer", ["torch", "horizon"])
@pytest.mark.parametrize("reader", ["torch", "horizon"])
def test_files_of_torch_and_of_this_package_are_the_same_kind(writer, reader, tmp_path):
    made, path = partitioned(), str(tmp_path / "net.pt")
    with quiet():
        (torch.jit.save if writer == "torch" else jit.save)(made, path)
        back = (torch.jit.load if reader == "torch" else jit.load)(path)
    assert torch.equal(back(X), made(X))
    assert jit.report(back) == jit.report(made)
    assert len(jit.groups(back)) == 1


def test_a_newer_format_is_refused(tmp_path):
    facts = {"format": 2, "horizon_plugin": "9.9.0", "torch": "9.9"}
    path = tmp_path / "net.pt"
    with quiet():
        extra = {"horizon_plugin.json": json.dumps(facts)}
        torch.jit.save(partitioned(), str(path), _extra_files=extra)
    with pytest.raises(RuntimeError, match=r"has format 2, written by horizon_plugin 9\.9\.0;"):
        jit.load(path)


def unknown_operator(path, name: str) -> None:
    """A file whose code calls an operator that nobody registers."""
    made = path.with_name("made.pt")
    jit.save(partitioned(), made)
    with zipfile.ZipFile(made) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data.replace(b"annotation.stop_fusion", name.encode()))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vendor.some_fusion", "import the library that registers 'vendor' first"),
        ("annotation.some_fusion", "needs annotation::some_fusion, which horizon_plugin"),
    ],
)
def test_an_operator_that_is_missing_is_named_with_the_remedy(name, text, tmp_path):
    unknown_operator(tmp_path / "net.pt", name)
    with pytest.raises(RuntimeError, match=re.escape(text)):
        jit.load(tmp_path / "net.pt")


def test_what_is_no_file_of_torchscript_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="'path' must be a file"):
        jit.load(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(RuntimeError, match="is no TorchScript file"):
        jit.load(tmp_path / "text.pt")
    torch.save({"a": torch.ones(1)}, tmp_path / "state.pt")
    with pytest.raises(RuntimeError, match="is no TorchScript file"):
        jit.load(tmp_path / "state.pt")


@pytest.mark.parametrize("obj", [None, nn.ReLU(), partitioned().graph], ids=["None", "nn", "Graph"])
def test_only_modules_are_written(obj, tmp_path):
    with pytest.raises(TypeError, match="save: 'obj' must be a"):
        jit.save(obj, tmp_path / "net.pt")


def test_the_package_goes_by_all_its_names():
    import horizon
    import horizon_plugin_pytorch

    assert horizon.jit is horizon_plugin_pytorch.jit is jit
