"""Models in folders as versions: what an engine receives is what the files hold."""

import asyncio

import pytest
import torch
from safetensors.torch import save_file

from roll.topologies.evaluation import ModelFolders


@pytest.fixture
def folders(tmp_path):
    generator = torch.Generator().manual_seed(0)
    found = {}
    for version in (0, 10):
        found[version] = tmp_path / str(version)
        found[version].mkdir()
        for part in ("a", "b"):
            tensors = {f"{part}.{i}": torch.randn(16, 16, generator=generator) for i in range(4)}
            save_file(tensors | {f"{part}.steps": torch.tensor([version])}, found[version] / f"model-{part}.safetensors")
    return found


def pulled(source, version):
    received = []

    async def pull():
        async def receive(version, bucket):
            received.append(await asyncio.to_thread(bucket.read))

        return await source.pull(version, receive)

    return asyncio.run(pull()), received


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_reads_all_tensors_from_the_folder_in_bounded_buckets(folders, dtype):
    source = ModelFolders(folders, dtype, bucket_bytes=1100)
    manifest, buckets = pulled(source, 10)
    for bucket in buckets:
        bucket.verify()
        assert bucket.nbytes <= 1100
    assert len(buckets) > 2
    manifest.check(10, {name for bucket in buckets for name in bucket.tensors}, [bucket.checksum for bucket in buckets])
    assert manifest.nbytes == sum(bucket.nbytes for bucket in buckets) and source.manifest(10) == manifest
    tensors = {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}
    assert len(tensors) == 10 and tensors["a.steps"].tolist() == [10]
    assert {tensor.dtype for name, tensor in tensors.items() if "steps" not in name} == {getattr(torch, dtype)}
    _, others = pulled(source, 0)
    [other] = [bucket.tensors["a.0"] for bucket in others if "a.0" in bucket.tensors]
    assert not torch.equal(other, tensors["a.0"])


def test_files_that_changed_after_they_were_read_are_noticed(folders):
    source = ModelFolders(folders, "float32", bucket_bytes=1 << 20)
    pulled(source, 10)
    save_file(
        {f"a.{i}": torch.zeros(16, 16) for i in range(4)} | {"a.steps": torch.tensor([10])}, folders[10] / "model-a.safetensors"
    )
    _, buckets = pulled(source, 10)
    [changed] = [bucket for bucket in buckets if "a.0" in bucket.tensors]
    with pytest.raises(ValueError, match="corrupt"):
        changed.verify()
    (folders[10] / "model-a.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        pulled(source, 10)
